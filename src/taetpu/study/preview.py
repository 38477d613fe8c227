"""The plan of a study before training: arms, differences, sizes and packs. The store is read but not changed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from math import prod
from typing import Any

from taetpu.contract.check import Progress, check_arm, compare_parameters
from taetpu.contract.traced_program import Computation
from taetpu.core.config import to_data
from taetpu.data.base import Source
from taetpu.data.mixture import facts_of_run
from taetpu.nn.init import relative_std
from taetpu.nn.lm import LMConfig
from taetpu.nn.mask import WindowConfig
from taetpu.report import evaluation_text
from taetpu.report.contrasts import describe_contrast
from taetpu.spec.eval_sample import Sample
from taetpu.spec.frozen import check_frozen
from taetpu.spec.resolved_study import Arm, RunSpec, Sources, Study
from taetpu.stats.arm_changes import effective_overrides, format_changes
from taetpu.stats.load import read_study
from taetpu.store.study import StudyFolder
from taetpu.study.freeze import analysis_plan
from taetpu.study.goal_costs import preview_goal
from taetpu.study.ladder_sizes import ladder_sizes
from taetpu.study.matching import arms_to_time
from taetpu.study.pack_store import resolve_runs, stored_plans
from taetpu.study.post_hoc import count_components
from taetpu.study.resolution import resolution
from taetpu.study.validate import check_study, too_large
from taetpu.train.beside import finish_time, packs_at_once
from taetpu.train.choose_compute import list_fallbacks
from taetpu.train.device_capabilities import Capabilities, first_device
from taetpu.train.layout import AUTO, Packing, group_runs
from taetpu.train.model_cost import named_shapes, num_params, unbounded_loops
from taetpu.train.pack_plan import Run, plan_packs
from taetpu.train.step_time import remembered_step
from taetpu.train.training_flops import training_flops_per_token

OFF = 2.0
"""The factor between the std of weights and 1 / sqrt(fan-in) beyond which `preview` names the init."""


@dataclass(frozen=True)
class Prepared:
    """A checked study and the runs that are left to train.

    Attributes:
        study: the study with its matched arms.
        computed: the computation of each arm, by name.
        tried: the study of the tuning trials, or None if nothing is tuned.
        missing: the unfinished runs of the study, and the unfinished runs of the trials.
    """

    study: Study
    computed: Mapping[str, Computation]
    tried: Study | None
    missing: tuple[list[Run], list[Run]]


def prepare_study(
    study: Study, folder: StudyFolder, progress: Progress = lambda done, total: None, place: Capabilities | None = None
) -> Prepared:
    """Check a study's arms and find the runs that are left to train.

    Args:
        study: the study as loaded from its file.
        folder: the study's folder.
        progress: called with the number of checked arms and the number of all arms.
        place: the devices that train the runs, or None if the devices of this process train them.

    Raises:
        UserError: if the store holds another study of this name, or if `check_study` raises it.
    """
    stored = read_study(folder) if folder.exists() else {}
    if stored:
        check_frozen(stored, study)
    stages, computed = check_study(study, progress, place)
    stages = stages.timed(stored.get("matching", {}))
    whole, tried = stages.matched, stages.trials
    timed = [arm for arm in whole.arms if arm.name not in computed]
    # The train step is the same.
    computed |= {arm.name: computed[match["of"]] for arm in timed if (match := arm.role.get("match"))}
    runs = [resolve_runs(study, folder) if study else [] for study in (whole, tried)]
    missing, missing_trials = ([run for run in part if not run.done] for part in runs)
    return Prepared(whole, computed, tried, (missing, missing_trials))


def preview(
    prepared: Prepared,
    folder: StudyFolder,
    packing: Packing | None = AUTO,
    *,
    programs: bool = False,
    noise: float | None = None,
    effect: float | None = None,
) -> dict[str, Any]:
    """Return the plan of a study as plain data.

    Args:
        prepared: the checked study.
        folder: the study's folder.
        packing: how runs are packed, or None to plan no packs because the runs are trained elsewhere.
        programs: add the hash of each arm's program to its `contract`.
        noise: see `resolution`.
        effect: see `resolution`.

    Returns:
        A dictionary with these entries:
        `study`, `seeds`, `steps`, `task`: the study's name and seeds, the baseline's number of steps and its task.
        `preset`, `start`: the `name` of the baseline's preset or of the model in `model.start`, and the settings of
        its `model`, or None.
        `arms`: for each arm its `change` in words, its `diff` ({path: [old, new]}), `params`, `flops_per_token` for
        training and `executed_flops_per_token` (see `train.training_flops`; each of the `endless_loops` counts as one
        iteration), the number of `runs` and of `done` runs, `init` (see `_init`), `start` (the `file` of parameters,
        and what is loaded, see `StoredParameters.facts`; None if all are drawn), its `contract` (see `contract.check`)
        and `data` (facts about the evaluation text, see `report.evaluation_text`).
        `windows`: what traced and static window masks cost, or None (see `train.compute.windows`).
        `contrasts`: what each planned contrast compares.
        `goal`: the `question`, the `cost` of each candidate, cheapest first, and number of `untrained` ones, or None.
        `ladder`: the size of each rung (see `ladder_sizes`), and `worth`: the cost of `measure.worth`.
        `post_hoc`: for each table its numbers of `runs`, `done` runs, and `parts` of each arm's model.
        `packs`: the packs left to train. Packs with the same `program` are compiled once; `padding` counts extra runs.
        `at_once`: the number of packs that train side by side.
        `tokens`, `flops`: totals of the runs left to train.
        `seconds`: the predicted time of the packs' train steps, from stored times of equal packs; None without them.
        `evaluation`: the sample that is evaluated during training.
        `memory`: the arms that do not fit into the memory of this machine (see `validate.too_large`).
        `at_run`: the arms to match by time if their times have not been measured, else empty.
        `resolution`: see the function `resolution`.
        `tuning`: the runs that tuning adds, and the metric and seeds by which it chooses; None without tuning.

    Raises:
        UserError: if the noise or the effect is invalid.
    """
    study, tried, missing = prepared.study, prepared.tried, prepared.missing
    sources, runs = study.sources, study.runs()
    left = {run.id for run in chain(*missing)}
    done = {run.id for run in chain(runs, tried.runs() if tried else [])} - left
    packs = [entry for part in missing for entry in _packs(study, part, folder, packing)] if packing else []
    source = sources.prepare(first := study.arms[0].config)
    return {
        "study": study.name,
        "preset": study.preset and {"name": study.preset, "model": study.base["model"]},
        "start": study.start_model and {"name": study.start_model.folder, "model": study.base["model"]},
        "seeds": list(study.seeds),
        "steps": first.train.total_steps(source.num_windows),
        "task": _task(first.task, source),
        "windows": _windows(study, runs),
        "contrasts": {name: describe_contrast(contrast) for name, contrast in study.contrasts.items()},
        "goal": preview_goal(study, folder),
        "ladder": ladder_sizes(study),
        "worth": study.measure.worth,
        "post_hoc": _post_hoc(study, folder),
        "arms": _arms(prepared, runs, done, programs),
        "packs": packs,
        "memory": too_large(study, {run.arm for run in missing[0]}) if packing else [],
        "at_once": (at_once := packs_at_once([pack["devices"] for pack in packs])),
        "seconds": _train_seconds(packs, at_once),
        "evaluation": asdict(_sample(folder, first, source)),
        "tokens": sum(_tokens(run, sources) for run in chain(*missing)),
        "flops": _flops(chain(*missing), sources),
        "at_run": _at_run(study),
        "resolution": _resolution(study, folder, _flops(runs, sources), noise, effect),
        "tuning": None if tried is None else _tuning(study, tried, done),
    }


def _arms(prepared: Prepared, runs: list[RunSpec], done: set[str], programs: bool) -> list[dict[str, Any]]:
    study = prepared.study
    return [
        _arm(study, arm, [r for r in runs if r.arm == arm.name], done)
        | {"contract": _contract(study, arm, prepared.computed, programs)}
        for arm in study.arms
    ]


def _resolution(
    study: Study, folder: StudyFolder, flops: float, noise: float | None, effect: float | None
) -> dict[str, Any] | None:
    compared = [study.against(arm).name for arm in study.arms if study.against(arm) is not arm]
    return resolution(analysis_plan(study), compared, folder, flops / len(study.seeds), noise, effect)


def _sample(folder: StudyFolder, config: Any, source: Source) -> Sample:
    stored = read_study(folder).get("evaluation") if folder.exists() else None
    return Sample(**stored) if stored else Sample.from_config(config, source)


def _post_hoc(study: Study, folder: StudyFolder) -> dict[str, dict[str, Any]]:
    runs = resolve_runs(study, folder) if study.post_hoc else []
    stored = [set(run.folder.post_hoc_tables()) for run in runs]
    return {
        name: {"runs": len(runs), "done": sum(name in tables for tables in stored), "parts": parts}
        for name, parts in count_components(study).items()
    }


def _train_seconds(packs: Sequence[Mapping[str, Any]], at_once: int) -> float | None:
    seconds = [pack["seconds"] for pack in packs]
    return None if None in seconds else finish_time(seconds, at_once)


def _at_run(study: Study) -> list[str]:
    """Return the names of the arms to match by time, or an empty list if these arms were measured."""
    by = {match["by"] for arm in study.arms for match in (arm.role.get("match", {"by": ""}), *arm.role.get("also", ()))}
    return [] if "time" in by or "time" not in study.match else [arm.name for arm in arms_to_time(study)]


def _tuning(study: Study, tried: Study, done: set[str]) -> dict[str, Any]:
    """Return the number of `trials`, how many are `done`, the number of runs of `tuned` arms, and how trials compare.

    Trials are compared by the mean of `metric` over `seeds`, which are not the seeds of the study.
    """
    runs = tried.runs()
    arms = [arm for arm in study.arms if study.tune and study.tune.left_by(arm.overrides).values]
    return {
        "trials": len(runs),
        "done": sum(run.id in done for run in runs),
        "tuned": len(arms) * len(study.seeds),
        "metric": study.tune.metric if study.tune else None,
        "seeds": list(tried.seeds),
    }


def _task(task: Any, source: Any) -> dict[str, Any]:
    described = {"kind": task.kind, "vocab": source.vocab_size, "seq_len": source.seq_len}
    if not source.interface.is_language_model:
        described |= {"features": source.interface.features, "outputs": source.interface.output_size}
    windows = {} if source.num_windows is None else {"windows": source.num_windows}
    return {**described, **windows, "sha256": source.fingerprint[:12]}


def _arm(study: Study, arm: Arm, runs: list[RunSpec], done: set[str]) -> dict[str, Any]:
    source = study.source(arm)
    sizes = (arm.config.model, source.interface, source.seq_len)
    facts = {} if source.tokenizer is None else {**source.facts}  # the facts of a synthetic task may take seconds
    train = arm.config.train
    facts |= facts_of_run(source, study.seeds[0], train.total_steps(source.num_windows) * train.batch_size)
    return {
        "name": arm.name,
        "change": _change(arm, to_data(study.baseline)),
        "diff": {path: [to_data(old), to_data(new)] for path, (old, new) in arm.diff.items()},
        "params": num_params(*sizes),
        "flops_per_token": training_flops_per_token(arm.config, source),
        "executed_flops_per_token": training_flops_per_token(arm.config, source, executed=True),
        "endless_loops": unbounded_loops(*sizes),
        "start": (start := _start(study, arm, named_shapes(*sizes))),
        "init": None if start else _init(arm.config.model, source),
        "data": {name: facts[name] for name in evaluation_text.FACTS if name in facts},
        "runs": len(runs),
        "done": sum(run.id in done for run in runs),
    }


def _windows(study: Study, runs: list[RunSpec]) -> dict[str, Any] | None:
    """Return what traced and static window masks cost; None if no arm has a window mask.

    For each value of `train.compute.windows`: `flops_per_token` of the first arm with a window mask, with the attention
    path on which it can be computed, and the number of `programs` of the study.
    """

    def has_window(arm: Arm) -> bool:
        return any(isinstance(layer.typed_mixer.effective_mask, WindowConfig) for layer in arm.config.model.layers)

    arm = next((arm for arm in study.arms if has_window(arm)), None)
    if arm is None:
        return None
    row: dict[str, Any] = {"arm": arm.name, "chosen": arm.config.train.compute.windows}
    for windows, attention in (("traced", "plain"), ("static", "splash")):
        config, source = arm.config.with_windows(windows), study.source(arm)
        flops = training_flops_per_token(config, source, attention)
        first = {run.arm: run for run in reversed(runs)}  # the runs of an arm share a program
        changed = [replace(run, config=run.config.with_windows(windows)) for run in first.values()]
        row[windows] = {"flops_per_token": flops, "programs": len(group_runs(changed))}
    return row


def _start(study: Study, arm: Arm, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any] | None:
    """Return which parameters an arm's first seed loads, draws and leaves unused; None if all are drawn."""
    stored = study.start(arm, study.seeds[0])
    if stored is None:
        return None
    return {"file": stored.where, **stored.facts(shapes)}


