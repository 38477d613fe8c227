"""Arms that are repeated: at the rungs of a `ladder`, on several `tasks`, or under the settings of `across`.

Each repetition has a baseline, with which its arms are compared. One repetition is the baseline as written.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import KeyPath, UserError, locate_errors, suggest
from taetpu.core.short_paths import short_paths
from taetpu.spec.designs import crossing, factors_of, read_factor
from taetpu.spec.document import format_value
from taetpu.spec.measure import Measure, TaskMeasure
from taetpu.spec.study_file import BASELINE, StudyFile
from taetpu.spec.suites import SUITES
from taetpu.spec.unresolved_arms import Candidate, bounded, cell_name, check_lists, check_part
from taetpu.store.frozen_study import Role, StudyDesign

Key = Literal["ladder", "tasks", "across"]
KEYS: tuple[Key, ...] = ("ladder", "tasks", "across")
CHINCHILLA = "chinchilla"
"""The key of a ladder that has factors on the baseline's size. `spec.chinchilla` adds the settings of each rung."""
AS_WRITTEN = "as written"
"""The name of the baseline's own setting in `across`."""
POOL, SUITE = "pool", "suite"
"""Keys of `tasks` that do not name a task."""
TASK = "task."
"""Start of the paths of a task's settings."""
POOLS = ("iqm", "mean")
WORDS: Mapping[Key, str] = {"ladder": "the ladder", "tasks": "the task", "across": "the setting"}


@dataclass(frozen=True)
class Rung:
    """A repetition of the arms.

    Attributes:
        name: The name of the scale, task or setting.
        changes: The changes to the baseline; none for the baseline's own scale, task or setting.
        places: The place of each change in the study file.
        measure: In `tasks`, how arms are compared on this task.
        factor: In `across`, the setting that is changed.
    """

    name: str
    changes: Mapping[str, Any]
    places: Mapping[str, KeyPath]
    measure: TaskMeasure = field(default_factory=TaskMeasure)
    factor: str = ""


def repeat_arms(spec: StudyFile, base: Mapping[str, Any], arms: Sequence[Candidate]) -> Iterator[Candidate]:
    """Yield every arm in every repetition. Without repetitions, yield the arms unchanged.

    Arms are compared with the baseline of their repetition.
    """
    key, repeated = repetitions(spec, base)
    if not repeated:
        yield from arms
    for rung in repeated:
        if not rung.changes:
            yield from (replace(arm, role={**arm.role, "ladder": {"rung": rung.name, "arm": arm.name}}) for arm in arms)
            continue
        baseline = bounded(f"{BASELINE}@{rung.name}")
        role: Role = {"against": baseline, "ladder": {"rung": rung.name, "arm": BASELINE}}
        yield Candidate(baseline, dict(rung.changes), rung.places, crossed=True, stage="generated", role=role)
        for arm in arms:
            for path in rung.changes:
                if path in arm.overrides:
                    problem = f"arm {arm.name!r} and {WORDS[key]} both set {path}"
                    remedy = f"Remove the path from the arm or from {key}."
                    raise UserError(problem, path=arm.origins[path], remedy=remedy)
            yield replace(
                arm,
                name=bounded(f"{arm.name}@{rung.name}"),
                overrides={**rung.changes, **arm.overrides},
                origins={**rung.places, **arm.origins},
                crossed=True,
                stage="generated",
                role={**arm.role, "against": baseline, "ladder": {"rung": rung.name, "arm": arm.name}},
            )


def repetitions(spec: StudyFile, base: Mapping[str, Any]) -> tuple[Key, list[Rung]]:
    """Return the key of the study file that repeats arms, and its repetitions; none without such a key.

    Raises:
        UserError: If two keys repeat arms, or a repetition is invalid.
    """
    used: list[Key] = [key for key in KEYS if getattr(spec, key)]
    if len(used) > 1:
        problem = f"{used[0]} and {used[1]} both repeat every arm"
        raise UserError(problem, path=(used[1],), remedy=f"Remove {used[1]}, or write a separate study for it.")
    if not used:
        return "ladder", []
    listed = [*{"ladder": _scales, "tasks": _tasks, "across": _settings}[used[0]](spec, base)]
    if len(listed) < 2 or all(rung.changes for rung in listed):
        ours = {"ladder": "rungs of ladder", "tasks": "tasks", "across": "settings of across"}[used[0]]
        what = {"ladder": "scale", "tasks": "task", "across": "setting"}[used[0]]
        problem = f"the {ours} do not include the baseline's {what} and at least one other"
        remedy = "List the baseline's value and the other scales."
        if used[0] == "tasks":
            remedy = "Write {} for the baseline's task, or leave base.task out to begin with the first task."
        raise UserError(problem, path=(used[0],), remedy=remedy)
    return used[0], listed


