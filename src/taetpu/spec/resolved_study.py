"""A loaded study: its resolved arms, its runs, and the part of it that is frozen in its folder."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from taetpu.core.config import fields_at_default, iter_components, to_data
from taetpu.core.errors import ErrorList, UserError
from taetpu.core.html import paragraph, table
from taetpu.core.identity import FIELDS_OUTSIDE_IDENTITY, canonical_json
from taetpu.core.loading import load_config
from taetpu.core.plugins import Plugin, attribute_errors
from taetpu.data.batches import Source
from taetpu.spec.candidates import Stage
from taetpu.spec.document import Document, parse_value
from taetpu.spec.evaluation import Sample
from taetpu.spec.identity import SCHEMA, plugin_sources, run_ids
from taetpu.spec.origins import Origins, keep_first_per_list
from taetpu.spec.overrides import apply_overrides, format_brief, format_value
from taetpu.spec.schema import Measure, ResolvedConfig, RunConfig
from taetpu.spec.tuning import Tuning

Diff = dict[str, tuple[Any, Any]]
MAX_SETS = 5  # options that a remedy names
READ = ("rows", "batch", "evaluation", "prompt", "show")  # the methods of a prepared task

# The parts of a study that may not change once frozen, with their names in messages.
FIXED = {"base": "the baseline", "measure": "what is measured", "data": "the task's data"}
# The fields of the baseline that may change: the location of the data, and how runs are observed and computed.
FREE = ("base.task.source", *(f"base.train.{field}" for field in FIELDS_OUTSIDE_IDENTITY))


RunKey = tuple[str, int, str]
"""A run's arm, seed and ID."""


@dataclass(frozen=True)
class RunSpec:
    """One arm on one seed. `id` is the run's identity (see `spec.identity`), `data` its task's fingerprint."""

    arm: str
    seed: int
    config: ResolvedConfig
    id: str
    data: str = ""

    @property
    def key(self) -> RunKey:
        """The run as pack plans name it."""
        return self.arm, self.seed, self.id

    def record(self) -> dict[str, Any]:
        """Return what `config.json` records of the run, from which its identity can be computed again."""
        about = {"schema": SCHEMA, "arm": self.arm, "seed": self.seed, "id": self.id, "config": to_data(self.config)}
        return {
            **about,
            "defaults": fields_at_default(self.config),
            "data": self.data,
            "plugins": plugin_sources(self.config),
        }


@dataclass(frozen=True)
class Arm:
    """The baseline with named changes.

    Attributes:
        overrides: The changes as written, with a list of values replaced by one of them.
        diff: The resolved changes, `{path: (baseline's value, arm's value)}`. A slot with another kind is one entry,
            and a change of all layers has no layer number.
        origins: The place of each override in the study file.
        crossed: Whether it is part of a product of lists, where single values may be the baseline's.
        idle: The overrides whose value is the baseline's.
        role: Its role in a design (see `spec.candidates.Candidate`).
        stage: The origin of the arm; `study.arms` lists all of them.
    """

    name: str
    overrides: dict[str, Any]
    config: ResolvedConfig
    diff: Diff
    origins: Origins
    crossed: bool = False
    idle: tuple[str, ...] = ()
    role: Mapping[str, Any] = field(default_factory=dict)
    stage: Stage = "written"

    @property
    def change(self) -> str:
        """The changes of the arm on one line; empty for the baseline."""
        return ", ".join(
            f"{path}: {format_brief(old)} -> {format_brief(new)}" for path, (old, new) in self.diff.items()
        )

    def explain(self, error: UserError) -> UserError:
        """Return an error in this arm's config with its place in the study file."""
        return self.origins.explain(error, len(self.config.model.layers))


class Sources:
    """The prepared tasks of a study, each read once.

    Args:
        folder: The folder of the study file, to which relative paths in tasks refer.
    """

    def __init__(self, folder: Path):
        self.folder, self._known = folder, dict[str, Source]()

    def prepare(self, config: ResolvedConfig) -> Source:
        """Prepare the task of a config, once. Raise `UserError`, with a path in the task, if its data is invalid."""
        key = canonical_json(to_data(config.task))
        if key not in self._known:
            task = config.task
            with attribute_errors(f"task {task.kind!r} cannot be prepared", iter_components(task)):
                prepared = task.prepare(self.folder)
            if missing := [name for name in READ if not callable(getattr(prepared, name, None))]:
                made = f"prepare of task {task.kind!r} returns an object of type {type(prepared).__name__}"
                problem = f"{made}, which has no method {missing[0]}"
                raise UserError(problem, remedy="Return a data.batches.Source.")
            self._known[key] = prepared
        return self._known[key]