def _init(model: LMConfig, source: Source) -> dict[str, Any] | None:
    """Return the `kind` of an init, the model's `dim`, and the `ratio` of the weights' std and 1 / sqrt(fan-in).

    The result is None if the ratio is at most `OFF` and at least 1 / `OFF`.
    """
    ratio = relative_std(model.init, model.dims(source.interface, source.seq_len))
    return None if 1 / OFF <= ratio <= OFF else {"kind": model.init.kind, "dim": model.dim, "ratio": ratio}


def _contract(study: Study, arm: Arm, computed: Mapping[str, Computation], programs: bool) -> dict[str, Any]:
    """Return whether an arm and its baseline share the data, and how many initial parameters are bitwise equal."""
    old, new = computed[study.against(arm).name], computed[arm.name]
    comparison = compare_parameters(old, new)
    return {
        "same_data": new.same_data(old),
        "same_parameters": len(comparison.equal),
        "other_parameters": len(new.parameters) - len(comparison.equal),
        **({"program": new.outline.program} if programs else {}),
    }


def _change(arm: Arm, base: Mapping[str, Any]) -> str:
    """Return an arm's change as text. A matched arm shows its original arm and the fields that matching changes."""
    match = arm.role.get("match")
    also = "".join(f"; also {other['of']} matched by {other['by']}" for other in arm.role.get("also", ()))
    if match is None:
        resets = {path: to_data([*pair]) for path, pair in arm.resets.items()}
        return format_changes(effective_overrides(arm.overrides, arm.idle), base, resets) + also
    changed = {path: value for path, value in match.items() if "." in path and value is not None}
    return f"{match['of']}; {format_changes(changed, base)}{also}"