def _scales(spec: StudyFile, base: Mapping[str, Any]) -> list[Rung]:
    """Return the rungs of a `ladder`. From one rung to the next, all settings of the ladder change together."""
    check_lists(spec.ladder, ("ladder",), crossed=False)
    lists = {path: values for path, values in spec.ladder.items() if path != CHINCHILLA}
    factors = spec.ladder.get(CHINCHILLA)
    for path, values in lists.items():
        first = next(iter(lists))
        if len(values) != len(lists[first]):
            problem = f"{path} has {len(values)} values, but {first} has {len(lists[first])}"
            raise UserError(problem, path=("ladder", path), remedy="List one value per rung for each setting.")
    listed: list[Rung] = []
    for number, values in enumerate(zip(*lists.values(), strict=True)):
        changes = dict(zip(lists, values, strict=True))
        places: dict[str, KeyPath] = {path: ("ladder", CHINCHILLA if factors else path, number) for path in changes}
        name = f"{factors[number]:g}x" if factors else cell_name(changes)
        unchanged = spec.is_baseline(base, changes, places)
        if any(rung.name == name for rung in listed):
            where, remedy = next(iter(places.values())), "Remove the duplicate."
            raise UserError(f"the rung {name} is listed twice", path=where, remedy=remedy)
        listed.append(Rung(name, {} if unchanged else changes, places))
    return listed


# --- tasks -----------------------------------------------------------------------------------------------------------


def named_tasks(spec: StudyFile) -> dict[str, dict[str, Any]]:
    """Return the entries of `tasks` by name, with those of a suite if it names one. The key `pool` is left out.

    Raises:
        UserError: If the suite is unknown, or the rule of pooling is.
    """
    entries = _entries(spec)
    if (pool := entries.get(POOL, POOLS[0])) not in POOLS:
        problem = f"{pool!r} does not pool tasks"
        raise UserError(problem, path=("tasks", POOL), remedy=f"Use one of: {', '.join(POOLS)}.")
    return {name: _checked(name, entry) for name, entry in entries.items() if name != POOL}


def _checked(name: Any, entry: Any) -> dict[str, Any]:
    if isinstance(entry, Mapping | None):
        return dict(entry or {})
    problem = f"the entry of a task must be a mapping, got {format_value(entry)}"
    remedy = "Write e.g. {task: {kind: sort}}. Settings of all tasks belong in base."
    raise UserError(problem, path=("tasks", name), remedy=remedy)


def _entries(spec: StudyFile) -> Mapping[str, Any]:
    """Return `tasks` with the entries of its suite. Its other entries change settings of the suite's tasks."""
    entries, place = spec.tasks, ("tasks", SUITE)
    if isinstance(entries, str):
        entries, place = {SUITE: entries}, ("tasks",)
    if not isinstance(entries, Mapping):
        problem = f"tasks must be a mapping or the name of a suite, got {format_value(entries)}"
        raise UserError(problem, path=("tasks",), remedy=f"Write e.g. {', '.join(SUITES)}, or {{NAME: {{...}}}}.")
    if SUITE not in entries:
        return entries
    suite = str(entries[SUITE])
    if suite not in SUITES:
        raise UserError(f"unknown suite {suite!r}", path=place, remedy=suggest(suite, SUITES))
    shared = {path: value for path, value in entries.items() if str(path).startswith(TASK)}
    named = {name: entry if name == POOL else changed_entry(entry, shared) for name, entry in SUITES[suite].items()}
    for name, entry in entries.items():
        if name in named and name != POOL:
            changes = _checked(name, entry)
            with locate_errors("tasks", name, "measure"):
                load_config(TaskMeasure, changes.get("measure") or {})
            named[name] = changed_entry(named[name], changes)
        elif name not in (SUITE, *shared):
            named[name] = entry
    return named