@dataclass(frozen=True)
class Study:
    """A study file, resolved.

    Attributes:
        folder: The folder of the file.
        base: The baseline's data as written, with `--set` applied.
        arms: All arms, the baseline first.
        design: The designs of its arms (see `spec.designs.described`).
        match: The quantities to match arms by, besides steps (see `study.matching`).
        tune: The tuning of its arms, or None.
        trackers: The trackers by name (see `taetpu.trackers`).
    """

    name: str
    file: Path
    folder: Path
    base: dict[str, Any]
    baseline: RunConfig
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    measure: Measure
    document: Document
    plugins: tuple[Plugin, ...] = ()
    design: dict[str, Any] = field(default_factory=dict)
    match: tuple[str, ...] = ()
    tune: Tuning | None = None
    trackers: dict[str, Any] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        """Return the arms and their changes as HTML, for notebooks."""
        said = f"{len(self.arms)} arms, {len(self.seeds)} seeds; {self.measure.primary} decides"
        rows = [(arm.name, arm.change) for arm in self.arms]
        return paragraph(said, strong=self.name) + table(("arm", "change"), rows, left=2)

    @cached_property
    def sources(self) -> Sources:
        """The prepared tasks, each read on first use."""
        return Sources(self.folder)

    def changed(self, **fields: Any) -> "Study":
        """Return the study with other fields and the same prepared tasks."""
        new = replace(self, **fields)
        new.__dict__["sources"] = self.sources
        return new

    def against(self, arm: Arm) -> Arm:
        """Return the arm to compare with: the baseline or that of its scale; itself for a baseline."""
        return self._by_name[arm.role.get("against", self.arms[0].name)]

    @cached_property
    def _by_name(self) -> dict[str, Arm]:
        return {arm.name: arm for arm in self.arms}

    def runs(self) -> list[RunSpec]:
        """Return every arm on every seed, arm by arm. Prepares the tasks, whose content is part of a run's identity.

        Raises:
            UserError: If a task's data or the length of training is invalid, or an arm cannot be compared with the
                baseline.
        """
        return list(self._runs)

    @cached_property
    def _runs(self) -> tuple[RunSpec, ...]:
        found, mistakes = self._runs_of(self.arms[0]), ErrorList()
        for arm in self.arms[1:]:
            with mistakes.collect():
                found += self._runs_of(arm)
        keep_first_per_list(mistakes).raise_all()
        return tuple(found)

    def _runs_of(self, arm: Arm) -> list[RunSpec]:
        source = self.source(arm)
        self._check_comparable(arm, source, self.source(self.against(arm)))
        try:
            arm.config.train.total_steps(source.num_windows)
            if arm is self.arms[0]:
                Sample.from_config(arm.config, source)
        except UserError as error:
            raise arm.explain(error.within("train")) from None
        data = source.fingerprint
        ids = run_ids(arm.config, self.seeds, data)
        return [RunSpec(arm.name, seed, arm.config, id, data) for seed, id in zip(self.seeds, ids, strict=True)]

    def _check_comparable(self, arm: Arm, source: Source, baseline: Source) -> None:
        split, _, what = self.measure.primary.partition("/")
        if source.evaluated != baseline.evaluated:
            problem = f"arm {arm.name!r} is evaluated on other data than the baseline, so they cannot be compared"
            raise arm.explain(UserError(problem, path=("task",), remedy="Make it a separate study."))
        if source.unit != baseline.unit and what != "bits_per_byte":
            problem = f"arm {arm.name!r} has other tokens than the baseline, so {what} per token cannot be compared"
            remedy = f"Set measure: {{primary: {split}/bits_per_byte}}."
            raise arm.explain(UserError(problem, path=("task", "tokenizer"), remedy=remedy))
        if what == "bits_per_byte":
            self._check_bytes(arm, *(getattr(of.evaluation(split), "num_bytes", None) for of in (source, baseline)))

    def _check_bytes(self, arm: Arm, own: int | None, baseline: int | None) -> None:
        """Raise `UserError` unless an arm and its baseline are evaluated on the same number of bytes."""
        if own is not None and own == baseline:
            return
        if own is None:
            why = "its tokenizer does not encode all characters of the evaluation text"
        else:
            why = f"its evaluation text has {own} bytes, the baseline's {baseline}"
        problem = f"arm {arm.name!r} cannot be compared in {self.measure.primary}: {why}"
        remedy = "Use a lossless tokenizer (byte, bpe, or char with unseen: unk), or another metric."
        raise arm.explain(UserError(problem, path=("task",), remedy=remedy))

    def source(self, arm: Arm) -> Source:
        """Return an arm's prepared task. Raise `UserError` with its place in the study file."""
        try:
            return self.sources.prepare(arm.config)
        except UserError as error:
            raise arm.explain(error.within("task")) from None