def _tokens(run: RunSpec, sources: Sources) -> int:
    source, train = sources.prepare(run.config), run.config.train
    return train.total_steps(source.num_windows) * train.batch_size * source.seq_len


def _flops(runs: Iterable[RunSpec], sources: Sources) -> float:
    """Return the FLOPs of training the given runs."""
    return sum(
        _tokens(run, sources) * training_flops_per_token(run.config, sources.prepare(run.config)) for run in runs
    )


def _packs(study: Study, missing: list[Run], folder: StudyFolder, packing: Packing) -> Iterator[dict[str, Any]]:
    """Yield an entry for each stored pack with missing runs, followed by an entry for each new pack."""
    wanted = {run.key: run for run in missing}
    stored = stored_plans(folder)
    old = [plan for plan in stored if wanted.keys() & set(plan.runs)]
    planned = {names for plan in old for names in plan.runs}
    new = [run for names, run in wanted.items() if names not in planned]
    programs = dict[str, int]()
    sources = [study.sources.prepare(run.config) for run in new]
    for plan in [*old, *plan_packs(new, sources, stored, packing, beside=True)]:
        runs = tuple(wanted[names] for names in plan.runs if names in wanted)
        config, divided = runs[0].config, plan.layout.divided
        source, step = study.sources.prepare(config), remembered_step(plan, config)
        fallbacks = list_fallbacks(config, source, plan.compute, plan.precision, divided=divided)
        yield {
            **plan.facts,
            "padding": plan.layout.width - len(plan.runs),
            "program": programs.setdefault(plan.program_key(config), len(programs) + 1),
            "seconds": None if step is None else step * config.train.total_steps(source.num_windows),
            "arms": list(dict.fromkeys(arm for arm, _, _ in plan.runs)),
            "runs": [list(names) for names in plan.runs],
            "routed": [str(fallback) for fallback in fallbacks],
        }


