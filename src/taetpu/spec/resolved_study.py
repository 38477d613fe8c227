"""A study as loaded: its arms, resolved, and its runs; and what of it is frozen in the study's folder."""

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
READ = ("rows", "batch", "evaluation", "prompt", "show")  # what is called of a prepared task

# What of a study may never change once it is frozen, and how it is called.
FIXED = {"base": "the baseline", "measure": "what is measured", "data": "the task's data"}
# What of the baseline may: where data is read from (the data has an entry of its own), how runs are watched and
# computed.
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
        overrides: the changes as written, a list of values already replaced by one of them.
        diff: what they come to: `{path: (the baseline's value, this arm's)}`; a slot filled by another kind is one
            entry, and a change of all layers alike is written without their numbers.
        origins: where in the study file each override stands.
        crossed: one of a product of several lists, where a single value may be the baseline's.
        idle: the overrides whose value is the baseline's, so that they change nothing.
        role: what a design has it for (see `spec.candidates.Candidate`).
        stage: where the arm comes from; `study.arms` lists all of them.
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
        """What the arm changes, on one line; empty for the baseline."""
        return ", ".join(
            f"{path}: {format_brief(old)} -> {format_brief(new)}" for path, (old, new) in self.diff.items()
        )

    def explain(self, error: UserError) -> UserError:
        """An error met in this arm's config, seen from the study file."""
        return self.origins.explain(error, len(self.config.model.layers))


class Sources:
    """The prepared tasks of a study, each read once.

    Args:
        folder: where the study file stands; relative paths in tasks start there.
    """

    def __init__(self, folder: Path):
        self.folder, self._known = folder, dict[str, Source]()

    def prepare(self, config: ResolvedConfig) -> Source:
        """The task of a run. Raises `UserError`, its path relative to the task, when the data cannot be used."""
        key = canonical_json(to_data(config.task))
        if key not in self._known:
            task = config.task
            with attribute_errors(f"task {task.kind!r} cannot be prepared", iter_components(task)):
                prepared = task.prepare(self.folder)
            if missing := [name for name in READ if not callable(getattr(prepared, name, None))]:
                made = f"prepare of task {task.kind!r} returns an object of type {type(prepared).__name__}"
                problem = f"{made}, which has no method {missing[0]}"
                raise UserError(problem, remedy="return a data.batches.Source")
            self._known[key] = prepared
        return self._known[key]


@dataclass(frozen=True)
class Study:
    """A study file, resolved.

    Attributes:
        folder: where the file stands.
        base: the baseline's data as written, `--set` included.
        arms: the baseline first.
        design: what its arms were made by (see `spec.designs.described`).
        match: what arms are matched by, besides steps (see `study.matching`).
        tune: what every arm tries first.
        trackers: where runs are shown while they train, by name (see `taetpu.trackers`).
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
        """What a notebook shows: the arms with their changes."""
        said = f"{len(self.arms)} arms, {len(self.seeds)} seeds; {self.measure.primary} decides"
        rows = [(arm.name, arm.change) for arm in self.arms]
        return paragraph(said, strong=self.name) + table(("arm", "change"), rows, left=2)

    @cached_property
    def sources(self) -> Sources:
        """The prepared tasks; nothing is read before it is asked for."""
        return Sources(self.folder)

    def changed(self, **fields: Any) -> "Study":
        """The study with other fields. Its data is not read again."""
        new = replace(self, **fields)
        new.__dict__["sources"] = self.sources
        return new

    def against(self, arm: Arm) -> Arm:
        """What an arm is compared with: the baseline, or that of its scale; itself where it is one."""
        return self._by_name[arm.role.get("against", self.arms[0].name)]

    @cached_property
    def _by_name(self) -> dict[str, Arm]:
        return {arm.name: arm for arm in self.arms}

    def runs(self) -> list[RunSpec]:
        """Every arm on every seed, arm by arm. Prepares the tasks: a run's identity depends on their content.

        Raises:
            UserError: a task's data cannot be used, or training on it cannot be as long as asked, or an arm's values
                cannot be compared with the baseline's.
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
            problem = (
                f"arm {arm.name!r} is evaluated on other data than the baseline, so that the two cannot be compared"
            )
            raise arm.explain(UserError(problem, path=("task",), remedy="make it a study of its own"))
        if source.unit != baseline.unit and what != "bits_per_byte":
            problem = (
                f"arm {arm.name!r} has other tokens than the baseline, so that {what} per token cannot be compared"
            )
            remedy = f"measure: {{primary: {split}/bits_per_byte}}"
            raise arm.explain(UserError(problem, path=("task", "tokenizer"), remedy=remedy))
        if what == "bits_per_byte":
            self._check_bytes(arm, *(getattr(of.evaluation(split), "num_bytes", None) for of in (source, baseline)))

    def _check_bytes(self, arm: Arm, own: int | None, baseline: int | None) -> None:
        """Raise `UserError` unless bits per byte of an arm and of its baseline have the same denominator."""
        if own is not None and own == baseline:
            return
        if own is None:
            why = "its tokenizer loses characters of the evaluation text, which would cost no bits"
        else:
            why = f"its evaluation text has {own} bytes, and that of its baseline {baseline}"
        problem = f"arm {arm.name!r} cannot be compared in {self.measure.primary}: {why}"
        remedy = "a tokenizer that restores the text (byte, bpe, or char with unseen: unk), or another metric"
        raise arm.explain(UserError(problem, path=("task",), remedy=remedy))

    def source(self, arm: Arm) -> Source:
        """An arm's prepared task. Raises `UserError` with its place in the study file."""
        try:
            return self.sources.prepare(arm.config)
        except UserError as error:
            raise arm.explain(error.within("task")) from None


