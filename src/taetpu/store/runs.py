"""The folder of one run: what it was, its metrics, samples and checkpoints, the model, and last of all its result."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taetpu.core.errors import UserError
from taetpu.store import metrics
from taetpu.store.backend import Store
from taetpu.store.digests import Damaged, digest, seal, unseal
from taetpu.store.documents import RETRAIN, finite, to_json
from taetpu.store.metrics import Series
from taetpu.store.names import NotStored

Status = Literal["absent", "started", "done"]

SOURCE = "reused.json"  # of a run that was trained elsewhere
REMEDIES = {"metrics": RETRAIN, "times": "delete it: no result depends on wall times, and gaps in them are allowed"}
RESULT, FILES, METRICS = "result.json", "files", "metrics"


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
    known: dict[str, dict[str, Any]] = field(default_factory=dict, compare=False, repr=False)
    """Sizes and digests of files that this process has written or verified, by their names in the folder."""

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
        if not self.store.exists(f"{self.key}/config.json") or self.config() != json.loads(to_json(config)):
            self._put("config.json", seal(config))

    def config(self) -> dict[str, Any]:
        """What `start` recorded. Raises `NotStored`, and `Damaged` where the file is not what was written."""
        return self._document("config.json")

    def finish(self, result: dict[str, Any]) -> None:
        """Record the result, which makes the run done; call it after everything else is written.

        It is stored with the digests of all other files of the run but its wall times, and of itself. NaN and
        infinities are stored as null. Again with the same result is fine.

        Raises:
            UserError: another result is recorded here.
        """
        files = {name: about for name, about in self.digests().items() if not name.startswith("metrics/")}
        keys = self._segments("metrics")
        end = metrics.segment_bounds(keys[-1])[1] if keys else 0
        # Of what they say, since how they are cut into segments depends on when a run was stopped.
        files[METRICS] = {"end": end, "digest": metrics.content_digest(self.metrics())}
        self.store.write(f"{self.key}/{RESULT}", seal({**finite(result), FILES: files}))

    def result(self) -> dict[str, Any] | None:
        """What `finish` recorded, or None while the run is not done. Raises `Damaged`."""
        if self.status() != "done":
            return None
        found = self._document(RESULT)
        return {name: value for name, value in found.items() if name != FILES} if isinstance(found, dict) else found

    # Is it what was written?

    def digests(self) -> dict[str, dict[str, Any]]:
        """Size and digest of every file but the result and wall times, by its name in the folder."""
        start = f"{self.key}/"
        names = [key.removeprefix(start) for key in self.store.list(self.key)]
        return {name: self.known.get(name) or self._read_digest(name) for name in names if _vouched(name)}

    def verify_files(self, stated: Mapping[str, Mapping[str, Any]]) -> None:
        """Compare files with their digests.

        Args:
            stated: what `digests` gave, of all files or some.

        Raises:
            Damaged: a file is missing or differs.
        """
        for name, about in stated.items():
            self._verify(name, about, contents=True)

    def find_damage(self, contents: bool = True) -> list[str]:
        """What of a finished run is not as it was written, a line for each file; of what has no digests, nothing.

        Args:
            contents: read every file. Otherwise the result and the config are read, and of all other files it is
                checked that they exist and have the right size.

        Raises:
            UserError: the place cannot be read.
        """
        checks: list[Callable[[], Any]] = [self.config]
        try:
            found = self._document(RESULT)
            if not isinstance(found, dict) or "outcome" not in found:
                file = self.store.where(f"{self.key}/{RESULT}")
                raise Damaged("this is not the result of a run", file=file, remedy=RETRAIN)
            stated = found.get(FILES, {})
            checks += [partial(self._verify, name, about, contents) for name, about in stated.items()]
        except Damaged as error:
            checks.append(partial(_raise, error))
        problems = []
        for check in checks:
            try:
                check()
            except (Damaged, NotStored) as error:
                problems.append(f"{error.file}: {error.problem}")
        return problems

    def _verify(self, name: str, about: Mapping[str, Any], contents: bool) -> None:
        if name == METRICS:
            self._verify_metrics(about, contents)
            return
        key = f"{self.key}/{name}"
        size = self.store.size(key)
        if size is None:
            raise Damaged("this file is missing", file=self.store.where(key), remedy=RETRAIN)
        if size != about["bytes"] or (contents and self._read_digest(name) != about):
            problem = "the content of this file does not match its checksum"
            raise Damaged(problem, file=self.store.where(key), remedy=RETRAIN)

    def _verify_metrics(self, about: Mapping[str, Any], contents: bool) -> None:
        """The names of segments say which steps they hold, without reading them."""
        keys, folder = self._segments("metrics"), self.store.where(f"{self.key}/metrics")
        end = metrics.segment_bounds(keys[-1])[1] if keys else 0
        if end != about["end"]:
            problem = f"the metrics end at step {end}, and the result was written at step {about['end']}"
            raise Damaged(problem, file=folder, remedy=RETRAIN)
        if contents and metrics.content_digest(self.metrics()) != about["digest"]:
            raise Damaged("the metrics are not those of the result", file=folder, remedy=RETRAIN)

    def _read_digest(self, name: str) -> dict[str, Any]:
        data = self.store.read(f"{self.key}/{name}")
        self.known[name] = {"bytes": len(data), "digest": digest(data)}
        return self.known[name]

    def _put(self, name: str, data: bytes, replace: bool = False) -> None:
        self.store.write(f"{self.key}/{name}", data, replace=replace)
        self.known[name] = {"bytes": len(data), "digest": digest(data)}

    def copy_from(self, other: "RunFolder", config: dict[str, Any], source: str | None = None) -> None:
        """Copy a finished run, its result last. What was begun here is given up.

        Args:
            config: what the run is here.
            source: where it was trained, if that is not here; else what `other` says of that.
        """
        self.store.delete(self.key)
        self.known.clear()
        self.start(config)
        own = {f"{other.key}/{name}" for name in ("config.json", *([SOURCE] if source else []))}
        if source:
            self._put(SOURCE, seal({"from": source}))
        keys = [key for key in other.store.list(other.key) if key not in own]
        for key in sorted(keys, key=lambda key: key == f"{other.key}/result.json"):
            self.store.write(self.key + key.removeprefix(other.key), other.store.read(key))

    def origin(self) -> str | None:
        """Where the run was trained, if it was taken over from another study."""
        return self._document(SOURCE)["from"] if self.store.exists(f"{self.key}/{SOURCE}") else None

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
            self.store.write(f"{self.key}/times/{name}", metrics.encode_segment(start, end, times), replace=True)
        self._put(f"metrics/{name}", metrics.encode_segment(start, end, series))

    def metrics(self) -> dict[str, Series]:
        """Everything measured so far, by metric, in step order.

        Raises:
            UserError: a segment is damaged, overlaps another or does not join it.
        """
        return self._series("metrics")

    def has_metrics(self) -> bool:
        """Is any segment of metrics stored?"""
        return bool(self.store.list(f"{self.key}/metrics"))

    def times(self) -> dict[str, Series]:
        """Everything timed so far, as `metrics`."""
        return self._series("times")

    def truncate(self, step: int) -> None:
        """Forget what lies behind `step`, to go on from a checkpoint taken there."""
        for kind in ("metrics", "times"):
            self._delete_behind(step, kind, lambda key: metrics.segment_bounds(key)[1])
        self._delete_behind(step, "samples", _step)
        for later in [found for found in self.checkpoints() if found > step]:
            self.store.delete(f"{self.key}/checkpoints/{later}")

    def write_evaluation(self, sums: Mapping[str, ArrayLike]) -> None:
        """Store sums over the blocks of evaluation sets, `(blocks,)` by `split/what`, as the trained model has them."""
        series = {name: (range(len(values)), values) for name, values in sums.items()}  # pyright: ignore[reportArgumentType]
        last = max((len(steps) for steps, _ in series.values()), default=1) - 1
        self._put("evaluation.json", metrics.encode_segment(0, last, series), replace=True)

    def has_evaluation(self) -> bool:
        """Whether the trained model was evaluated, which is done right before its result is written."""
        return self.store.exists(f"{self.key}/evaluation.json")

    def evaluation(self) -> dict[str, NDArray[np.float64]]:
        """What `write_evaluation` stored; nothing before.

        Raises:
            UserError: the file is damaged.
        """
        key = f"{self.key}/evaluation.json"
        if not self.store.exists(key):
            return {}
        series = metrics.decode_segment(self.store.read(key), self.store.where(key))
        return {name: one.value for name, one in series.items()}

    # Samples, checkpoints, the model.

    def write_sample(self, step: int, text: str) -> None:
        """Store a text that the model made after `step` updates."""
        self._put(f"samples/{step}.txt", text.encode(), replace=True)

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

    def _document(self, name: str) -> Any:
        key = f"{self.key}/{name}"
        return unseal(self.store.read(key), self.store.where(key), RETRAIN)

    def _series(self, kind: str) -> dict[str, Series]:
        return metrics.join_segments(
            metrics.decode_segment(self.store.read(key), self.store.where(key), REMEDIES[kind])
            for key in self._segments(kind)
        )

    def _segments(self, kind: str) -> list[str]:
        """The keys of segments in the order of their steps.

        Raises:
            Damaged: one overlaps another, or is missing.
        """
        keys = sorted(self.store.list(f"{self.key}/{kind}"), key=metrics.segment_bounds)
        reached = 0
        for key in keys:
            start, end = metrics.segment_bounds(key)
            if start < reached:
                raise Damaged("this segment overlaps the one before", file=self.store.where(key), remedy=REMEDIES[kind])
            if start > reached and kind == "metrics":  # a process may end before it has times to store
                problem = f"the metrics from step {reached} to {start} are missing"
                raise Damaged(problem, file=self.store.where(f"{self.key}/{kind}"), remedy=RETRAIN)
            reached = end
        return keys

    def _delete_behind(self, step: int, kind: str, position: Callable[[str], int]) -> None:
        for key in self.store.list(f"{self.key}/{kind}"):
            if position(key) > step:
                self.store.delete(key)

    def _write_files(self, name: str, files: Mapping[str, bytes]) -> None:
        for file, data in files.items():
            self._put(f"{name}/{file}", data, replace=True)

    def _read_files(self, name: str) -> dict[str, bytes]:
        folder = f"{self.key}/{name}"
        return {key.removeprefix(f"{folder}/"): self.store.read(key) for key in self.store.list(folder)}


def _vouched(name: str) -> bool:
    """Is the digest of a file stored with the result? The config and the source hold their own."""
    return name not in ("config.json", SOURCE, RESULT) and not name.startswith("times/")


def _raise(error: Damaged) -> NoReturn:
    raise error


def _step(key: str) -> int:
    """The step a file or folder is named after: `.../samples/100.txt` -> 100."""
    name = key.rpartition("/")[2]
    step = name.removesuffix(".txt")
    if not step.isdecimal():
        raise UserError(f"{name!r} is not named after a step", file=key, remedy="move it out of the run's folder")
    return int(step)
