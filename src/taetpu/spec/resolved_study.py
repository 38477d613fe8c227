"""A loaded study: its resolved arms, its runs, and the changes of an arm."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from taetpu.core.config import fields_at_default, iter_components, to_data
from taetpu.core.errors import ErrorList, UserError, change_errors, locate_errors
from taetpu.core.identity import SCHEMA, canonical_json
from taetpu.core.model_interface import Interface
from taetpu.core.notebook_html import paragraph, table
from taetpu.core.plugins import Plugin, attribute_errors
from taetpu.core.short_repr import shorten_value
from taetpu.data.base import Source
from taetpu.data.finite_values import check_finite
from taetpu.data.items.item_set import ItemSet
from taetpu.data.tokenizers.files import StartTokenizerConfig
from taetpu.nn.named_arrays import output_parameters, position_parameters, vocabulary_parameters
from taetpu.optim.eval_metrics.item_scores import item_scores
from taetpu.spec.differences import Diff, changes
from taetpu.spec.document import format_brief
from taetpu.spec.error_places import Origins
from taetpu.spec.eval_sample import Sample, check_lengths
from taetpu.spec.loaded_study import LoadedStudy
from taetpu.spec.measure import TaskMeasure
from taetpu.spec.run_ids import plugin_sources, run_ids
from taetpu.spec.start import SEED, Convert, StartConfig, StoredModel, StoredParameters, read_start
from taetpu.spec.study_config import ResolvedConfig, RunConfig
from taetpu.spec.unresolved_arms import Stage
from taetpu.store.frozen_study import PostHocSettings, Role

RunKey = tuple[str, int, str]
"""The arm, seed and ID of a run."""


@dataclass(frozen=True)
class RunSpec:
    """A run of an arm with a seed.

    Attributes:
        id: The identity of the run (see `spec.run_ids`).
        data: The fingerprint of the run's task.
        start: The digest of the stored model that the run starts from; empty if its parameters are drawn.
    """

    arm: str
    seed: int
    config: ResolvedConfig
    id: str
    data: str = ""
    start: str = ""

    @property
    def key(self) -> RunKey:
        """The key that identifies the run in pack plans."""
        return self.arm, self.seed, self.id

    def record(self) -> dict[str, Any]:
        """Return the content of the run's `config.json`. The run's identity can be computed from this content."""
        about = {"schema": SCHEMA, "arm": self.arm, "seed": self.seed, "id": self.id, "config": to_data(self.config)}
        about |= {"defaults": fields_at_default(self.config), "data": self.data}
        about |= {"start": self.start} if self.start else {}
        return about | {"plugins": plugin_sources(self.config)}


@dataclass(frozen=True)
class Arm:
    """An arm: the baseline with changes, under a name.

    Attributes:
        name: The name of the arm.
        overrides: The changes as written in the study file. A list of values is replaced by the value for this arm.
        config: The resolved config of the arm.
        diff: The resolved changes, `{path: (baseline's value, arm's value)}`. A slot with a different kind is one
            entry. The path of a change to all layers has no layer number.
        origins: The places of the overrides in the study file.
        crossed: Whether the arm is part of a product of lists, so that single values may equal the baseline's values.
        idle: The overrides that have no effect on the arm's resolved config.
        variants: The resolved config without each override, or None if it is invalid, by path. Empty for an arm with
            one override, and for an arm that is part of a product of lists or derived from another arm.
        role: The arm's role in a design (see `spec.unresolved_arms.Candidate`).
        stage: The origin of the arm (see `spec.unresolved_arms.Stage`).
    """

    name: str
    overrides: dict[str, Any]
    config: ResolvedConfig
    diff: Diff
    origins: Origins
    crossed: bool = False
    idle: tuple[str, ...] = ()
    role: Role = field(default_factory=Role)
    stage: Stage = "written"
    variants: Mapping[str, ResolvedConfig | None] = field(default_factory=dict, repr=False, compare=False)

    @property
    def change(self) -> str:
        """The arm's changes to the baseline on one line; empty for the baseline."""
        return ", ".join(
            f"{path}: {format_brief(old)} -> {format_brief(new)}"
            for path, (old, new) in {**self.diff, **self._field_changes()}.items()
        )

    def _field_changes(self) -> Diff:
        """Return the changes of the fields that a slot's old and new component have in common."""
        fields: Diff = {}
        for path, (old, new) in self.diff.items():
            if isinstance(old, Mapping) and isinstance(new, Mapping):
                for name in [name for name in old if name in new and name != "kind"]:
                    fields |= changes(old[name], new[name], (path, name))
        return fields

    @property
    def resets(self) -> Diff:
        """The changes of fields that follow from replacing a slot, in the form of `diff`.

        A new component has the default of each field that the override does not set. The changes of fields that only
        one of two kinds has are left out.
        """
        fields = self._field_changes()
        resets: Diff = {}
        for path, pair in {**self.diff, **fields}.items():
            slots = {above: value for above, value in self.overrides.items() if path.startswith(f"{above}.")}
            written = [_sets(value, path.removeprefix(f"{above}.").split(".")) for above, value in slots.items()]
            if path not in self.overrides and (path in fields or slots) and not any(written):
                resets[path] = pair
        return resets

    def explain(self, error: UserError) -> UserError:
        """Return an error in this arm's config with the place of its cause in the study file."""
        return self.origins.explain(error, len(self.config.model.layers))