# --- what an arm changes ---------------------------------------------------------------------------------------------


def difference(old: ResolvedConfig, new: ResolvedConfig) -> Diff:
    """What differs between two configs; see `Arm.diff`."""
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
    """What a study's folder keeps of its study, as plain data. The baseline has its defaults written out, so that a
    later version with other defaults cannot change it unseen. Prepares the baseline's task."""
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
    """What the folder should keep after this run: what is stored, with the arms and seeds that are new.

    Arms and seeds that the file no longer has stay recorded, and so does how runs were watched at first.

    Raises:
        UserError: the folder belongs to another baseline, measure, data or schema, an arm has another meaning than
            before, or runs would be evaluated on another sample than those before.
    """
    check_schema(stored, study)
    new, known = frozen_data(study), _with_defaults(stored)
    for part, what in FIXED.items():
        for path, (before, after) in _changes(known.get(part), new[part], (part,)):
            if not _is_free(path):
                change = (
                    "" if part == "data" else f": {path} was {format_brief(before)}, and is {format_brief(after)} now"
                )
                problem = f"{what} is not that of study {study.name!r} in this folder{change}"
                raise _refused(study, problem, path, _as_begun(stored, study) if part == "base" else "")
    sample = stored.get("evaluation", new["evaluation"])  # absent from folders of earlier versions
    asked, windows = new["evaluation"]["asked"], new["evaluation"]["windows"]
    if asked != sample["asked"] and windows != sample["windows"]:
        problem = f"eval_windows was {sample['asked']} when this study was first run, and is {asked} now"
        remedy = _as_begun(stored, study) or f"eval_windows: {sample['asked']}, or "
        raise _refused(study, problem, "base.train.eval_windows", remedy)
    for arm in study.arms:
        before = stored["arms"].get(arm.name)
        if before is not None and not _same_arm(before, arm, study):
            now = format_value(arm.overrides)
            raise _refused(
                study,
                f"arm {arm.name!r} was {format_value(before)} when it was first run, and is {now} now",
                f"arms.{arm.name}",
                "give the changed arm a name of its own, or ",
            )
    added = {name: overrides for name, overrides in new["arms"].items() if name not in stored["arms"]}
    seeds = [*stored["seeds"], *(seed for seed in study.seeds if seed not in stored["seeds"])]
    arms, roles = {**stored["arms"], **added}, {**stored["roles"], **new["roles"]}
    idle = {**stored.get("idle", {}), **new["idle"]}
    extended = {"seeds": seeds, "arms": arms, "idle": idle, "roles": roles, "design": new["design"]}
    return {**stored, **extended, "evaluation": sample}


def check_schema(stored: Mapping[str, Any], study: Study) -> None:
    """Raise `UserError` when the folder's runs have identities of another schema: they mix with none of this one."""
    schema = stored.get("schema")
    if schema != SCHEMA:
        later = type(schema) is int and schema > SCHEMA
        problem = (
            f"study {study.name!r} in this folder has run identities of schema {schema}, and this version of taetpu "
            f"uses schema {SCHEMA}: runs of the two cannot be mixed"
        )
        remedy = (
            f"{'update taetpu, or ' if later else ''}give the study another name or another --root to train it again; "
            "`taetpu report` opens the folder as it is"
        )
        raise study.document.locate(UserError(problem, path=("study",), remedy=remedy))


def _with_defaults(stored: Mapping[str, Any]) -> dict[str, Any]:
    """What is stored, its baseline and measure with the fields that an earlier version did not have yet."""
    found = dict(stored)
    for part, cls in (("base", RunConfig), ("measure", Measure)):
        try:
            found[part] = to_data(load_config(cls, stored.get(part)))
        except UserError:
            continue  # of a kind or a field that is gone: it is compared as it is stored
    return found


def _as_begun(stored: Mapping[str, Any], study: Study) -> str:
    """How to run the study file with the stored baseline: an instruction for a remedy; empty where `--set` cannot."""
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
        return "to continue what is stored, run without --set; or "
    options = " ".join(f"--set {shlex.quote(f'{path}={format_value(value)}')}" for path, value in sets.items())
    return f"to continue what is stored, run with {options}; or "


def _is_free(path: str) -> bool:
    """Whether what is at a path of the stored study may change."""
    return any(path == free or path.startswith(f"{free}.") for free in FREE)


def _refused(study: Study, problem: str, path: str, remedy: str = "") -> UserError:
    first, *rest = (int(part) if part.lstrip("-").isdecimal() else part for part in path.split("."))
    error = UserError(problem, path=tuple(rest), remedy=f"{remedy}give the study another name, or another --root")
    if first == "base":
        return study.arms[0].explain(error)
    if first == "data":
        return study.arms[0].explain(UserError(problem, path=("task",), remedy=error.remedy))
    return study.document.locate(error.within(first))


def _same_arm(overrides: Mapping[str, Any], arm: Arm, study: Study) -> bool:
    """Do stored overrides come to the same config? They may be written differently."""
    try:
        return load_config(RunConfig, apply_overrides(study.base, overrides)).resolve() == arm.config
    except UserError:
        return False
