"""Find settings with which runs fit into memory, starting with the cheapest one.

A setting is recommended only if its program compiles and fits.
"""

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
"""Function that compiles a plan for a slice and returns the compiler's report."""
MAX_COMPILED_SLICES = 1
"""Maximum number of larger slices that `find_larger_slice` compiles for: each compilation may take a minute."""


@dataclass(frozen=True)
class Remedy:
    """A plan with a changed setting.

    Attributes:
        setting: argument of the option `--set`.
        facts: the compiler's report on the plan; empty until the plan is compiled.
    """

    setting: str
    plan: GroupPlan
    facts: Facts = field(default_factory=dict)

    @property
    def option(self) -> str:
        """The command-line option that changes the setting."""
        return f"--set {shlex.quote(self.setting)}"

    def try_compile(self, compile_plan: Compile, tpu: Slice) -> "Remedy | None":
        """Compile the plan and return the remedy with the compiler's facts; None if the plan does not fit."""
        facts = compile_plan(self.plan, tpu)
        return replace(self, facts=facts) if "memory" in facts else None


@dataclass(frozen=True)
class LargerSlice:
    """A larger slice, with the plan that divides each run over its devices.

    Attributes:
        facts: the compiler's report on the plan; None if the plan was not compiled.
    """

    tpu: Slice
    plan: GroupPlan
    facts: Facts | None


def find_remedies(
    too_large: Sequence[tuple[GroupPlan, Facts]], tpu: Slice, compile_plan: Compile
) -> list[Remedy | None]:
    """Return a remedy for each plan that is too large; None for a plan without a remedy.

    If one setting makes all plans fit, the remedies have that setting.
    """
    candidates = [list(remedies(plan, tpu, state="state" in facts["too_large"])) for plan, facts in too_large]
    found = [next((fit for one in own if (fit := one.try_compile(compile_plan, tpu))), None) for own in candidates]
    if None in found or len({one.setting for one in found if one}) <= 1:
        return found
    # The candidates before a plan's remedy did not make it fit, so they are not compiled again.
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
    """Return the smallest larger slice of the same generation on which a run fits; None if there is none.

    A slice is selected if the parameters, moments and gradients fit, and the plan is then compiled for it. After
    `MAX_COMPILED_SLICES` compilations that did not fit, the next selected slice is returned without compilation.
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
    """Yield settings that change results only by rounding, in increasing order of cost.

    The order is: the smallest possible increase in microbatches, which costs little; higher levels of
    rematerialisation; larger increases in microbatches; division of each run over devices.

    Args:
        state: whether the state alone exceeds the memory, so that only division over devices can help.
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
    """Yield plans that divide each run, including its parameters, over more devices of the slice."""
    config, now = plan.first.config, plan.layout.data * plan.layout.model
    for data, model in possible_divisions(config, plan.source.vocab_size, tpu.devices):
        if data * model > now:
            setting = f"train.compute.mesh={{data: {data}, model: {model}}}"
            yield Remedy(setting, plan_divided(plan.group, plan.source, plan.precision, tpu, data, model))


def _accumulate(plan: GroupPlan) -> Iterator[Remedy]:
    """Yield plans with more microbatches than `plan` has, in increasing order of their number."""
    train = plan.first.config.train
    parts = train.accumulate
    while (parts := 2 * parts) <= train.batch_size:
        if train.batch_size % parts == 0:
            yield Remedy(f"train.accumulate={parts}", with_train(plan, accumulate=parts))


def with_train(plan: GroupPlan, **fields: Any) -> GroupPlan:
    """Return the plan with the given values for fields of `train` in all of its runs."""

    def update(run: RunSpec) -> RunSpec:
        return replace(run, config=run.config.model_copy(update={"train": run.config.train.model_copy(update=fields)}))

    return replace(plan, group=replace(plan.group, runs=tuple(map(update, plan.group.runs))))
