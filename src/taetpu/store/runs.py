"""The folder of one run: what it was, its metrics, samples and checkpoints, the model, and last of all its result."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taetpu.core.errors import UserError
from taetpu.store import metrics
from taetpu.store.backend import Store
from taetpu.store.documents import finite, from_json, to_json
from taetpu.store.metrics import Series

Status = Literal["absent", "started", "done"]

SOURCE = "reused.json"  # of a run that was trained elsewhere


@dataclass(frozen=True)
class RunFolder:
    """One arm on one seed, at `<study>/runs/<arm>/<seed>-<id>/`.

    `result.json`, written last, alone means that the run is done. Until then everything else may be written again.
    """

    store: Store
    study: str
    arm: str
    seed: int
    id: str
    """The first 8 characters of the run's identity."""

    @property
    def key(self) -> str:
        """The key of the folder."""
        return f"{self.study}/runs/{self.arm}/{self.seed}-{self.id}"

    @property
    def where(self) -> str:
        """The folder as a person would open it."""
        return self.store.where(self.key)

    def status(self) -> Status:
        """Nothing stored, started, or done."""
        if self.store.exists(f"{self.key}/result.json"):
            return "done"
        return "started" if self.store.exists(f"{self.key}/config.json") else "absent"

    # What it was, and what came of it.

    def start(self, config: dict[str, Any]) -> None:
        """Record what the run is. Again with the same config is fine.

        Raises:
            UserError: another config is recorded here.
        """
        self.store.write(f"{self.key}/config.json", to_json(config))

    def config(self) -> dict[str, Any]:
        """What `start` recorded. Raises `NotStored`."""
        return self._json("config.json")

    def finish(self, result: dict[str, Any]) -> None:
        """Record the result, which makes the run done; call it after everything else is written.

        NaN and infinities are stored as null. Again with the same result is fine.

        Raises:
            UserError: another result is recorded here.
        """
        self.store.write(f"{self.key}/result.json", to_json(finite(result)))

    def result(self) -> dict[str, Any] | None:
        """What `finish` recorded, or None while the run is not done."""
        return self._json("result.json") if self.status() == "done" else None

    def take_over(self, other: "RunFolder", config: dict[str, Any], source: str | None = None) -> None:
        """Copy a finished run, its result last. What was begun here is given up.

        Args:
            config: what the run is here.
            source: where it was trained, if that is not here; else what `other` says of that.
        """
        self.store.delete(self.key)
        self.start(config)
        own = {f"{other.key}/{name}" for name in ("config.json", *([SOURCE] if source else []))}
        if source:
            self.store.write(f"{self.key}/{SOURCE}", to_json({"from": source}))
        keys = [key for key in other.store.list(other.key) if key not in own]
        for key in sorted(keys, key=lambda key: key == f"{other.key}/result.json"):
            self.store.write(self.key + key.removeprefix(other.key), other.store.read(key))

    def source(self) -> str | None:
        """Where the run was trained, if it was taken over from another study."""
        return self._json(SOURCE)["from"] if self.store.exists(f"{self.key}/{SOURCE}") else None

    # Metrics.

    def append(
        self,
        start: int,
        end: int,
        series: Mapping[str, tuple[ArrayLike, ArrayLike]],
        times: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
    ) -> None:
        """Store what was measured from step `start` to step `end` (both included, as far as they have points).

        Args:
            start, end: where the segment before ended, and where this one does. A checkpoint may lie at either,
                not in between.
            series: `(step, value)` by metric, steps increasing, also from one segment to the next.
            times: the same for wall times, which are kept apart because they differ from one execution to the next.

        Raises:
            UserError: the segment is stored with other numbers.
        """
        name = metrics.segment_name(start, end)
        if times:
            self.store.write(f"{self.key}/times/{name}", metrics.to_segment(start, end, times), replace=True)
        self.store.write(f"{self.key}/metrics/{name}", metrics.to_segment(start, end, series))

    def metrics(self) -> dict[str, Series]:
        """Everything measured so far, by metric, in step order.

        Raises:
            UserError: a segment is damaged, overlaps another or does not join it.
        """
        return self._series("metrics")

    def times(self) -> dict[str, Series]:
        """Everything timed so far, as `metrics`."""
        return self._series("times")

    def truncate(self, step: int) -> None:
        """Forget what lies behind `step`, to go on from a checkpoint taken there."""
        for kind in ("metrics", "times"):
            self._delete_behind(step, kind, lambda key: metrics.bounds(key)[1])
        self._delete_behind(step, "samples", _step)
        for later in [found for found in self.checkpoints() if found > step]:
            self.store.delete(f"{self.key}/checkpoints/{later}")

    def write_evaluation(self, sums: Mapping[str, ArrayLike]) -> None:
        """Store sums over the blocks of evaluation sets, `(blocks,)` by `split/what`, as the trained model has them."""
        series = {name: (range(len(values)), values) for name, values in sums.items()}  # pyright: ignore[reportArgumentType]
        last = max((len(steps) for steps, _ in series.values()), default=1) - 1
        self.store.write(f"{self.key}/evaluation.json", metrics.to_segment(0, last, series), replace=True)

    def evaluation(self) -> dict[str, NDArray[np.float64]]:
        """What `write_evaluation` stored; nothing before.

        Raises:
            UserError: the file is damaged.
        """
        key = f"{self.key}/evaluation.json"
        if not self.store.exists(key):
            return {}
        return {name: s.value for name, s in metrics.from_segment(self.store.read(key), self.store.where(key)).items()}

    # Samples, checkpoints, the model.

    def write_sample(self, step: int, text: str) -> None:
        """Store a text that the model made after `step` updates."""
        self.store.write(f"{self.key}/samples/{step}.txt", text.encode(), replace=True)

    def samples(self) -> dict[int, str]:
        """Stored texts by step, in order."""
        keys = {_step(key): key for key in self.store.list(f"{self.key}/samples")}
        return {step: self.store.read(keys[step]).decode() for step in sorted(keys)}

    def write_checkpoint(self, step: int, files: Mapping[str, bytes]) -> None:
        """Store the model as it was after `step` updates: file names with their content."""
        self._write_files(f"checkpoints/{step}", files)

    def checkpoints(self) -> list[int]:
        """Steps that have a checkpoint, in order."""
        folder = f"{self.key}/checkpoints/"
        return sorted({_step(key.removeprefix(folder).split("/")[0]) for key in self.store.list(folder[:-1])})

    def read_checkpoint(self, step: int) -> dict[str, bytes]:
        """What `write_checkpoint` stored. Empty when there is none."""
        return self._read_files(f"checkpoints/{step}")

    def write_model(self, files: Mapping[str, bytes]) -> None:
        """Store the trained model: `model.safetensors`, `tokenizer.json`, `config.json`."""
        self._write_files("model", files)

    def read_model(self) -> dict[str, bytes]:
        """What `write_model` stored. Empty when there is none."""
        return self._read_files("model")

    def _json(self, name: str) -> dict[str, Any]:
        key = f"{self.key}/{name}"
        return from_json(self.store.read(key), self.store.where(key))

    def _series(self, kind: str) -> dict[str, Series]:
        keys = sorted(self.store.list(f"{self.key}/{kind}"), key=metrics.bounds)
        reached = 0
        for key in keys:
            start, end = metrics.bounds(key)
            remedy = "delete the run's folder to train it again"
            if start < reached:
                raise UserError("this segment overlaps the one before", file=self.store.where(key), remedy=remedy)
            if start > reached and kind == "metrics":  # a process may end before it has times to store
                problem = f"the metrics from step {reached} to {start} are missing"
                file = self.store.where(f"{self.key}/{kind}")
                raise UserError(problem, file=file, remedy=f"restore them from a copy, or {remedy}")
            reached = end
        return metrics.joined(metrics.from_segment(self.store.read(key), self.store.where(key)) for key in keys)

    def _delete_behind(self, step: int, kind: str, position: Callable[[str], int]) -> None:
        for key in self.store.list(f"{self.key}/{kind}"):
            if position(key) > step:
                self.store.delete(key)

    def _write_files(self, name: str, files: Mapping[str, bytes]) -> None:
        for file, data in files.items():
            self.store.write(f"{self.key}/{name}/{file}", data, replace=True)

    def _read_files(self, name: str) -> dict[str, bytes]:
        folder = f"{self.key}/{name}"
        return {key.removeprefix(f"{folder}/"): self.store.read(key) for key in self.store.list(folder)}


def _step(key: str) -> int:
    """The step a file or folder is named after: `.../samples/100.txt` -> 100."""
    name = key.rpartition("/")[2]
    step = name.removesuffix(".txt")
    if not step.isdecimal():
        raise UserError(f"{name!r} is not named after a step", file=key, remedy="move it out of the run's folder")
    return int(step)