def changed_entry(entry: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of a suite with other settings: of its task by path (`task.seq_len`), and others by name."""
    task = {path.removeprefix(TASK): value for path, value in changes.items() if str(path).startswith(TASK)}
    others = {path: value for path, value in changes.items() if not str(path).startswith(TASK)}
    measure = {**entry["measure"], **(others.get("measure") or {})}
    return {**entry, "task": {**entry["task"], **task}, **others, "measure": measure}


def pool_of(spec: StudyFile) -> str:
    """Return how effects are pooled over tasks: `iqm` or `mean`; empty without tasks."""
    return _entries(spec).get(POOL, POOLS[0]) if spec.tasks else ""


def with_first_task(spec: StudyFile) -> dict[str, Any]:
    """Return the baseline as written; if it has no task, with the `task` of the first entry of `tasks`."""
    if not spec.tasks or "task" in spec.base:
        return spec.base
    first = next(iter(named_tasks(spec).values()), None)
    return {"task": first["task"], **spec.base} if first and "task" in first else spec.base


def _tasks(spec: StudyFile, base: Mapping[str, Any]) -> list[Rung]:
    listed: list[Rung] = []
    for name, entry in named_tasks(spec).items():
        place = ("tasks", name)
        changes = {path: value for path, value in entry.items() if path != "measure"}
        check_part(name, changes or {"task": None}, place, "task", spec.examples["change"])
        places: dict[str, KeyPath] = {path: (*place, path) for path in changes}
        with locate_errors(*place, "measure"):
            measure = load_config(TaskMeasure, entry.get("measure") or {})
        unchanged = not changes or spec.is_baseline(base, changes, places)
        if unchanged and any(not rung.changes for rung in listed):
            raise UserError(f"two tasks are the baseline's: {name!r} is the second", path=place, remedy="Remove one.")
        listed.append(Rung(name, {} if unchanged else changes, places, measure))
    return listed


def own_measure(spec: StudyFile, base: Mapping[str, Any]) -> Measure:
    """Return how arms are compared on the baseline's task: the study's `measure` with that of its entry in `tasks`."""
    if not spec.tasks:
        return spec.measure
    entry = next(rung.measure for rung in repetitions(spec, base)[1] if not rung.changes)
    written = {name: getattr(entry, name) for name in entry.model_fields_set & {*Measure.model_fields}}
    return spec.measure.model_copy(update=written)


# --- settings --------------------------------------------------------------------------------------------------------


def _settings(spec: StudyFile, base: Mapping[str, Any]) -> Iterator[Rung]:
    """Yield the settings of `across`: the baseline's, and each other value of one setting at a time."""
    names = {name: name for name in spec.across} | short_paths([str(name) for name in spec.across if "." in str(name)])
    yield Rung(AS_WRITTEN, {}, {})
    for written, value in spec.across.items():
        place = ("across", written)
        factor = read_factor(spec, str(names[written]), str(written), value, base, place)
        for title, changes in factor.levels[1:]:
            places: dict[str, KeyPath] = {path: (*place, path) if path != written else place for path in changes}
            yield Rung(title, changes, places, factor=factor.name)


# --- data for the analysis -------------------------------------------------------------------------------------------


def described(spec: StudyFile, base: Mapping[str, Any]) -> StudyDesign:
    """Return the designs of a study as plain data for the analysis."""
    designs: StudyDesign = {}
    if factors := factors_of(spec, base):
        design = crossing(spec, factors)
        designs["factorial"] = {
            "factors": {name: [title for title, _ in factor.levels] for name, factor in factors.items()},
            "fraction": str(spec.factorial.get("fraction", 1)),
            "resolution": design.resolution,
            "words": sorted(sorted(word) for word in design.words),
        }
    key, listed = repetitions(spec, base)
    if listed:
        baseline_rung = next(rung.name for rung in listed if not rung.changes)
        designs[key] = {"rungs": [rung.name for rung in listed], "own": baseline_rung}
    return designs


def nuisances(spec: StudyFile, base: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the settings of `across` by the name of what they change, without the baseline's own."""
    groups: dict[str, list[str]] = {}
    for rung in repetitions(spec, base)[1] if spec.across else ():
        if rung.factor:
            groups.setdefault(rung.factor, []).append(rung.name)
    return groups