# --- the differences of one arm ---------------------------------------------------------------------------------------


def diff_arm(study: Study, name: str) -> dict[str, Any]:
    """Compare an arm with the baseline, even if the arm breaks the arm contract.

    Returns:
        A dictionary with the names `study` and `arm`, and these entries:
        `config`: `{path: [old, new]}`, with the fields that change because their slot is replaced.
        `parameters` (their number), `flops_per_token`, `program` (its hash): `[old, new]`.
        `added`, `removed`, `reshaped`, `redrawn` (with different initial values), `equal` (with bitwise equal initial
        values): the parameters by logical name, each with its shape; reshaped parameters have both shapes.
        `operations`: the StableHLO operations of a train step and an evaluation whose count changes, as
        `{name: [old, new]}`, largest changes first.
        `same_data`: whether a seed reads the same windows in the same order.
        `breaks`: how the arm breaks the contract, or None if the arm respects it.

    Raises:
        UserError: if the study has no such arm or if the arm cannot be built.
    """
    first_device()
    study.runs()
    old, new, broken = check_arm(study, name)
    comparison = compare_parameters(old, new)
    arm = next(arm for arm in study.arms if arm.name == name)
    return {
        "study": study.name,
        "arm": name,
        "config": {path: to_data([*pair]) for path, pair in {**arm.diff, **arm.resets}.items()},
        "parameters": [sum(prod(p.shape) for p in run.parameters.values()) for run in (old, new)],
        "added": {n: list(new.parameters[n].shape) for n in comparison.added},
        "removed": {n: list(old.parameters[n].shape) for n in comparison.removed},
        "reshaped": {n: [list(old.parameters[n].shape), list(new.parameters[n].shape)] for n in comparison.reshaped},
        "redrawn": {n: list(new.parameters[n].shape) for n in comparison.redrawn},
        "equal": {n: list(new.parameters[n].shape) for n in comparison.equal},
        "flops_per_token": [training_flops_per_token(run.config, run.source) for run in (old, new)],
        "program": [old.outline.program, new.outline.program],
        "operations": _operations(old, new),
        "same_data": new.same_data(old),
        "breaks": None if broken is None else broken.problem,
    }


def _operations(old: Computation, new: Computation) -> dict[str, list[int]]:
    before, after = old.outline.operations, new.outline.operations
    counts = {name: [before.get(name, 0), after.get(name, 0)] for name in sorted({**before, **after})}
    changed = {name: pair for name, pair in counts.items() if pair[0] != pair[1]}
    return dict(sorted(changed.items(), key=lambda item: -abs(item[1][1] - item[1][0])))
