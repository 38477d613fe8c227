"""What one arm changes: in its config, its parameters, its FLOPs, its program, its start and its data."""

from math import prod
from typing import Any

from taetpu.contract.check import check_arm, compare_parameters
from taetpu.contract.computation import Computation
from taetpu.core.config import to_data
from taetpu.spec.resolved_study import Study
from taetpu.train.device_capabilities import first_device
from taetpu.train.training_flops import training_flops_per_token


def changes(study: Study, name: str) -> dict[str, Any]:
    """An arm against the baseline, as plain data; also of an arm that breaks the arm contract.

    `config` is `{path: [old, new]}`; `parameters` and `flops_per_token` hold `[before, after]`; `reshaped`, `added`,
    `removed`, `redrawn` (started from other values) and `equal` (started from the same bits) are parameters by logical
    name, each with its shape, or both where there are two; `operations` are the StableHLO operations of a train step
    and an evaluation whose number changes, `{name: [before, after]}`; `same_data` says whether a seed reads the same
    windows in the same order; `breaks` is how the contract is broken, None where it holds.

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
        "parameters": [_count(old), _count(new)],
        "added": {n: list(new.parameters[n].shape) for n in found.added},
        "removed": {n: list(old.parameters[n].shape) for n in found.removed},
        "reshaped": {n: [list(old.parameters[n].shape), list(new.parameters[n].shape)] for n in found.reshaped},
        "redrawn": {n: list(new.parameters[n].shape) for n in found.redrawn},
        "equal": {n: list(new.parameters[n].shape) for n in found.equal},
        "flops_per_token": [_flops(old), _flops(new)],
        "program": [old.outline.program, new.outline.program],
        "operations": _operations(old, new),
        "same_data": new.same_data(old),
        "breaks": None if broken is None else broken.problem,
    }


def _count(run: Computation) -> int:
    return sum(prod(parameter.shape) for parameter in run.parameters.values())


def _flops(run: Computation) -> int:
    return training_flops_per_token(run.config, run.source)


def _operations(old: Computation, new: Computation) -> dict[str, list[int]]:
    """The largest changes first."""
    before, after = old.outline.operations, new.outline.operations
    counts = {name: [before.get(name, 0), after.get(name, 0)] for name in sorted({**before, **after})}
    changed = {name: pair for name, pair in counts.items() if pair[0] != pair[1]}
    return dict(sorted(changed.items(), key=lambda item: -abs(item[1][1] - item[1][0])))