# --- what an arm changes ---------------------------------------------------------------------------------------------


def difference(old: ResolvedConfig, new: ResolvedConfig) -> Diff:
    """Return the differences of two configs; see `Arm.diff`."""
    a, b = to_data(old), to_data(new)
    before, after = a["model"].pop("layers"), b["model"].pop("layers")
    a["model"]["num_layers"], b["model"]["num_layers"] = len(before), len(after)
    found = dict(_changes(a, b, ()))
    layers = [dict(_changes(x, y, ())) for x, y in zip(before, after, strict=False)]
    for i, layer in enumerate(layers):
        for path, change in layer.items():
            alike = all(other.get(path) == change for other in layers)
            found[f"model.{path}" if alike else f"model.layers.{i}.{path}"] = change
    return found


def _changes(a: Any, b: Any, path: tuple[str, ...]) -> list[tuple[str, tuple[Any, Any]]]:
    if not (isinstance(a, Mapping) and isinstance(b, Mapping)) or a.get("kind") != b.get("kind"):
        return [] if a == b else [(".".join(path), (a, b))]
    return [change for name in {**a, **b} for change in _changes(a.get(name), b.get(name), (*path, str(name)))]


# --- what is frozen --------------------------------------------------------------------------------------------------


def frozen_data(study: Study) -> dict[str, Any]:
    """Return the plain data that a study's folder stores. Prepares the baseline's task.

    The baseline's defaults are written out, so that a later version with other defaults cannot change it silently.
    """
    return {
        "study": study.name,
        "schema": SCHEMA,
        "base": to_data(study.baseline),
        "data": study.source(study.arms[0]).fingerprint,
        "measure": to_data(study.measure),
        "seeds": list(study.seeds),
        "arms": {arm.name: arm.overrides for arm in study.arms},
        "idle": {arm.name: list(arm.idle) for arm in study.arms if arm.idle},
        "roles": {arm.name: dict(arm.role) for arm in study.arms if arm.role},
        "design": study.design,
        "evaluation": Sample.from_config(study.arms[0].config, study.source(study.arms[0])).frozen,
    }


def check_frozen(stored: Mapping[str, Any], study: Study) -> dict[str, Any]:
    """Check a study against its folder, and return the stored data extended by new arms and seeds.

    Arms and seeds that the file no longer has stay recorded, as do the first settings of how runs are observed.

    Raises:
        UserError: If baseline, measure, data, schema, the evaluation sample or the changes of a stored arm differ.
    """
    check_schema(stored, study)
    new, known = frozen_data(study), _with_defaults(stored)
    for part, what in FIXED.items():
        for path, (before, after) in _changes(known.get(part), new[part], (part,)):
            if not _is_free(path):
                change = (
                    "" if part == "data" else f": {path} was {format_brief(before)}, and is {format_brief(after)} now"
                )
                problem = f"{what} differs from study {study.name!r} in this folder{change}"
                raise _frozen_error(study, problem, path, _restoring_options(stored, study) if part == "base" else "")
    sample = stored.get("evaluation", new["evaluation"])  # absent from folders of earlier versions
    asked, windows = new["evaluation"]["asked"], new["evaluation"]["windows"]
    if asked != sample["asked"] and windows != sample["windows"]:
        problem = f"eval_windows was {sample['asked']} when this study was first run, and is {asked} now"
        remedy = _restoring_options(stored, study) or f"Set eval_windows: {sample['asked']}. "
        raise _frozen_error(study, problem, "base.train.eval_windows", remedy)
    for arm in study.arms:
        before = stored["arms"].get(arm.name)
        if before is not None and not _same_arm(before, arm, study):
            now = format_value(arm.overrides)
            raise _frozen_error(
                study,
                f"arm {arm.name!r} was {format_value(before)} when it was first run, and is {now} now",
                f"arms.{arm.name}",
                "Give the changed arm another name. ",
            )
    added = {name: overrides for name, overrides in new["arms"].items() if name not in stored["arms"]}
    seeds = [*stored["seeds"], *(seed for seed in study.seeds if seed not in stored["seeds"])]
    arms, roles = {**stored["arms"], **added}, {**stored["roles"], **new["roles"]}
    idle = {**stored.get("idle", {}), **new["idle"]}
    extended = {"seeds": seeds, "arms": arms, "idle": idle, "roles": roles, "design": new["design"]}
    return {**stored, **extended, "evaluation": sample}


