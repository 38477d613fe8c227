"""What a study would train, before any of it: arms, differences, sizes, packs. Reads the store, writes nothing."""

from typing import Any

from taetpu.contract.check import Progress, check, compare
from taetpu.contract.computation import Computation
from taetpu.core.config import to_data
from taetpu.core.traced import split
from taetpu.spec.design import Arm, Diff, RunSpec, Sources, Study, check_frozen
from taetpu.spec.overrides import brief
from taetpu.store.study import StudyFolder
from taetpu.study.packs import stored_plans
from taetpu.study.planner import resolution
from taetpu.train.calibrate import Calibration
from taetpu.train.count import flops_per_token, num_params
from taetpu.train.pack import structure_key
from taetpu.train.plan import AUTO, Group, Layout, Packing, Work, plan_packs


def preview(
    study: Study,
    folder: StudyFolder,
    packing: Packing = AUTO,
    *,
    programs: bool = False,
    noise: float | None = None,
    effect: float | None = None,
    told: Progress = lambda done, of: None,
) -> dict[str, Any]:
    """The plan of a study as plain data: `study, seeds, steps, task, arms, packs, tokens, flops, resolution, tuning`.

    Each arm has its `change` in words, its `diff` ({path: [old, new]}), `params`, `flops_per_token` (training), and
    how many of its `runs` are `done`; what the arm contract found (`contract`), the hash of its program with it when
    `programs` are asked for. `packs` are those still to be trained (those of one `program` share a compile), with the
    `seconds` that their steps take where that was measured before; `tokens` and `flops` are theirs.

    Args:
        noise, effect: what the `resolution` is computed from (see `study.planner`).
        told: called with how many arms are proved, and of how many.

    Raises:
        UserError: the store holds another study of this name, the data cannot be read, or an arm breaks the contract.
    """
    if folder.exists():
        check_frozen(folder.read_study(), study)
    sources, runs = study.sources, study.runs()
    computed = check(study, told)
    done = {run.id for run in runs if folder.run(run.arm, run.seed, run.id).status() == "done"}
    missing = [run for run in runs if run.id not in done]
    packs = _packs(study, missing, folder, packing)
    work = [(run.config.train, sources.of(run.config), run) for run in missing]
    tokens = [train.total_steps(s.num_windows) * train.batch_size * s.seq_len for train, s, _ in work]
    first = study.arms[0].config
    source = sources.of(first)
    return {
        "study": study.name,
        "seeds": list(study.seeds),
        "steps": first.train.total_steps(source.num_windows),
        "task": _task(first.task, source),
        "arms": [
            {
                **_arm(arm, [r for r in runs if r.arm == arm.name], done, sources),
                "contract": _contract(computed[study.arms[0].name], computed[arm.name], programs),
            }
            for arm in study.arms
        ],
        "packs": packs,
        "tokens": sum(tokens),
        "flops": sum(n * _flops(run, sources) for n, (_, _, run) in zip(tokens, work, strict=True)),
        "resolution": resolution(study, folder, _all_flops(runs, sources) / len(study.seeds), noise, effect),
        "tuning": _tuning(study),
    }


def _all_flops(runs: list[RunSpec], sources: Sources) -> float:
    """What all runs take, done or not."""
    found = 0.0
    for run in runs:
        source, train = sources.of(run.config), run.config.train
        found += train.total_steps(source.num_windows) * train.batch_size * source.seq_len * _flops(run, sources)
    return found


def _tuning(study: Study) -> dict[str, Any] | None:
    """How many runs tuning adds: every arm tries every combination, and is then trained anew at the best."""
    if study.tune is None:
        return None
    cells, arms = len(study.tune.cells), len(study.arms)
    tried = cells * arms * len(study.tune.seeds)
    return {"combinations": cells, "trials": tried, "tuned": arms * len(study.seeds)}


def _task(task: Any, source: Any) -> dict[str, Any]:
    described = {"kind": task.kind, "vocab": source.vocab_size, "seq_len": source.seq_len}
    windows = {} if source.num_windows is None else {"windows": source.num_windows}
    return {**described, **windows, "sha256": source.fingerprint[:12]}


def _arm(arm: Arm, runs: list[RunSpec], done: set[str], sources: Sources) -> dict[str, Any]:
    source = sources.of(arm.config)
    sizes = (arm.config.model, source.vocab_size, source.seq_len)
    return {
        "name": arm.name,
        "change": in_words(arm.diff),
        "diff": {path: [to_data(old), to_data(new)] for path, (old, new) in arm.diff.items()},
        "params": num_params(*sizes),
        "flops_per_token": flops_per_token(*sizes),
        "runs": len(runs),
        "done": sum(run.id in done for run in runs),
    }


def _contract(baseline: Computation, arm: Computation, programs: bool) -> dict[str, Any]:
    """How much of the baseline an arm keeps: parameters that start from the same bits, and the data's order."""
    found = compare(baseline, arm)
    return {
        "same_data": arm.same_data(baseline),
        "same_parameters": len(found.equal),
        "other_parameters": len(arm.parameters) - len(found.equal),
        **({"program": arm.outline.program} if programs else {}),
    }


def in_words(diff: Diff) -> str:
    """`model.norm: rms -> layer; ...`: what differs, a component by its kind."""
    return "; ".join(f"{path}: {brief(old)} -> {brief(new)}" for path, (old, new) in diff.items())


def _flops(run: RunSpec, sources: Sources) -> int:
    source = sources.of(run.config)
    return flops_per_token(run.config.model, source.vocab_size, source.seq_len)


def _packs(study: Study, missing: list[RunSpec], folder: StudyFolder, packing: Packing) -> list[dict[str, Any]]:
    """Packs begun earlier as they were planned, then new ones."""
    wanted = {(run.arm, run.seed, run.id): run for run in missing}
    stored = stored_plans(folder)
    old = [plan for plan in stored if wanted.keys() & set(plan.runs)]
    planned = {names for plan in old for names in plan.runs}
    new = [run for names, run in wanted.items() if names not in planned]
    known = Calibration(study.folder, tuple(plugin.file for plugin in study.plugins))  # of earlier studies: no watcher
    at_run = set[str]()

    def measure(work: Work, packing: Packing) -> Layout | None:
        layout = known(work, packing)
        if layout is None and known.wanted(work, packing):
            at_run.update(run.id for run in work.group.runs)
        return layout

    found, programs = [], dict[str, int]()
    for plan in [*old, *plan_packs(new, [study.sources.of(run.config) for run in new], stored, packing, measure)]:
        runs = tuple(wanted[names] for names in plan.runs if names in wanted)
        source = study.sources.of(runs[0].config)
        a_step = known.seconds(Work(Group(frozenset(plan.live), runs), source, plan.precision), plan.layout)
        steps = runs[0].config.train.total_steps(source.num_windows)
        structure = structure_key(split(runs[0].config, frozenset(plan.live))[0])
        entry = {
            **plan.facts,
            "program": programs.setdefault(f"{plan.layout} {plan.precision} {structure}", len(programs) + 1),
            "chosen": "measured at run" if runs[0].id in at_run else plan.chosen,
            "arms": list(dict.fromkeys(arm for arm, _, _ in plan.runs)),
            "runs": [list(names) for names in plan.runs],
            "seconds": None if a_step is None or runs[0].id in at_run else a_step * steps,
        }
        found.append(entry)
    return found