class Sources:
    """The prepared tasks of a study. Each task is prepared once.

    Args:
        folder: The folder of the study file. Relative paths in tasks are relative to this folder.
        seed: The seed whose start model has the tokenizer of the task (`tokenizer: start`).
        convert: See `read_start`.
    """

    def __init__(self, folder: Path, seed: int = 0, convert: Convert | None = None):
        self.folder, self.seed, self._convert = folder, seed, convert
        self._known: dict[str, Source] = {}
        self._items: dict[str, ItemSet] = {}
        self._starts: dict[tuple[str, int | None], StoredModel] = {}

    def unread(self) -> "Sources":
        """Return the same tasks in the state before any was prepared, for another process."""
        return Sources(self.folder, self.seed, self._convert)

    def prepare(self, config: ResolvedConfig) -> Source:
        """Return the prepared task of a config. The task is prepared only once.

        Raises:
            UserError: If the task's data is invalid. The error's path is relative to the task.
        """
        task = config.task
        key = canonical_json(to_data(task))
        tokenizer = getattr(task, "tokenizer", None)
        start = _start_of(tokenizer, config.train.start)
        if isinstance(tokenizer, StartTokenizerConfig):
            key += canonical_json(to_data(start))
        if key not in self._known:
            if isinstance(tokenizer, StartTokenizerConfig) and start is not None and not tokenizer.is_read:
                task = task.model_copy(update={"tokenizer": self._with_model(tokenizer, start)})
            with attribute_errors(f"task {task.kind!r} cannot be prepared", iter_components(task)):
                prepared = task.prepare(self.folder)
            if not isinstance(prepared, Source):
                problem = f"prepare of task {task.kind!r} returns an object of type {type(prepared).__name__}"
                raise UserError(problem, remedy="Return a taetpu.data.base.Source.")
            check_lengths(task, prepared)
            check_finite(task, prepared)
            self._known[key] = prepared
        return self._known[key]

    def items(self, config: ResolvedConfig) -> dict[str, ItemSet]:
        """Return the items of each score in `train.eval_metrics`, by name. A file is read once for each tokenizer.

        Raises:
            UserError: If the items are invalid. The error's path is one of the config.
        """
        sets = dict[str, ItemSet]()
        if not (scores := item_scores(config.train.eval_metrics)):
            return sets
        with locate_errors("task"):
            source = self.prepare(config)
        special = source.special_tokens
        if not special and source.tokenizer is not None and (stored := self.start(config, self.seed)):
            special = stored.special_tokens
        for name, score in scores.items():
            key = canonical_json([to_data(score), source.unit, source.seq_len, dict(special)])
            if key not in self._items:
                with locate_errors("train", "eval_metrics", name):
                    self._items[key] = score.prepare(self.folder, source, special)
            sets[name] = self._items[key]
        return sets

    def _with_model(self, tokenizer: StartTokenizerConfig, start: StartConfig) -> StartTokenizerConfig:
        """Return the config of the tokenizer `start` with the tokenizer of the model that runs start from.

        If each seed has a model, it is that of `seed`. Models of other seeds must have an equal one (see `start`).

        Raises:
            UserError: If the model cannot be read, or it has no tokenizer.
        """
        with locate_errors("tokenizer"):
            model = self.read_start(start, self.seed)
            if model.tokenizer is None:
                raise UserError(f"the model in {model.where} has no tokenizer", remedy="Set another tokenizer.")
            size, rows = model.tokenizer.vocab_size, model.vocab_size or 0
            if size > rows > 0 and not tokenizer.crop:
                problem = f"the model in {model.where} has {rows} tokens, but its tokenizer has {size}"
                raise UserError(problem, remedy="Set tokenizer: {kind: start, crop: true}, or another tokenizer.")
        return tokenizer.of_model(model.tokenizer.to_json(), rows)

    def read_start(self, start: StartConfig, seed: int) -> StoredModel:
        """Return the stored model that `start` names for a seed. A file is read once.

        Raises:
            UserError: If the model cannot be read. The error's path is relative to `start`.
        """
        key = f"{start.folder}@{start.revision}", seed if SEED in start.folder else None
        if key not in self._starts:
            self._starts[key] = read_start(start, seed, self.folder, self._convert)
        return self._starts[key]

    def start(self, config: ResolvedConfig, seed: int) -> StoredParameters | None:
        """Return the stored model that a run starts from; None if its parameters are drawn. A file is read once.

        Raises:
            UserError: If the model cannot be read, or its vocabulary is loaded and its tokens are not those of the
                task. The error's path is relative to the run's config.
        """
        start = config.train.start
        if start is None:
            return None
        with locate_errors("task"):
            source = self.prepare(config)
        with locate_errors("train", "start"):
            model = self.read_start(start, seed)
            if start.vocabulary == "loaded":
                model.check_vocabulary(source)
        sizes: tuple[Any, Interface, int] = (config.model, source.interface, source.seq_len)
        with locate_errors("model"):
            positions = position_parameters(*sizes)
            other = model.predicts_tokens != (source.interface.outputs is None)
            leading = output_parameters(*sizes) if other else {}
            drawn = vocabulary_parameters(*sizes) if start.vocabulary == "drawn" else frozenset[str]()
        return StoredParameters(
            model,
            start.folder.replace(SEED, str(seed)),
            drawn=drawn,
            tokens=None if drawn or source.tokenizer is None else source.tokenizer.kept,
            cut=model.positions_to_cut(positions),
            outputs=frozenset(name for name, (shape, _) in leading.items() if model.fits(name, shape)),
        )


