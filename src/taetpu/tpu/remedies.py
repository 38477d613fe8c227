"""Find settings with which runs fit into memory, starting with the cheapest setting.

A setting is recommended only if the program with this setting compiles and fits.
"""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from taetpu.core.chips import Slice
from taetpu.nn.stack import REMAT
from taetpu.spec.resolved_study import RunSpec
from taetpu.tpu.compile_client import Facts
from taetpu.tpu.group_plan import GroupPlan, plan_divided
from taetpu.train.layout import fitting_division
from taetpu.train.sharding import device_bytes, possible_divisions

Compile = Callable[[GroupPlan, Slice], Facts]
"""Function that compiles a plan for a slice and returns the compiler's report."""


def find_advice(plan: GroupPlan, facts: Facts, tpu: Slice, compile_plan: Compile) -> dict[str, Any]:
    """Find a setting or a larger slice that makes a run fit into the memory of a device.

    Args:
        plan: The plan that does not fit, with one run per pack.
        facts: The compiler's report on the plan.
        tpu: The slice.
        compile_plan: The compiler.

    Returns:
        The values `remedy`, `needs` and `larger`. `remedy` is a command-line option for the same slice, and `needs` is
        the number of bytes that the run then needs. If no option helps, both are None, and `larger` is the smallest
        larger slice on which the state fits (see `find_larger_slice`).
    """
    for setting, changed in list_remedies(plan, tpu, state="state" in facts["too_large"]):
        outcome = compile_plan(changed, tpu)
        if "memory" in outcome:
            option = f"--set {shlex.quote(setting)}"
            return {"remedy": option, "needs": outcome["memory"]["needed"], "larger": None}
    return {"remedy": None, "needs": None, "larger": find_larger_slice(plan, tpu)}


def find_larger_slice(plan: GroupPlan, tpu: Slice) -> dict[str, Any] | None:
    """Return the smallest larger slice of the same generation on which parameters, moments and gradients fit.

    The result has the name of the slice (`tpu`) and the sizes of the mesh axes (`data` and `model`) over which a run is
    divided. The result is None if no slice is large enough. The program is not compiled.
    """
    config, source = plan.first.config, plan.source
    memory = int(tpu.generation.program_gib * 2**30)
    for larger in tpu.generation.slices():
        if larger.devices <= tpu.devices:
            continue
        data, model = fitting_division(config, source, memory, larger.devices)
        if device_bytes(config, source.interface, source.seq_len, data, model) <= memory:
            return {"tpu": larger.name, "data": data, "model": model}
    return None


def list_remedies(plan: GroupPlan, tpu: Slice, *, state: bool = False) -> Iterator[tuple[str, GroupPlan]]:
    """Yield settings that change results only by rounding, each with the changed plan, in increasing order of cost.

    The order is: the smallest possible increase in the number of microbatches, which costs little; higher levels of
    rematerialisation; larger increases in the number of microbatches; and division of each run over devices.

    Args:
        plan: The plan to change.
        tpu: The slice.
        state: Whether the state alone exceeds the memory, so that only division over devices can help.
    """
    if not state:
        microbatches = list(_accumulate(plan))
        yield from microbatches[:1]
        levels = list(REMAT)  # from least to most recomputation
        for remat in levels[levels.index(plan.execution.remat) + 1 :]:
            yield f"train.compute.remat={remat}", replace(plan, execution=replace(plan.execution, remat=remat))
        yield from microbatches[1:]
    yield from _divide(plan, tpu)


def _divide(plan: GroupPlan, tpu: Slice) -> Iterator[tuple[str, GroupPlan]]:
    """Yield plans that divide each run, including its parameters, over more devices of the slice."""
    config, now = plan.first.config, plan.layout.data * plan.layout.model
    for data, model in possible_divisions(config, plan.source.interface, tpu.devices):
        if data * model > now:
            setting = f"train.compute.mesh={{data: {data}, model: {model}}}"
            yield setting, plan_divided(plan.group, plan.source, plan.precision, tpu, data, model)


def _accumulate(plan: GroupPlan) -> Iterator[tuple[str, GroupPlan]]:
    """Yield plans with more microbatches than `plan`, fewest microbatches first."""
    train = plan.first.config.train
    parts = train.accumulate
    while (parts := 2 * parts) <= train.batch_size:
        if train.batch_size % parts == 0:
            yield f"train.accumulate={parts}", with_train(plan, accumulate=parts)


def with_train(plan: GroupPlan, **fields: Any) -> GroupPlan:
    """Return the plan with the given values for fields of `train` in all of its runs."""

    def update(run: RunSpec) -> RunSpec:
        return replace(run, config=run.config.model_copy(update={"train": run.config.train.model_copy(update=fields)}))

    return replace(plan, group=replace(plan.group, runs=tuple(map(update, plan.group.runs))))
