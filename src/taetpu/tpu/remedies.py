"""Settings that make runs fit into memory, the cheapest first; each is compiled before it is recommended."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from taetpu.core.chips import Slice
from taetpu.nn.stack import REMAT
from taetpu.spec.resolved_study import RunSpec
from taetpu.tpu.compiler import Facts
from taetpu.tpu.group_plan import GroupPlan, plan_divided
from taetpu.train.layout import fitting_division
from taetpu.train.sharding import device_bytes, possible_divisions

Compile = Callable[[GroupPlan, Slice], Facts]
"""Compiles a plan for a slice."""
MAX_COMPILED_SLICES = 1
"""Larger slices that `find_larger_slice` compiles for: each may take a minute."""


@dataclass(frozen=True)
class Remedy:
    """A plan with another setting.

    Attributes:
        setting: value of `--set`.
        facts: what the compiler reports on the plan; empty until it is compiled.
    """

    setting: str
    plan: GroupPlan
    facts: Facts = field(default_factory=dict)

    @property
    def option(self) -> str:
        """The command-line option."""
        return f"--set {shlex.quote(self.setting)}"

    def try_compile(self, compile_plan: Compile, tpu: Slice) -> "Remedy | None":
        """Return the remedy with the compiler's facts; None if it does not fit."""
        facts = compile_plan(self.plan, tpu)
        return replace(self, facts=facts) if "memory" in facts else None


@dataclass(frozen=True)
class LargerSlice:
    """A slice to divide a run over, and the compiler's facts there; None if it was not compiled."""

    tpu: Slice
    plan: GroupPlan
    facts: Facts | None


def find_remedies(
    too_large: Sequence[tuple[GroupPlan, Facts]], tpu: Slice, compile_plan: Compile
) -> list[Remedy | None]:
    """Return a setting with which each plan fits, the same for all plans if possible; None for a plan without one."""
    candidates = [list(remedies(plan, tpu, state="state" in facts["too_large"])) for plan, facts in too_large]
    found = [next((fit for one in own if (fit := one.try_compile(compile_plan, tpu))), None) for own in candidates]
    if None in found or len({one.setting for one in found if one}) <= 1:
        return found
    # The candidates before a plan's own remedy did not help it.
    rest = [
        own[i:] for own, fit in zip(candidates, found, strict=True)
        for i, one in enumerate(own) if fit and one.setting == fit.setting
    ]  # fmt: skip
    for candidate in rest[0]:
        same = [next((one for one in own if one.setting == candidate.setting), None) for own in rest]
        if None not in same:
            fitting = [one.try_compile(compile_plan, tpu) for one in same if one]
            if None not in fitting:
                return fitting
    return found


def find_larger_slice(plan: GroupPlan, tpu: Slice, compile_plan: Compile) -> LargerSlice | None:
    """Return the smallest slice of a generation that fits a run which `tpu` does not.

    Slices are chosen by the size of parameters, moments and gradients, and then compiled for, except after
    `MAX_COMPILED_SLICES` that did not fit.
    """
    config, source = plan.first.config, plan.source
    memory, compiled = int(tpu.generation.program_gib * 2**30), 0
    for larger in tpu.generation.slices():
        if larger.devices <= tpu.devices:
            continue
        data, model = fitting_division(config, source, memory, larger.devices)
        if device_bytes(config.model, source.vocab_size, source.seq_len, data, model) > memory:
            continue
        divided = plan_divided(plan.group, source, plan.precision, larger, data, model)
        if compiled == MAX_COMPILED_SLICES:
            return LargerSlice(larger, divided, None)
        facts, compiled = compile_plan(divided, larger), compiled + 1
        if "memory" in facts:
            return LargerSlice(larger, divided, facts)
    return None


def remedies(plan: GroupPlan, tpu: Slice, *, state: bool = False) -> Iterator[Remedy]:
    """Yield settings that change results only by rounding, the cheapest first.

    Two microbatches, which cost little; more rematerialisation; more microbatches; runs divided over devices.

    Args:
        state: the state alone exceeds the memory, so only dividing it helps.
    """
    if not state:
        microbatches = list(_accumulate(plan))
        yield from microbatches[:1]
        levels = list(REMAT)  # from least to most recomputation
        for remat in levels[levels.index(plan.execution.remat) + 1 :]:
            yield Remedy(f"train.compute.remat={remat}", replace(plan, execution=replace(plan.execution, remat=remat)))
        yield from microbatches[1:]
    yield from _divide(plan, tpu)


def _divide(plan: GroupPlan, tpu: Slice) -> Iterator[Remedy]:
    """Yield plans with a run, including its parameters, divided over more devices of the slice."""
    config, now = plan.first.config, plan.layout.data * plan.layout.model
    for data, model in possible_divisions(config, plan.source.vocab_size, tpu.devices):
        if data * model > now:
            setting = f"train.compute.mesh={{data: {data}, model: {model}}}"
            yield Remedy(setting, plan_divided(plan.group, plan.source, plan.precision, tpu, data, model))


def _accumulate(plan: GroupPlan) -> Iterator[Remedy]:
    """Yield plans with more microbatches, the fewest first."""
    train = plan.first.config.train
    parts = train.accumulate
    while (parts := 2 * parts) <= train.batch_size:
        if train.batch_size % parts == 0:
            yield Remedy(f"train.accumulate={parts}", with_train(plan, accumulate=parts))


def with_train(plan: GroupPlan, **fields: Any) -> GroupPlan:
    """Return the plan of the same runs with other fields of `train`."""

    def update(run: RunSpec) -> RunSpec:
        return replace(run, config=run.config.model_copy(update={"train": run.config.train.model_copy(update=fields)}))

    return replace(plan, group=replace(plan.group, runs=tuple(map(update, plan.group.runs))))
