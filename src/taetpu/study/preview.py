"""The plan of a study before training: arms, differences, sizes, packs. Reads the store and writes nothing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from math import inf, isfinite, prod
from typing import Any

from taetpu.contract.check import Progress, check_arm, compare_parameters
from taetpu.contract.computation import Computation
from taetpu.core.config import to_data
from taetpu.core.errors import UserError
from taetpu.report import held_out
from taetpu.spec.evaluation import Sample
from taetpu.spec.resolved_study import Arm, RunSpec, Sources, Study, check_frozen
from taetpu.stats.arm_changes import effective_overrides, format_changes
from taetpu.stats.load import read_study
from taetpu.stats.plan import metric_bounds
from taetpu.stats.power import POWER, PowerAnalysis
from taetpu.store.study import StudyFolder
from taetpu.study.arms import list_arms
from taetpu.study.forecast import Pack, forecast
from taetpu.study.freeze import analysis_plan
from taetpu.study.matching import arms_to_time
from taetpu.study.pack_store import resolve_runs, stored_plans
from taetpu.study.tuning import trial_study
from taetpu.study.validate import check_study, too_large
from taetpu.train.compute import list_fallbacks
from taetpu.train.device_capabilities import Capabilities, first_device
from taetpu.train.layout import AUTO, Packing
from taetpu.train.model_cost import num_params, unbounded_loops
from taetpu.train.pack_plan import Run, plan_packs
from taetpu.train.step_time import remembered_step
from taetpu.train.training_flops import training_flops_per_token


@dataclass(frozen=True)
class Prepared:
    """A checked study, and its runs that are left to train.

    Attributes:
        study: with its matched arms.
        computed: the computation of each arm, by name.
        tried: the trials of tuning; None without tuning.
        missing: the unfinished runs of the study, and those of the trials.
    """

    study: Study
    computed: Mapping[str, Computation]
    tried: Study | None
    missing: tuple[list[Run], list[Run]]


def prepare_study(
    study: Study, folder: StudyFolder, progress: Progress = lambda done, total: None, place: Capabilities | None = None
) -> Prepared:
    """Check a study's arms, and find the runs that are left to train.

    Args:
        progress: called with the number of checked arms, and of all.
        place: the devices that train the runs, if not those of this process.

    Raises:
        UserError: the store holds another study of this name, the data cannot be read, or an arm breaks the contract.
    """
    stored = read_study(folder) if folder.exists() else {}
    if stored:
        check_frozen(stored, study)
    checked, computed = check_study(study, progress, place)
    whole = checked.changed(arms=list_arms(study, stored.get("matching")))
    timed = [arm for arm in whole.arms if arm.name not in computed]
    computed |= {arm.name: computed[arm.role["match"]["of"]] for arm in timed}  # a step is the same
    tried = None if whole.tune is None else trial_study(whole)
    runs = [resolve_runs(one, folder) if one else [] for one in (whole, tried)]
    missing, missing_trials = ([run for run in part if not run.done] for part in runs)
    return Prepared(whole, computed, tried, (missing, missing_trials))


def preview(
    found: Prepared,
    folder: StudyFolder,
    packing: Packing | None = AUTO,
    *,
    programs: bool = False,
    noise: float | None = None,
    effect: float | None = None,
) -> dict[str, Any]:
    """Return the plan of a study as plain data.

    Args:
        found: the checked study.
        folder: the study's folder.
        packing: how runs are packed; None to plan no packs, because runs are trained elsewhere.
        programs: add the hash of each arm's program to its `contract`.
        noise: see `resolution`.
        effect: see `resolution`.

    Returns:
        `study`, `seeds`, `steps`, `task`; `arms`, each with its `change` in words, its `diff` ({path: [old, new]}),
        `params`, `flops_per_token` (of training, with one round of each of its `endless_loops`), the numbers of its
        `runs` and of those `done`, its `contract` (see `contract.check`) and `data` (facts about the evaluation text,
        see `report.held_out`); `packs` left to train, with the `seconds` of their steps if those were measured before
        (packs with one `program` share a compile), and their `tokens` and `flops`; `time`, a range for each part of
        training (`Forecast.facts`; None if unknown); `evaluation`, the sample evaluated in training; `memory`, the arms
        that do not fit into memory here (see `validate.too_large`); `at_run`, the arms matched by time, if none has
        been measured; `resolution`; and `tuning`, the runs that it adds.

    Raises:
        UserError: the noise or the effect is invalid.
    """
    study, tried, missing = found.study, found.tried, found.missing
    sources, runs = study.sources, study.runs()
    left = {run.id for run in chain(*missing)}
    done = {run.id for run in chain(runs, tried.runs() if tried else [])} - left
    packs, planned = [], list[Pack]()
    memory = too_large(study, {run.arm for run in missing[0]}) if packing else []
    for part in missing:
        for entry, pack in _packs(study, part, folder, packing) if packing else ():
            packs.append(entry)
            planned.append(pack)
    sample = evaluated_sample(study, folder)
    time = forecast(planned, sources, sample) if planned else None
    first = study.arms[0].config
    source = sources.prepare(first)
    return {
        "study": study.name,
        "seeds": list(study.seeds),
        "steps": first.train.total_steps(source.num_windows),
        "task": _task(first.task, source),
        "arms": [
            {
                **_arm(study, arm, [r for r in runs if r.arm == arm.name], done),
                "contract": _contract(study, arm, found.computed, programs),
            }
            for arm in study.arms
        ],
        "packs": packs,
        "memory": memory,
        "evaluation": sample.frozen,
        "time": None if time is None else time.facts,
        "tokens": sum(_tokens(run, sources) for run in chain(*missing)),
        "flops": _flops(chain(*missing), sources),
        "at_run": _at_run(study),
        "resolution": resolution(study, folder, _flops(runs, sources) / len(study.seeds), noise, effect),
        "tuning": None if tried is None else _tuning(study, tried, done),
    }


def _at_run(study: Study) -> list[str]:
    """Return the arms that are matched by time, if none has been measured."""
    by = {match["by"] for arm in study.arms for match in (arm.role.get("match", {"by": ""}), *arm.role.get("also", ()))}
    return [] if "time" in by or "time" not in study.match else [arm.name for arm in arms_to_time(study)]


def _tuning(study: Study, tried: Study, done: set[str]) -> dict[str, Any]:
    """Return how many runs tuning adds: `trials`, how many of them are `done`, and those of `tuned` arms."""
    runs = tried.runs()
    arms = [arm for arm in study.arms if study.tune and study.tune.left_by(arm.overrides).values]
    return {"trials": len(runs), "done": sum(run.id in done for run in runs), "tuned": len(arms) * len(study.seeds)}


def _task(task: Any, source: Any) -> dict[str, Any]:
    described = {"kind": task.kind, "vocab": source.vocab_size, "seq_len": source.seq_len}
    windows = {} if source.num_windows is None else {"windows": source.num_windows}
    return {**described, **windows, "sha256": source.fingerprint[:12]}


def _arm(study: Study, arm: Arm, runs: list[RunSpec], done: set[str]) -> dict[str, Any]:
    source = study.source(arm)
    sizes = (arm.config.model, source.vocab_size, source.seq_len)
    facts = {} if source.tokenizer is None else source.facts  # of text; a synthetic task's may take seconds
    return {
        "name": arm.name,
        "change": _change(arm, to_data(study.baseline)),
        "diff": {path: [to_data(old), to_data(new)] for path, (old, new) in arm.diff.items()},
        "params": num_params(*sizes),
        "flops_per_token": training_flops_per_token(arm.config, source),
        "endless_loops": unbounded_loops(*sizes),
        "data": {name: facts[name] for name in held_out.FACTS if name in facts},
        "runs": len(runs),
        "done": sum(run.id in done for run in runs),
    }


def _contract(study: Study, arm: Arm, computed: Mapping[str, Computation], programs: bool) -> dict[str, Any]:
    """Return how much an arm shares with its baseline: initial parameters of the same bits, and the data's order."""
    old, new = computed[study.against(arm).name], computed[arm.name]
    found = compare_parameters(old, new)
    return {
        "same_data": new.same_data(old),
        "same_parameters": len(found.equal),
        "other_parameters": len(new.parameters) - len(found.equal),
        **({"program": new.outline.program} if programs else {}),
    }


