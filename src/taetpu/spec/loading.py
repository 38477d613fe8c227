"""Load a study file or a dictionary. Every arm is resolved and checked before anything is trained."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from taetpu.core.config import to_data
from taetpu.core.config_parsing import load_config
from taetpu.core.errors import KeyPath, UserError, change_errors, locate_errors, suggest
from taetpu.core.plugins import Plugin, load_plugins
from taetpu.core.registry import kinds
from taetpu.spec.arms import build_arms
from taetpu.spec.chinchilla import with_sizes
from taetpu.spec.contrasts import plan_contrasts
from taetpu.spec.differences import difference
from taetpu.spec.document import Document, format_value, read_document
from taetpu.spec.error_places import Origins
from taetpu.spec.goal import Measured, plan_goal
from taetpu.spec.measure import Measure, TaskMeasure
from taetpu.spec.overrides import apply_overrides, merge_overrides, resolve_overrides
from taetpu.spec.presets import expand_preset
from taetpu.spec.repeats import described, named_tasks, nuisances, own_measure, pool_of, repetitions, with_first_task
from taetpu.spec.reported_data import check_reported
from taetpu.spec.resolved_study import Arm, Sources, Study
from taetpu.spec.sets import Sets, parse_sets
from taetpu.spec.start import Convert
from taetpu.spec.start_settings import expand_start
from taetpu.spec.study_config import ResolvedConfig, RunConfig
from taetpu.spec.study_file import BASELINE
from taetpu.spec.study_spec import StudySpec
from taetpu.spec.trackers import read_trackers
from taetpu.spec.tuning import Tuning, tuning
from taetpu.spec.unresolved_arms import Candidate, Stage, bounded, check_trained
from taetpu.spec.untrained import check_untrained_arm, check_untrained_study, training_sections
from taetpu.spec.worth import check_worth
from taetpu.store.frozen_study import PlannedContrast, PlannedGoal, Role

NO_SPLIT = "Set {0} of the task above 0, or name files as {0}_source."
OTHER_RUNS = {
    "judged": (
        "this study has the runs of a table of results, so there is nothing to train",
        "`taetpu report` shows its results. To add runs, add them to the table, and repeat `taetpu judge`.",
    ),
    "program": (
        "the runs of this study are a program, and this command needs a model that taetpu trains",
        "Use `taetpu plan` or `taetpu run`, and `taetpu.run` in Python. Or write a model, and no program.",
    ),
}
"""Keys of studies whose runs taetpu does not train: the problem and the remedy."""


def load_study(file: Path | str | Mapping[str, Any], sets: Sets = (), convert: Convert | None = None) -> Study:
    """Read a study file, apply `--set` changes to its baseline, and resolve all arms.

    No data is read, except to count the parameters of the rungs of `ladder.chinchilla`.

    Args:
        file: The study file, or a dictionary with the content of a study file. Paths in a file (plug-ins, data) are
            relative to its folder, those in a dictionary to the current folder.
        sets: Changes to the baseline: a list of texts in the form of `--set` options, `["train.steps=3"]`, or a
            dictionary, `{"train.steps": 3}`.
        convert: A function that converts the Hugging Face models that the study names; None if they are refused.

    Returns:
        The resolved study.

    Raises:
        UserError: If the file is invalid. The error contains the file, line and path. Independent errors in the
            top-level keys, the baseline, the `--set` options or the arms are raised together, in the order of the file.
    """
    document = read_document(file)
    folder = document.folder
    with change_errors(document.locate):
        _refuse_other_runs(document)
        spec = load_config(StudySpec, document.data)
        plugins = _plugins(spec.plugins, folder)
        trackers = read_trackers(spec.trackers)
        seeds = spec.seed_list()
        sources = Sources(folder, seeds[0], convert)
        start = with_first_task(spec)
        spec, start = with_sizes(spec, start, lambda data: _baseline(data, sets, document, sources)[0], sources)
        base, baseline, first = _baseline(start, sets, document, sources)
        check_untrained_study(first, training_sections(spec))
        arms = build_arms(spec, base, first, document, lambda made, others: _arm(made, base, others, document))
        design, tune = described(spec, base), tuning(spec, base)
        asked = own_measure(spec, base)
        primaries = _primaries(spec, base, asked, arms)
        for primary in dict.fromkeys(primaries.values()):
            judged = [arm for arm in arms if primaries[arm.name] == primary]
            reported = asked.model_copy(update={"primary": primary} if asked.reach is None else {})
            check_reported(reported, spec.match, judged, spec.goal)
        asked.check_split()
        _check_measured(primaries, tune, arms)
        asked.check_outcome(first.config.metric_spec(asked.measured), first.config.train)
        measure = asked.directed(first.config.metric_spec(asked.primary))
        check_worth(spec, base, first.config.metric_spec(asked.primary))
        tasks = _tasks(spec, base, measure, arms)
        contrasts, across = _contrasts(measure, arms, baseline), nuisances(spec, base)
        goal = _goal(spec, arms, primaries)
    return Study(
        name=spec.study,
        file=document.file,
        folder=folder,
        plugins=plugins,
        base=base,
        baseline=baseline,
        arms=arms,
        seeds=seeds,
        measure=measure,
        document=document,
        sources=sources,
        design=design,
        match=tuple(kind for kind in spec.match if kind != "steps"),
        tune=tune,
        trackers=trackers,
        contrasts=contrasts,
        goal=goal,
        tasks=tasks,
        pool=pool_of(spec),
        across=across,
    )


def _refuse_other_runs(document: Document) -> None:
    """Raise `UserError` if the runs of the file are those of a table or of a program, where models are needed."""
    for key, (problem, remedy) in OTHER_RUNS.items():
        if key in document.data:
            raise UserError(problem, path=(key,), remedy=remedy)


def _plugins(names: tuple[str, ...], folder: Path) -> tuple[Plugin, ...]:
    for i, name in enumerate(names):
        if not (folder / name).is_file():
            near = get_close_matches(name, [file.name for file in folder.glob("*.py")], n=1)
            remedy = f"Did you mean {near[0]!r}?" if near else "Run `taetpu new NAME` to write an example of a plug-in."
            raise UserError(f"there is no plug-in {name!r}", path=("plugins", i), remedy=remedy)
    return load_plugins(folder / name for name in names)


def _resolved(
    base: Mapping[str, Any], overrides: Mapping[str, Any], origins: Origins
) -> tuple[dict[str, Any], RunConfig, ResolvedConfig]:
    """Return the baseline's data with overrides applied, its config, and the resolved config.

    Raises:
        UserError: If the result is invalid. The error is located in the study file.
    """
    num_layers = 0
    with change_errors(lambda error: origins.explain(error, num_layers)):
        data = apply_overrides(base, overrides)
        config = load_config(RunConfig, data)
        num_layers = config.model.num_layers
        resolved = config.resolve()
        resolved.check()
    return data, config, resolved


def _baseline(
    data: dict[str, Any], sets: Sets, document: Document, sources: Sources
) -> tuple[dict[str, Any], RunConfig, Arm]:
    """Return the baseline's data with the changes in `sets` applied, its config, and the baseline as an arm.

    Raises:
        UserError: If the baseline or a change is invalid.
    """
    overrides = parse_sets(sets)
    with locate_errors("base"):
        data = expand_start(data, lambda start: sources.read_start(start, sources.seed))
        data = _with_preset(data, {path: value for path, (_, value) in overrides.items()})
    origins = Origins(document, BASELINE, {path: (place,) for path, (place, _) in overrides.items()})
    data, config, resolved = _resolved(data, {path: value for path, (_, value) in overrides.items()}, origins)
    return data, config, Arm(BASELINE, {}, resolved, {}, origins)


def _with_preset(data: dict[str, Any], sets: Mapping[str, Any]) -> dict[str, Any]:
    """Return the baseline's data with the settings of the model's preset, at the size that `--set` options choose."""
    model = data.get("model")
    if not isinstance(model, Mapping) or "preset" not in model:
        return data
    sizes = {name: sets[f"model.{name}"] for name in ("dim", "num_layers") if f"model.{name}" in sets}
    with locate_errors("model"):
        return {**data, "model": expand_preset({**model, **sizes})}


# --- arms ------------------------------------------------------------------------------------------------------------


def _arm(candidate: Candidate, base: Mapping[str, Any], arms: Mapping[str, Arm], document: Document) -> Arm | None:
    """Return the resolved arm; None if the arm is a combination of `grid` that equals its baseline.

    In a product of several lists, single values may equal the baseline's values.

    Raises:
        UserError: If the arm is invalid, or one of its overrides has no effect.
    """
    baseline = arms[BASELINE]
    arm = _built(candidate, base, baseline, document)
    for path, place in candidate.origins.items():
        check_trained(path, place)
    check_untrained_arm(arm, baseline)
    if candidate.grid and arm.config == arms[candidate.role.get("against", BASELINE)].config:
        return None
    several = len(candidate.overrides) > 1
    variants = dict(_variants(candidate, base)) if several else {}
    idle = tuple(path for path, config in variants.items() if config == arm.config)
    all_idle = tuple(candidate.overrides) if arm.config == baseline.config else ()
    if refused := idle if several and not candidate.crossed else all_idle:
        part, value = "part of " if several else "", format_value(candidate.overrides[refused[0]])
        problem, place = f"{part}arm {candidate.name!r} changes nothing: {refused[0]} is already {value}", refused[0]
        raise UserError(problem, path=candidate.origins[place], remedy="Remove this override, or change the baseline.")
    return replace(arm, idle=idle, variants={} if candidate.crossed else variants)


def _built(candidate: Candidate, base: Mapping[str, Any], baseline: Arm, document: Document) -> Arm:
    origins = Origins(document, candidate.name, candidate.origins)
    _, _, resolved = _resolved(base, candidate.overrides, origins)
    return Arm(
        name=candidate.name,
        overrides=candidate.overrides,
        config=resolved,
        diff=difference(baseline.config, resolved),
        origins=origins,
        crossed=candidate.crossed,
        role=candidate.role,
        stage=candidate.stage,
    )


def derive_arm(study: Study, arm: Arm, name: str, values: Mapping[str, Any], stage: Stage, role: Role) -> Arm:
    """Return a new arm that sets additional values, as `match` or `tune` in the study file or a command requires.

    Args:
        study: The study.
        arm: The arm from which the new arm is derived.
        name: The name of the new arm.
        values: The additional values, by path.
        stage: The stage of the new arm.
        role: The role of the new arm (see `spec.unresolved_arms.Candidate`).

    Raises:
        UserError: If the new arm is invalid. Errors in the additional values are located at `match`, at `tune`, or at
            the name of the arm.
    """
    key = {"matched": "match", "component": name}.get(stage, "tune")
    overrides = merge_overrides(arm.overrides, values)
    origins: dict[str, KeyPath] = {path: (key, path) for path in values}
    origins |= {path: place for path, place in arm.origins.places.items() if path not in values}
    made = Candidate(bounded(name), overrides, origins, crossed=True, role=role, stage=stage)
    built = _built(made, study.base, study.arms[0], study.document)
    # A value that `match` or `tune` selected counts as a change, even if it equals the baseline's value.
    return replace(built, idle=tuple(path for path in arm.idle if path not in values))


def _variants(candidate: Candidate, base: Mapping[str, Any]) -> Iterator[tuple[str, ResolvedConfig | None]]:
    """Yield the path of each override, and the resolved config without it; None if that config is invalid."""
    for path in candidate.overrides:
        others = {other: value for other, value in candidate.overrides.items() if other != path}
        try:
            yield path, resolve_overrides(base, others)
        except UserError:
            yield path, None


def _contrasts(measure: Measure, arms: tuple[Arm, ...], baseline: RunConfig) -> dict[str, PlannedContrast]:
    """Return the contrasts of the analysis plan (see `plan_contrasts`)."""
    planned = plan_contrasts(measure.contrasts, arms, arms[0].config.metrics(), to_data(baseline))
    base_of = {arm.name: arm.role.get("against", BASELINE if arm.name != BASELINE else arm.name) for arm in arms}
    for name, entry in planned.items() if measure.reach is not None else ():
        if "spread" not in entry and len({base_of[arm] for arm in (*entry["compare"], *entry["to"])}) > 1:
            problem = "times to a value are compared up to the end of training of one baseline, and these arms have two"
            raise UserError(problem, path=("measure", "contrasts", name), remedy="Compare arms at one scale.")
    return planned


def _goal(spec: StudySpec, arms: tuple[Arm, ...], primaries: Mapping[str, str]) -> PlannedGoal | None:
    """Return the goal of the analysis plan (see `plan_goal`). Candidates are all arms, the baseline included."""
    if spec.goal is None:
        return None
    groups: dict[str, list[Arm]] = {}
    for arm in arms:
        rung = arm.role["ladder"]["rung"] if spec.tasks and "ladder" in arm.role else ""
        groups.setdefault(rung, []).append(arm)
    measured = {rung: _measured(group, primaries) for rung, group in groups.items()}
    baselines = measured.pop("")  # of the baseline, which has no role
    tasks = {rung: measured.get(rung, baselines) for rung in named_tasks(spec)} if spec.tasks else {}
    with locate_errors("goal"):
        return plan_goal(spec.goal, baselines, [(arm.name, arm.config) for arm in arms], tasks)


def _measured(arms: Sequence[Arm], primaries: Mapping[str, str]) -> Measured:
    """Return the primary metric of arms, and the specs of the metrics that all of them have."""
    shared = [name for name in arms[0].config.metrics() if all(name in arm.config.metrics() for arm in arms)]
    return Measured(primaries[arms[0].name], {name: arms[0].config.metric_spec(name) for name in shared})


def _primaries(spec: StudySpec, base: Mapping[str, Any], measure: Measure, arms: tuple[Arm, ...]) -> dict[str, str]:
    """Return the metric by which each arm is compared: that of its task, or that of the study.

    Raises:
        UserError: If a study of several tasks compares arms by an outcome, whose level is that of one task.
    """
    for field in ("solved", "reach") if spec.tasks else ():
        if getattr(measure, field) is not None:
            problem = f"{field} is a level of one metric, and the study has several tasks"
            raise UserError(problem, path=("measure", field), remedy=f"Remove {field} or tasks.")
    rungs = {rung.name: rung.measure for rung in repetitions(spec, base)[1]}
    notes = {arm.name: arm.role.get("ladder", {"rung": "", "arm": ""})["rung"] for arm in arms}
    return {name: rungs[rung].primary or measure.measured if rung in rungs else measure.measured
            for name, rung in notes.items()}  # fmt: skip


def _tasks(spec: StudySpec, base: Mapping[str, Any], measure: Measure, arms: tuple[Arm, ...]) -> dict[str, TaskMeasure]:
    """Return how arms are compared on each task, with the direction of its metric."""
    tasks: dict[str, TaskMeasure] = {}
    for rung in repetitions(spec, base)[1] if spec.tasks else ():
        repeated = (arm for arm in arms if arm.role.get("ladder", {"rung": "baseline"})["rung"] == rung.name)
        if (arm := next(repeated, None)) is None:
            raise UserError("tasks repeat the arms of a study, which has none", path=("tasks",), remedy="Add `arms`.")
        margin = rung.measure.equivalence if rung.changes else measure.equivalence
        asked = {"primary": rung.measure.primary or measure.primary, "equivalence": margin}
        asked |= {"direction": rung.measure.direction} if rung.measure.direction else {}
        with locate_errors("tasks", rung.name):
            judged = load_config(Measure, asked).directed(arm.config.metric_spec(asked["primary"]))
        more = {"primary": judged.primary, "direction": judged.direction, "equivalence": margin}
        tasks[rung.name] = rung.measure.model_copy(update=more)
    return tasks


def _check_measured(primaries: Mapping[str, str], tune: Tuning | None, arms: tuple[Arm, ...]) -> None:
    """Raise `UserError` unless every run measures the primary metric and the metric by which tuning selects."""
    known, primary = arms[0].config.metrics(), primaries[BASELINE]
    if known and primary not in known:
        problem = f"the evaluations of this task do not measure {primary!r}"
        split, _, what = primary.rpartition("/")
        remedy = f"Add {what} to train.eval_metrics." if what in kinds("eval_metric") else suggest(primary, known)
        if split in ("val", "test") and not any(name.startswith(f"{split}/") for name in known):
            remedy = NO_SPLIT.format(split)
        raise UserError(problem, path=("measure", "primary"), remedy=remedy)
    for arm in arms:
        for metric in (primaries[arm.name], *([tune.metric] if tune else [])):
            split, _, _ = metric.partition("/")
            has = arm.config.metrics()
            if metric not in has:
                problem = f"no run of arm {arm.name!r} measures {metric!r}, which is required to compare arms"
                absent = split in ("val", "test") and not any(name.startswith(f"{split}/") for name in has)
                remedy = NO_SPLIT.format(split) if absent else f"Use one of: {', '.join(has)}."
                if "ladder" in arm.role and not absent and metric == primaries[arm.name] != primary:
                    # An entry of `tasks` names the metric.
                    place = ("tasks", arm.role["ladder"]["rung"], "measure", "primary")
                    raise UserError(problem, path=place, remedy=remedy)
                raise arm.explain(UserError(problem, path=("task", split), remedy=remedy))