def _start_of(tokenizer: Any, start: StartConfig | None) -> StartConfig | None:
    """Return the model whose tokenizer is that of a task: the one that the tokenizer names, else that of the run."""
    if not isinstance(tokenizer, StartTokenizerConfig) or tokenizer.folder is None:
        return start
    return StartConfig(folder=tokenizer.folder, revision=tokenizer.revision)


@dataclass(frozen=True, kw_only=True, repr=False)
class Study(LoadedStudy[Arm]):
    """A resolved study file.

    Attributes:
        folder: The folder of the study file; the current folder for a study from a dictionary.
        base: The baseline's data as written in the study file, with `--set` options applied.
        sources: The prepared tasks. Each task is prepared on first use.
        match: The quantities other than steps by which arms are matched (see `study.matching`).
        tasks: How arms are compared on each task, if they are repeated on several `tasks`.
        pool: How effects are pooled over tasks: `iqm` or `mean`.
    """

    folder: Path
    base: dict[str, Any]
    baseline: RunConfig
    sources: Sources
    plugins: tuple[Plugin, ...] = ()
    match: tuple[str, ...] = ()
    tasks: dict[str, TaskMeasure] = field(default_factory=dict)
    pool: str = ""

    def __repr__(self) -> str:
        """Return the name, the arms, the number of seeds and the primary metric."""
        arms = shorten_value([arm.name for arm in self.arms])
        return f"Study({self.name!r}, arms={arms}, seeds={len(self.seeds)}, primary={self.measure.primary!r})"

    def _repr_html_(self) -> str:
        """Return the arms and their changes as HTML for notebooks."""
        said = f"{len(self.arms)} arms and {len(self.seeds)} seeds, compared by {self.measure.primary}"
        rows = [(arm.name, arm.change) for arm in self.arms]
        return paragraph(said, strong=self.name) + table(("arm", "change"), rows, left=2)

    @property
    def preset(self) -> str | None:
        """The preset of the baseline's model; None if the model has no preset."""
        return self._made_from("preset")

    @property
    def start_model(self) -> StartConfig | None:
        """The model in `model.start`, whose settings the baseline has; None if it names none."""
        start = self._made_from("start")
        return None if start is None else StartConfig.model_validate(start)

    def _made_from(self, name: str) -> Any:
        """Return a setting of the baseline's model that stands for other settings."""
        model = self.document.data.get("base", {}).get("model")
        return model.get(name) if isinstance(model, Mapping) else None

    @property
    def post_hoc(self) -> dict[str, PostHocSettings]:
        """The settings of the post-hoc ablation tables, by the name of the table."""
        return {table.name: to_data(table) for table in self.measure.post_hoc}

    @cached_property
    def identified(self) -> dict[tuple[str, int, int], RunSpec]:
        """The runs whose identity is known, by the name of the arm, the `id` of its config, and the seed."""
        return {}

    def changed(self, **fields: Any) -> Self:
        """Return a copy of the study with the given fields replaced. Prepared tasks and identified runs are shared."""
        new = super().changed(**fields)
        new.__dict__.update(identified=self.identified)
        return new

    def primary_of(self, arm: Arm) -> str:
        """Return the metric by which an arm is compared: that of its task, or that of the study."""
        task = self.tasks.get(arm.role.get("ladder", {"rung": "", "arm": ""})["rung"])
        return task.primary if task else self.measure.primary

    def runs(self) -> list[RunSpec]:
        """Return the runs of all arms with all seeds, arm by arm.

        This prepares the tasks, because the content of a task is part of a run's identity.

        Raises:
            UserError: If a task's data or the length of training is invalid, or an arm cannot be compared with the
                baseline.
        """
        return list(self._runs)

    @cached_property
    def _runs(self) -> tuple[RunSpec, ...]:
        runs, mistakes = self._runs_of(self.arms[0]), ErrorList()
        for arm in self.arms[1:]:
            with mistakes.collect():
                runs += self._runs_of(arm)
        for name in self.contrasts:
            with mistakes.collect():
                self._check_same_data(name)
        mistakes.raise_all()
        return tuple(runs)

    def _runs_of(self, arm: Arm) -> list[RunSpec]:
        source = self.source(arm)
        self._check_comparable(arm, source, self.source(self.against(arm)))
        with change_errors(arm.explain), locate_errors("train"):
            arm.config.train.total_steps(source.num_windows)
            arm.config.train.check_windows(source)
            if arm is self.arms[0]:
                Sample.from_config(arm.config, source)
        keys = {seed: (arm.name, id(arm.config), seed) for seed in self.seeds}
        starts = {seed: self.start_digest(arm, seed) for seed, key in keys.items() if key not in self.identified}
        ids = run_ids(arm.config, starts, source.fingerprint) if starts else []
        for (seed, start), run_id in zip(starts.items(), ids, strict=True):
            spec = RunSpec(arm.name, seed, arm.config, run_id, source.fingerprint, start)
            self.identified[keys[seed]] = spec  # keeps the config alive, so that its `id` stays unique
        return [self.identified[key] for key in keys.values()]

    def _check_comparable(self, arm: Arm, source: Source, baseline: Source) -> None:
        primary = self.measure.measured if self.measure.reach is not None else self.primary_of(arm)
        split, _, what = primary.partition("/")
        if split in item_scores(arm.config.train.eval_metrics):  # all arms have the same items
            return
        if source.evaluated != baseline.evaluated:
            problem = f"arm {arm.name!r} is evaluated on other data than the baseline, so the two cannot be compared"
            raise arm.explain(UserError(problem, path=("task",), remedy="Move this arm to a separate study."))
        if source.unit != baseline.unit and what != "bits_per_byte":
            problem = f"arm {arm.name!r} has other tokens than the baseline, so {what} per token cannot be compared"
            remedy = f"Set measure: {{primary: {split}/bits_per_byte}}."
            raise arm.explain(UserError(problem, path=("task", "tokenizer"), remedy=remedy))
        splits = [of.evaluation(split) for of in (source, baseline)]
        if what == "bits_per_byte" and any(part is None or part.num_bytes is None for part in splits):
            problem = f"arm {arm.name!r} cannot be compared by {primary}, because its tokenizer or the "
            problem += "baseline's loses part of the evaluation text, or changes it"
            remedy = "Use a lossless tokenizer (byte, bpe, tiktoken, or char with unseen: unk), or another metric."
            raise arm.explain(UserError(problem, path=("task", "tokenizer"), remedy=remedy))

    def _check_same_data(self, contrast: str) -> None:
        """Raise `UserError` if a comparison of arms reaches over rungs of a ladder that differ in their data."""
        entry = self.contrasts[contrast]
        if "spread" in entry:  # compares arms within each side only
            return
        first, *others = (arm for arm in self.arms if arm.name in (*entry["compare"], *entry["to"]))
        for arm in others:
            if self.source(arm).evaluated != self.source(first).evaluated:
                problem = f"arms {first.name!r} and {arm.name!r} are evaluated on different data"
                remedy = "Compare arms of one rung of the ladder."
                error = UserError(problem, path=("measure", "contrasts", contrast), remedy=remedy)
                raise self.document.locate(error)

    def start(self, arm: Arm, seed: int) -> StoredParameters | None:
        """Return the stored model that an arm's run with a seed starts from; None if parameters are drawn.

        Raises:
            UserError: If the model cannot be read. The error is located in the study file.
        """
        with change_errors(arm.explain):
            return self.sources.start(arm.config, seed)

    def start_digest(self, arm: Arm, seed: int) -> str:
        """Return the digest of `start`; empty if parameters are drawn."""
        start = self.start(arm, seed)
        return "" if start is None else start.digest

    def source(self, arm: Arm) -> Source:
        """Return an arm's prepared task.

        Raises:
            UserError: If the task's data is invalid. The error is located in the study file.
        """
        with change_errors(arm.explain), locate_errors("task"):
            return self.sources.prepare(arm.config)

    def items(self, arm: Arm) -> dict[str, ItemSet]:
        """Return the items of an arm's scores, by name (see `Sources.items`).

        Raises:
            UserError: If the items are invalid. The error is located in the study file.
        """
        with change_errors(arm.explain):
            return self.sources.items(arm.config)

    def item_files(self) -> dict[str, Path]:
        """Return the files of scores on items, by name. All arms have the same.

        Raises:
            UserError: If a file does not exist.
        """
        files = dict[str, Path]()
        for name, score in item_scores(self.baseline.train.eval_metrics).items():
            with change_errors(self.arms[0].explain), locate_errors("train", "eval_metrics", name):
                files[name] = score.path(self.folder)
        return files


def _sets(value: Any, parts: Sequence[str]) -> bool:
    """Return whether an override's value contains the field with the given path."""
    for i, part in enumerate(parts):
        if not isinstance(value, Mapping) or part not in value:
            # Names of files, which have weights in a mixture, may contain dots.
            return isinstance(value, Mapping) and ".".join(parts[i:]) in value
        value = value[part]
    return True