def _change(arm: Arm, base: Mapping[str, Any]) -> str:
    """Return the change of an arm as in the report; of a matched arm, its original and what matching changes."""
    match = arm.role.get("match")
    also = "".join(f"; also {other['of']} matched by {other['by']}" for other in arm.role.get("also", ()))
    if match is None:
        return format_changes(effective_overrides(arm.overrides, arm.idle), base) + also
    changed = {path: value for path, value in match.items() if "." in path and value is not None}
    return f"{match['of']}; {format_changes(changed, base)}{also}"


def _tokens(run: RunSpec, sources: Sources) -> int:
    source, train = sources.prepare(run.config), run.config.train
    return train.total_steps(source.num_windows) * train.batch_size * source.seq_len


def _flops(runs: Iterable[RunSpec], sources: Sources) -> float:
    """Return the FLOPs of training some runs."""
    found = 0
    for run in runs:
        source = sources.prepare(run.config)
        found += _tokens(run, sources) * training_flops_per_token(run.config, source)
    return found


def evaluated_sample(study: Study, folder: StudyFolder) -> Sample:
    """Return the sample of the validation split that the study was frozen with, or would be."""
    stored = read_study(folder).get("evaluation") if folder.exists() else None
    return Sample.from_data(stored) if stored else Sample.from_config(study.arms[0].config, study.source(study.arms[0]))


