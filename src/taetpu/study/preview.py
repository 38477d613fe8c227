"""What a study would train, before any of it: arms, differences, sizes, packs. Reads the store, writes nothing."""

from collections.abc import Mapping
from typing import Any

from taetpu.core.config import to_data
from taetpu.spec.design import Arm, Diff, RunSpec, Sources, Study, check_frozen
from taetpu.spec.overrides import show
from taetpu.store.study import StudyFolder
from taetpu.train.count import flops_per_token, num_params
from taetpu.train.plan import PackPlan, plan_packs


def preview(study: Study, folder: StudyFolder) -> dict[str, Any]:
    """The plan of a study as plain data: `study, seeds, steps, task, arms, packs, tokens, flops`.

    Each arm has its `change` in words, its `diff` ({path: [old, new]}), `params`, `flops_per_token` (training), and
    how many of its `runs` are `done`. `packs` are those still to be trained; `tokens` and `flops` are theirs.

    Raises:
        UserError: the store holds another study of this name, or the data cannot be read.
    """
    if folder.exists():
        check_frozen(folder.read_study(), study)
    sources, runs = study.sources, study.runs()
    done = {run.id for run in runs if folder.run(run.arm, run.seed, run.id).status() == "done"}
    missing = [run for run in runs if run.id not in done]
    packs = _packs(missing, folder, sources)
    work = [(run.config.train, sources.of(run.config), run) for run in missing]
    tokens = [train.total_steps(s.num_windows) * train.batch_size * s.seq_len for train, s, _ in work]
    first = study.arms[0].config
    source = sources.of(first)
    return {
        "study": study.name,
        "seeds": list(study.seeds),
        "steps": first.train.total_steps(source.num_windows),
        "task": _task(first.task, source),
        "arms": [_arm(arm, [r for r in runs if r.arm == arm.name], done, sources) for arm in study.arms],
        "packs": packs,
        "tokens": sum(tokens),
        "flops": sum(n * _flops(run, sources) for n, (_, _, run) in zip(tokens, work, strict=True)),
    }


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


def in_words(diff: Diff) -> str:
    """`model.norm: rms -> layer; ...`: what differs, a component by its kind."""
    return "; ".join(f"{path}: {_word(old)} -> {_word(new)}" for path, (old, new) in diff.items())


def _word(value: Any) -> str:
    return str(value["kind"]) if isinstance(value, Mapping) and "kind" in value else show(value)


def _flops(run: RunSpec, sources: Sources) -> int:
    source = sources.of(run.config)
    return flops_per_token(run.config.model, source.vocab_size, source.seq_len)


def _packs(missing: list[RunSpec], folder: StudyFolder, sources: Sources) -> list[dict[str, Any]]:
    """Packs begun earlier as they were planned, then new ones."""
    wanted = {(run.arm, run.seed, run.id) for run in missing}
    stored = [PackPlan.from_data(data) for data in (folder.read_plan() or {"packs": []})["packs"]]
    old = [plan for plan in stored if wanted & set(plan.runs)]
    planned = {names for plan in old for names in plan.runs}
    new = [run for run in missing if (run.arm, run.seed, run.id) not in planned]
    plans = [*old, *plan_packs(new, [sources.of(run.config) for run in new], stored)]
    return [
        {
            "id": plan.id,
            "width": plan.width,
            "devices": plan.devices,
            "arms": list(dict.fromkeys(arm for arm, _, _ in plan.runs)),
            "runs": [list(names) for names in plan.runs],
        }
        for plan in plans
    ]
