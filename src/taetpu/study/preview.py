"""What a study would train, before any of it: arms, differences, sizes, packs. Reads the store, writes nothing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from taetpu.contract.check import Progress, compare_parameters
from taetpu.contract.computation import Computation
from taetpu.core.config import to_data
from taetpu.report import held_out
from taetpu.spec.evaluation import Sample
from taetpu.spec.resolved_study import Arm, RunSpec, Sources, Study, check_frozen
from taetpu.stats.changes import effective_overrides, format_changes
from taetpu.stats.load import read_study
from taetpu.store.study import StudyFolder
from taetpu.study.arms import list_arms
from taetpu.study.forecast import Pack, forecast
from taetpu.study.matching import arms_to_time
from taetpu.study.pack_store import resolve_runs, stored_plans
from taetpu.study.power import resolution
from taetpu.study.tuning import trial_study
from taetpu.study.validate import check_study, too_large
from taetpu.train.compute import list_fallbacks
from taetpu.train.device_capabilities import Capabilities
from taetpu.train.layout import AUTO, Packing
from taetpu.train.model_cost import num_params, unbounded_loops
from taetpu.train.pack_plan import Run, plan_packs
from taetpu.train.step_time import remembered_step
from taetpu.train.training_flops import training_flops_per_token


@dataclass(frozen=True)
class Prepared:
    """A study with its arms proved, and which of its runs are to be trained.

    Attributes:
        study: its matched arms among its arms.
        computed: what each arm computes.
        tried: what tuning trains first; None without tuning.
        missing: the runs of the study, then those of tuning, that are not done.
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
    """The plan of a study as plain data: `study, seeds, steps, task, arms, packs, memory, evaluation, time, tokens,
    flops, at_run, resolution, tuning`.

    Each arm has its `change` in words, its `diff` ({path: [old, new]}), `params`, `flops_per_token` (training; of its
    `endless_loops`, whose length is not known, one round), and how many of its `runs` are `done`; what the arm contract
    found (`contract`), the hash of its program with it when `programs` are asked for; and what its task says of the
    evaluation text (`data`, see `report.held_out`). `packs` are those still to be trained (those of one `program` share
    a compile), with the `seconds` that their steps take where that was measured before; `tokens` and `flops` are
    theirs. `time` is how long they take, a range for each part of it (`study.forecast.Forecast.facts`; None where
    nothing is known), `evaluation` the sample that is evaluated during training (`spec.evaluation.Sample`). `memory`
    lists the arms whose runs do not fit into memory here (see `study.validate.too_large`). `at_run` are the arms whose
    matching by time is measured when the study is run; `tuning` is what it adds, its first runs among the packs.

    Args:
        packing: None where runs are to be trained elsewhere: then no packs are planned.
        noise, effect: what the `resolution` is computed from (see `study.power`).

    Raises:
        UserError: a noise or an effect that nothing can be planned with.
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
    """The arms whose matching by time has not been measured."""
    by = {match["by"] for arm in study.arms for match in (arm.role.get("match", {"by": ""}), *arm.role.get("also", ()))}
    return [] if "time" in by or "time" not in study.match else [arm.name for arm in arms_to_time(study)]


def _tuning(study: Study, tried: Study, done: set[str]) -> dict[str, Any]:
    """What tuning adds: `trials`, how many of them are `done`, and runs of arms at what they found best (`tuned`)."""
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
    """How much of its baseline an arm keeps: parameters that start from the same bits, and the data's order."""
    old, new = computed[study.against(arm).name], computed[arm.name]
    found = compare_parameters(old, new)
    return {
        "same_data": new.same_data(old),
        "same_parameters": len(found.equal),
        "other_parameters": len(new.parameters) - len(found.equal),
        **({"program": new.outline.program} if programs else {}),
    }


def _change(arm: Arm, base: Mapping[str, Any]) -> str:
    """What an arm changes, as the report says it; of a matched one, which arm it is and what matching changes of it."""
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
    """What training all of them takes."""
    found = 0
    for run in runs:
        source = sources.prepare(run.config)
        found += _tokens(run, sources) * training_flops_per_token(run.config, source)
    return found


def evaluated_sample(study: Study, folder: StudyFolder) -> Sample:
    """The sample of the validation split that the study was frozen with, or would be."""
    stored = read_study(folder).get("evaluation") if folder.exists() else None
    return Sample.from_data(stored) if stored else Sample.from_config(study.arms[0].config, study.source(study.arms[0]))


def _packs(
    study: Study, missing: list[Run], folder: StudyFolder, packing: Packing
) -> list[tuple[dict[str, Any], Pack]]:
    """Packs begun earlier as they were planned, then new ones; each as it is shown, and as its time is computed."""
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