def check_schema(stored: Mapping[str, Any], study: Study) -> None:
    """Raise `UserError` if the folder's run identities have another schema, which cannot be mixed with this one."""
    schema = stored.get("schema")
    if schema != SCHEMA:
        later = type(schema) is int and schema > SCHEMA
        problem = (
            f"study {study.name!r} in this folder has run identities of schema {schema}, and this version of taetpu "
            f"uses schema {SCHEMA}: runs of the two cannot be mixed"
        )
        remedy = (
            f"{'Update taetpu. ' if later else ''}To train the study again, use another study name or --root. "
            "`taetpu report` opens this folder."
        )
        raise study.document.locate(UserError(problem, path=("study",), remedy=remedy))


def _with_defaults(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored data with the defaults of fields that the storing version did not have."""
    found = dict(stored)
    for part, cls in (("base", RunConfig), ("measure", Measure)):
        try:
            found[part] = to_data(load_config(cls, stored.get(part)))
        except UserError:
            continue  # a kind or field was removed: compare as stored
    return found


def _restoring_options(stored: Mapping[str, Any], study: Study) -> str:
    """Return the start of a remedy that restores the stored baseline by `--set`; empty if `--set` cannot."""
    sample = stored.get("evaluation", {"asked": None, "windows": 0, "total": 1})
    wanted, asked = _with_defaults(stored)["base"], sample["asked"]
    if isinstance(asked, int) and sample["windows"] == sample["total"]:
        asked = "all"
    written = study.document.data["base"]
    try:
        own = to_data(load_config(RunConfig, written))
        changed = [(path, before) for path, (before, _) in _changes(wanted, own, ()) if not _is_free(f"base.{path}")]
        if asked is not None and asked != own["train"]["eval_windows"]:
            changed.append(("train.eval_windows", asked))
        sets = {path: parse_value(format_value(before)) for path, before in changed}
        left = _changes(wanted, to_data(load_config(RunConfig, apply_overrides(written, sets))), ())
    except UserError:
        return ""
    if len(sets) > MAX_SETS or any(not _is_free(f"base.{path}") for path, _ in left):
        return ""
    if not sets:
        return "To continue the stored study, run without --set. "
    options = " ".join(f"--set {shlex.quote(f'{path}={format_value(value)}')}" for path, value in sets.items())
    return f"To continue the stored study, run with {options}. "


def _is_free(path: str) -> bool:
    """Return whether a path of the stored study may change."""
    return any(path == free or path.startswith(f"{free}.") for free in FREE)


def _frozen_error(study: Study, problem: str, path: str, remedy: str = "") -> UserError:
    first, *rest = (int(part) if part.lstrip("-").isdecimal() else part for part in path.split("."))
    error = UserError(
        problem, path=tuple(rest), remedy=f"{remedy}To start a new one, use another study name or --root."
    )
    if first == "base":
        return study.arms[0].explain(error)
    if first == "data":
        return study.arms[0].explain(UserError(problem, path=("task",), remedy=error.remedy))
    return study.document.locate(error.within(first))


def _same_arm(overrides: Mapping[str, Any], arm: Arm, study: Study) -> bool:
    """Return whether stored overrides resolve to the arm's config, even if written differently."""
    try:
        return load_config(RunConfig, apply_overrides(study.base, overrides)).resolve() == arm.config
    except UserError:
        return False
