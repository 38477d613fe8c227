"""The folder of one run: its config, metrics, samples, checkpoints, model and result. The result is written last.

Post-hoc ablation tables are added to a finished run. The digests in its result do not include them. The result and the
tables name the run that they belong to, by ID and seed.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taetpu.core.errors import UserError
from taetpu.store import metrics
from taetpu.store.backend import Store
from taetpu.store.digests import Damaged, digest, seal, unseal
from taetpu.store.documents import DAMAGED, RETRAIN, finite, to_json
from taetpu.store.errors import NotStored
from taetpu.store.metrics import Series

Status = Literal["absent", "started", "done"]

SOURCE = "reused.json"  # names the study from which a run was copied
COPYING = "copying"  # exists while a run is copied
REMEDIES = {"metrics": RETRAIN, "times": "Delete the file. It contains only wall times, on which no result depends."}
RESULT, FILES, METRICS = "result.json", "files", "metrics"
OWNER = "run"
"""The key under which a document stores the ID and the seed of its run. Earlier versions did not store it."""
SEALED_SCHEMA = 3
"""The first schema (see `core.identity`) recorded in `config.json`. Versions that record one write digests."""
POST_HOC = "post_hoc"
"""The folder of post-hoc ablation tables."""


@dataclass(frozen=True)
class RunFolder:
    """The folder `<study>/runs/<arm>/<seed>-<id>/` of the run of one arm with one seed.

    A run is done if and only if `result.json` exists. Until then, all other files may be rewritten.
    """

    store: Store = field(repr=False)
    study: str
    arm: str
    seed: int
    id: str
    """The first 8 characters of the run's identity."""
    known: dict[str, dict[str, Any]] = field(default_factory=dict, compare=False, repr=False)
    """Sizes and digests of the files that this process has written or verified, by file name."""

    @property
    def key(self) -> str:
        """The key of the folder."""
        return f"{self.study}/runs/{self.arm}/{self.seed}-{self.id}"

    @property
    def where(self) -> str:
        """The path or address of the folder, for display."""
        return self.store.where(self.key)

    def status(self) -> Status:
        """Return whether the run is absent, started or done."""
        if self.store.exists(f"{self.key}/result.json"):
            return "done"
        return "started" if self.store.exists(f"{self.key}/config.json") else "absent"

    # Config and result.

    def start(self, config: dict[str, Any]) -> None:
        """Write the run's config. Writing the same config again has no effect.

        Raises:
            UserError: if another config is stored.
        """
        if not self.store.exists(f"{self.key}/config.json") or self.config() != json.loads(to_json(config)):
            self._put("config.json", seal(config))

    def config(self) -> dict[str, Any]:
        """Return the config that `start` wrote.

        Raises:
            NotStored: if the run was not started.
            Damaged: if the file of the config is damaged.
        """
        return self._document("config.json", _records_seals)

    def finish(self, result: dict[str, Any]) -> None:
        """Write the result, which marks the run as done. Call this method after all other files have been written.

        The document contains the digests of all files that are listed by `digests`, and the digest of its own content.
        NaN and infinities are stored as null. Writing the same result again has no effect.

        Raises:
            UserError: if a different result is stored.
        """
        files = {name: about for name, about in self.digests().items() if not name.startswith("metrics/")}
        keys = self._segments("metrics")
        end = metrics.segment_bounds(keys[-1])[1] if keys else 0
        # The digest is computed from the values, because the segments' boundaries depend on when a run is interrupted.
        files[METRICS] = {"end": end, "digest": metrics.content_digest(self.metrics())}
        self.store.write(f"{self.key}/{RESULT}", seal({**finite(result), FILES: files, OWNER: self._owner}))

    def result(self) -> dict[str, Any] | None:
        """Return the result that `finish` wrote; None if the run is not done.

        Raises:
            Damaged: if the file of the result is damaged.
        """
        if self.status() != "done":
            return None
        result = self._result()
        return {name: value for name, value in result.items() if name != FILES} if isinstance(result, dict) else result

    # Integrity.

    def digests(self) -> dict[str, dict[str, Any]]:
        """Return the sizes and digests of all files except the config, origin, result and wall times, by file name."""
        start = f"{self.key}/"
        names = [key.removeprefix(start) for key in self.store.list(self.key)]
        return {name: self.known.get(name) or self._read_digest(name) for name in names if _has_digest(name)}

    def verify_files(self, stated: Mapping[str, Mapping[str, Any]]) -> None:
        """Verify files by their sizes and digests.

        Args:
            stated: the sizes and digests by file name, as returned by `digests`. Only these files are verified.

        Raises:
            Damaged: if a file is missing or differs from its digest.
        """
        for name, about in stated.items():
            self._verify(name, about, contents=True)

    def find_damage(self, contents: bool = True) -> list[str]:
        """Return one line for each damaged file of a finished run. Files without digests are not checked.

        Args:
            contents: whether to read every file. If False, only the result and the config are read, and the other files
                are checked for existence and size.

        Raises:
            UserError: if the store cannot be read.
        """
        problems = list[UserError]()
        stated: dict[str, Any] = {}
        try:
            result = self._result()
            if not isinstance(result, dict) or "outcome" not in result:
                file = self.store.where(f"{self.key}/{RESULT}")
                raise Damaged("this is not the result of a run", file=file, remedy=RETRAIN)
            stated = result.get(FILES, {})
        except Damaged as error:
            problems.append(error)
        for check in (self.config, *(partial(self._verify, name, about, contents) for name, about in stated.items())):
            try:
                check()
            except (Damaged, NotStored) as error:
                problems.append(error)
        return [f"{error.file}: {error.problem}" for error in problems]

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
        """Verify the last step by the segments' names. If `contents` is set, verify the digest of the values too."""
        keys, folder = self._segments("metrics"), self.store.where(f"{self.key}/metrics")
        end = metrics.segment_bounds(keys[-1])[1] if keys else 0
        if end != about["end"]:
            problem = f"the metrics end at step {end}, but the result was written at step {about['end']}"
            raise Damaged(problem, file=folder, remedy=RETRAIN)
        if contents and metrics.content_digest(self.metrics()) != about["digest"]:
            raise Damaged("the metrics do not match the digest in the result", file=folder, remedy=RETRAIN)

    def _read_digest(self, name: str) -> dict[str, Any]:
        data = self.store.read(f"{self.key}/{name}")
        self.known[name] = {"bytes": len(data), "digest": digest(data)}
        return self.known[name]

    def _put(self, name: str, data: bytes, replace: bool = False) -> None:
        self.store.write(f"{self.key}/{name}", data, replace=replace)
        self.known[name] = {"bytes": len(data), "digest": digest(data)}

    def copy_from(self, other: "RunFolder", config: dict[str, Any], source: str | None = None) -> None:
        """Replace this run with a copy of a finished run. The result is copied last.

        If the process is killed in between, the run `is_partial_copy`.

        Args:
            other: the run to copy.
            config: the config of the copy.
            source: the study in which `other` was trained, stored as the copy's origin. By default, the origin of
                `other` (if any) is copied.
        """
        self.store.delete(self.key)
        self.known.clear()
        self.store.write(f"{self.key}/{COPYING}", b"")
        self.start(config)
        replaced = {f"{other.key}/{name}" for name in ("config.json", *([SOURCE] if source else []))}
        if source:
            self._put(SOURCE, seal({"from": source}))
        keys = [key for key in other.store.list(other.key) if key not in replaced]
        for key in sorted(keys, key=lambda key: key == f"{other.key}/result.json"):
            self.store.write(self.key + key.removeprefix(other.key), other.store.read(key))
        self.store.delete(f"{self.key}/{COPYING}")

    def is_partial_copy(self) -> bool:
        """Return whether copying the run has begun and not ended."""
        return self.store.exists(f"{self.key}/{COPYING}")

    def origin(self) -> str | None:
        """Return the study from which the run was copied; None if the run was not copied from another study."""
        return self._document(SOURCE)["from"] if self.store.exists(f"{self.key}/{SOURCE}") else None

    # Metrics.

    def append(
        self,
        start: int,
        end: int,
        series: Mapping[str, tuple[ArrayLike, ArrayLike]],
        times: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
    ) -> None:
        """Store the metrics from step `start` to step `end`.

        Args:
            start: the last step of the previous segment.
            end: the last step of this segment. Checkpoints are taken only at the end of a segment.
            series: a pair of arrays `(step, value)` for each metric name. Steps increase within and across segments.
            times: wall times in the same form, stored separately because they differ between executions.

        Raises:
            UserError: if the segment is already stored with other values.
        """
        name = f"{start}-{end}.json"
        if times:
            self.store.write(f"{self.key}/times/{name}", metrics.encode_segment(start, end, times), replace=True)
        self._put(f"metrics/{name}", metrics.encode_segment(start, end, series))

    def metrics(self) -> dict[str, Series]:
        """Return the stored series of all metrics by name.

        Raises:
            Damaged: if a segment is damaged or missing, or overlaps another segment.
        """
        return self._series("metrics")

    def times(self) -> dict[str, Series]:
        """Return the stored series of all wall times by name. Unlike metrics, wall times may have gaps."""
        return self._series("times")

    def truncate(self, step: int) -> None:
        """Delete metrics, wall times, samples and checkpoints after `step`, before training resumes from `step`."""
        for kind in ("metrics", "times"):
            self._delete_after(step, kind, lambda key: metrics.segment_bounds(key)[1])
        self._delete_after(step, "samples", _step)
        for later in [known for known in self.checkpoints() if known > step]:
            self.store.delete(f"{self.key}/checkpoints/{later}")

    def write_evaluation(self, sums: Mapping[str, ArrayLike]) -> None:
        """Store the sums of the trained model's metrics over each block of the evaluation splits.

        Args:
            sums: an array of shape `(blocks,)` for each `split/name`.
        """
        series = {name: (range(len(values)), values) for name, values in sums.items()}  # pyright: ignore[reportArgumentType]
        last = max((len(steps) for steps, _ in series.values()), default=1) - 1
        self._put("evaluation.json", metrics.encode_segment(0, last, series), replace=True)

    def has_evaluation(self) -> bool:
        """Return whether the trained model's evaluation is stored. The evaluation is written before the result."""
        return self.store.exists(f"{self.key}/evaluation.json")

    def evaluation(self) -> dict[str, NDArray[np.float64]]:
        """Return the sums that `write_evaluation` stored; empty if no evaluation is stored.

        Raises:
            Damaged: if the file of the evaluation is damaged.
        """
        key = f"{self.key}/evaluation.json"
        if not self.store.exists(key):
            return {}
        series = metrics.decode_segment(self.store.read(key), self.store.where(key))
        return {name: sums.value for name, sums in series.items()}

    # Samples, checkpoints, the model.

    def write_sample(self, step: int, text: str) -> None:
        """Store a text that the model generated after `step` updates."""
        self._put(f"samples/{step}.txt", text.encode(), replace=True)

    def samples(self) -> dict[int, str]:
        """Return the texts of the stored samples by step, in increasing order of steps."""
        keys = {_step(key): key for key in self.store.list(f"{self.key}/samples")}
        return {step: self.store.read(keys[step]).decode() for step in sorted(keys)}

    def write_checkpoint(self, step: int, files: Mapping[str, bytes]) -> None:
        """Store the model after `step` updates, given as file contents by file name."""
        self._write_files(f"checkpoints/{step}", files)

    def checkpoints(self) -> list[int]:
        """Return the steps for which a checkpoint is stored, in increasing order."""
        folder = f"{self.key}/checkpoints/"
        return sorted({_step(key.removeprefix(folder).split("/")[0]) for key in self.store.list(folder[:-1])})

    def read_checkpoint(self, step: int) -> dict[str, bytes]:
        """Return the files that `write_checkpoint` stored, by name; empty if no checkpoint is stored for this step."""
        return self._read_files(f"checkpoints/{step}")

    def write_model(self, files: Mapping[str, bytes]) -> None:
        """Store the trained model, given as file contents by file name.

        The files are `model.safetensors`, `tokenizer.json` and `config.json`.
        """
        self._write_files("model", files)

    def read_model(self) -> dict[str, bytes]:
        """Return the files that `write_model` stored, by name; empty if no model is stored.

        Raises:
            Damaged: if a file of a finished run differs from the digest in its result.
        """
        files = self._read_files("model")
        result = self._result() if self.status() == "done" else None
        stated = result.get(FILES, {}) if isinstance(result, dict) else {}
        for name, data in files.items():
            about = stated.get(f"model/{name}")
            if about is not None and about["digest"] != digest(data):
                file = self.store.where(f"{self.key}/model/{name}")
                raise Damaged("the content of this file does not match its checksum", file=file, remedy=RETRAIN)
        return files

    # Post-hoc ablation tables, which are computed after the run is done.

    def write_post_hoc(self, name: str, table: Mapping[str, Any]) -> None:
        """Store the post-hoc ablation table with a name, replacing an earlier one. NaN and infinities become null."""
        self.store.write(self.post_hoc_key(name), seal({**finite(dict(table)), OWNER: self._owner}), replace=True)

    def read_post_hoc(self, name: str) -> dict[str, Any] | None:
        """Return the post-hoc ablation table that `write_post_hoc` stored; None if no table is stored.

        Raises:
            Damaged: if the file of the table is damaged, or belongs to another run.
        """
        key = self.post_hoc_key(name)
        try:
            data = self.store.read(key)
        except NotStored:
            return None
        table = self._without_owner(unseal(data, self.store.where(key), required=lambda table: True), key, DAMAGED)
        if not isinstance(table, dict):
            problem = f"a post-hoc ablation table must be a mapping, got {type(table).__name__}"
            raise Damaged(problem, file=self.store.where(key), remedy=DAMAGED)
        return table

    def post_hoc_key(self, name: str) -> str:
        """Return the key of the post-hoc ablation table with a name."""
        return f"{self.key}/{POST_HOC}/knockout-{name}.json"

    def post_hoc_tables(self) -> list[str]:
        """Return the names of the stored post-hoc ablation tables."""
        names = (key.rpartition("/")[2] for key in self.store.list(f"{self.key}/{POST_HOC}"))
        return [name.removeprefix("knockout-").removesuffix(".json") for name in names]

    @property
    def _owner(self) -> dict[str, Any]:
        return {"id": self.id, "seed": self.seed}

    def _without_owner(self, document: Any, key: str, remedy: str) -> Any:
        """Return a document without its owner. Raises `Damaged` if the owner is another run."""
        owner = document.pop(OWNER, self._owner) if isinstance(document, dict) else self._owner
        if owner != self._owner:
            other = f"{owner.get('id')} with seed {owner.get('seed')}" if isinstance(owner, dict) else repr(owner)
            problem = f"this file belongs to run {other}, but the run of its folder is {self.id} with seed {self.seed}"
            raise Damaged(problem, file=self.store.where(key), remedy=remedy)
        return document

    def _result(self) -> Any:
        """Return the document of the result, with the digests of the run's files."""

        def required(document: Any) -> bool:
            try:
                return _records_seals(self.config())
            except NotStored:
                return False

        return self._without_owner(self._document(RESULT, required), f"{self.key}/{RESULT}", RETRAIN)

    def _document(self, name: str, required: Callable[[Any], bool] = lambda document: False) -> Any:
        key = f"{self.key}/{name}"
        return unseal(self.store.read(key), self.store.where(key), RETRAIN, required)

    def _series(self, kind: str) -> dict[str, Series]:
        return metrics.join_segments(
            metrics.decode_segment(self.store.read(key), self.store.where(key), REMEDIES[kind])
            for key in self._segments(kind)
        )

    def _segments(self, kind: str) -> list[str]:
        """Return the keys of the segments of metrics or wall times, in the order of their steps.

        Raises:
            Damaged: if a segment of metrics is missing, or a segment overlaps the previous segment.
        """
        keys = sorted(self.store.list(f"{self.key}/{kind}"), key=metrics.segment_bounds)
        reached = 0
        for key in keys:
            start, end = metrics.segment_bounds(key)
            if start < reached:
                problem = "this segment overlaps the previous one"
                raise Damaged(problem, file=self.store.where(key), remedy=REMEDIES[kind])
            # Wall times may have gaps, because a process can end before it stores them.
            if start > reached and kind == "metrics":
                problem = f"the metrics from step {reached} to {start} are missing"
                raise Damaged(problem, file=self.store.where(f"{self.key}/{kind}"), remedy=RETRAIN)
            reached = end
        return keys

    def _delete_after(self, step: int, kind: str, position: Callable[[str], int]) -> None:
        for key in self.store.list(f"{self.key}/{kind}"):
            if position(key) > step:
                self.store.delete(key)

    def _write_files(self, name: str, files: Mapping[str, bytes]) -> None:
        for file, data in files.items():
            self._put(f"{name}/{file}", data, replace=True)

    def _read_files(self, name: str) -> dict[str, bytes]:
        folder = f"{self.key}/{name}"
        return {key.removeprefix(f"{folder}/"): self.store.read(key) for key in self.store.list(folder)}


def _records_seals(config: Any) -> bool:
    """Return whether a run's config records a schema whose versions write digests."""
    schema = config.get("schema") if isinstance(config, dict) else None
    return isinstance(schema, int) and schema >= SEALED_SCHEMA


def _has_digest(name: str) -> bool:
    """Return whether the result contains the file's digest.

    The config, the origin and post-hoc tables contain their own digests.
    """
    return name not in ("config.json", SOURCE, RESULT) and not name.startswith(("times/", f"{POST_HOC}/"))


def _step(key: str) -> int:
    """Return the step in the name of a file or folder. For example, the step in `.../samples/100.txt` is 100."""
    name = key.rpartition("/")[2]
    step = name.removesuffix(".txt")
    if not step.isdecimal():
        raise UserError(f"{name!r} is not named after a step", file=key, remedy="Move it out of the run's folder.")
    return int(step)