def _packs(
    study: Study, missing: list[Run], folder: StudyFolder, packing: Packing
) -> list[tuple[dict[str, Any], Pack]]:
    """Return stored packs and then new ones: each as `preview` returns it, and as `forecast` takes it."""
    wanted = {run.key: run for run in missing}
    stored = stored_plans(folder)
    old = [plan for plan in stored if wanted.keys() & set(plan.runs)]
    planned = {names for plan in old for names in plan.runs}
    new = [run for names, run in wanted.items() if names not in planned]
    found, programs = [], dict[str, int]()
    for plan in [*old, *plan_packs(new, [study.sources.prepare(run.config) for run in new], stored, packing)]:
        runs = tuple(wanted[names] for names in plan.runs if names in wanted)
        source = study.sources.prepare(runs[0].config)
        a_step = remembered_step(plan.work(runs, source), plan.layout)
        steps = runs[0].config.train.total_steps(source.num_windows)
        program = plan.program_key(runs[0].config)
        entry = {
            **plan.facts,
            "program": programs.setdefault(program, len(programs) + 1),
            "arms": list(dict.fromkeys(arm for arm, _, _ in plan.runs)),
            "runs": [list(names) for names in plan.runs],
            "routed": [
                str(one)
                for one in list_fallbacks(
                    runs[0].config, source, plan.compute, plan.precision, divided=plan.layout.divided
                )
            ],
            "seconds": None if a_step is None else a_step * steps,
        }
        taken = max(folder.pack(plan.id).steps(), default=0) if plan in old else 0
        found.append((entry, (plan, runs, taken)))
    return found


# --- the differences of one arm ---------------------------------------------------------------------------------------


def diff_arm(study: Study, name: str) -> dict[str, Any]:
    """Compare an arm with the baseline, even if it breaks the arm contract.

    Returns:
        `config`: `{path: [old, new]}`; `parameters`, `flops_per_token` and `program` (hashes): `[old, new]`;
        parameters by logical name with their shape, or both shapes: `added`, `removed`, `reshaped`, `redrawn` (of other
        initial values) and `equal` (of the same initial bits); `operations`: the StableHLO operations of a train step
        and an evaluation whose number changes, `{name: [old, new]}`, largest changes first; `same_data`: whether a seed
        reads the same windows in the same order; `breaks`: how the arm breaks the contract, or None.

    Raises:
        UserError: the study has no such arm, or it cannot be built.
    """
    first_device()
    study.runs()
    old, new, broken = check_arm(study, name)
    found = compare_parameters(old, new)
    arm = next(arm for arm in study.arms if arm.name == name)
    return {
        "study": study.name,
        "arm": name,
        "config": {path: [to_data(before), to_data(after)] for path, (before, after) in arm.diff.items()},
        "parameters": [_num_params(old), _num_params(new)],
        "added": {n: list(new.parameters[n].shape) for n in found.added},
        "removed": {n: list(old.parameters[n].shape) for n in found.removed},
        "reshaped": {n: [list(old.parameters[n].shape), list(new.parameters[n].shape)] for n in found.reshaped},
        "redrawn": {n: list(new.parameters[n].shape) for n in found.redrawn},
        "equal": {n: list(new.parameters[n].shape) for n in found.equal},
        "flops_per_token": [_flops_per_token(old), _flops_per_token(new)],
        "program": [old.outline.program, new.outline.program],
        "operations": _operations(old, new),
        "same_data": new.same_data(old),
        "breaks": None if broken is None else broken.problem,
    }


def _num_params(run: Computation) -> int:
    return sum(prod(parameter.shape) for parameter in run.parameters.values())


def _flops_per_token(run: Computation) -> int:
    return training_flops_per_token(run.config, run.source)


def _operations(old: Computation, new: Computation) -> dict[str, list[int]]:
    before, after = old.outline.operations, new.outline.operations
    counts = {name: [before.get(name, 0), after.get(name, 0)] for name in sorted({**before, **after})}
    changed = {name: pair for name, pair in counts.items() if pair[0] != pair[1]}
    return dict(sorted(changed.items(), key=lambda item: -abs(item[1][1] - item[1][0])))


# --- the effects that a study can find --------------------------------------------------------------------------------


MIN_SEEDS = 2
"""The fewest seeds whose results have a variance."""


def resolution(
    study: Study, folder: StudyFolder, flops_a_seed: float, noise: float | None = None, effect: float | None = None
) -> dict[str, Any]:
    """Return the smallest true effect that this study detects with a power of 80 %.

    Args:
        study: with all arms that are known.
        folder: the study's folder.
        flops_a_seed: the FLOPs of training all arms on one seed.
        noise: the standard deviation of a run around the effects of its arm and seed; default: that of the stored
            results.
        effect: a true effect to detect.

    Returns:
        `noise` and its source `noise_from`; `resolves`, the smallest effect in the metric's unit, and `resolves_sd`, in
        standard deviations, which requires no noise; `most`, the largest effect that the metric allows (None: any); for
        the `effect`, the `seeds` that it requires and the `flops` of training them.

    Raises:
        UserError: a noise or an effect is not a finite number above 0, or an effect is given without a known noise.
    """
    for name, value in (("noise", noise), ("effect", effect)):
        if value is not None and not 0 < value < inf:
            raise UserError(
                f"`{name}` must be finite and above 0, got {value:g}", path=(name,), remedy="Use e.g. 0.01."
            )
    known, source = (noise, "stated") if noise else (_measured(folder), "measured")
    if effect is not None and known is None:
        remedy = "Use e.g. --noise 0.01, or run the study first."
        raise UserError("the seeds for an effect depend on the noise, which is not known yet", remedy=remedy)
    compared = [study.against(arm) for arm in study.arms if study.against(arm) is not arm]
    arms, together = len(compared), sum(baseline is study.arms[0] for baseline in compared)
    found = {"noise": known, "noise_from": source if known else None, "resolves": None, "resolves_sd": None}
    low, high = metric_bounds(study.measure.primary)
    found["most"] = high - low if isfinite(high) else None
    found |= {"power": POWER, "effect": effect, "seeds": None, "flops": None}
    if not arms:
        return found
    plan, seeds = analysis_plan(study), len(study.seeds)
    in_sd = PowerAnalysis(arms, plan.strictest_level(arms, seeds), df_a_seed=together or None).smallest_effect(
        1.0, seeds
    )
    design = PowerAnalysis(arms, plan.alpha, df_a_seed=together or None)
    found |= {"resolves_sd": in_sd, "resolves": in_sd * known if in_sd and known else None}
    if effect is not None and known is not None:
        least = design.smallest_effect(1.0, MIN_SEEDS)  # the power at far larger effects cannot be computed
        needed = MIN_SEEDS if least and effect >= least * known else design.seeds_needed(effect, known)
        found |= {"seeds": needed, "flops": None if needed is None else needed * flops_a_seed}
    return found


def _measured(folder: StudyFolder) -> float | None:
    results = folder.read_results() if folder.exists() else None
    return results["model"]["residual_sd"] if results else None
