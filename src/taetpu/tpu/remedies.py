"""What makes runs fit into memory, in the order in which it costs least; each is compiled before it is advised."""

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
from taetpu.train.sharding import device_bytes, divisions

Compile = Callable[[GroupPlan, Slice], Facts]
"""Asks the compiler."""
LARGER = 1  # larger slices that are compiled for; each may take a minute


@dataclass(frozen=True)
class Remedy:
    """A run with another setting.

    Attributes:
        setting: as `--set` takes it.
        facts: what the compiler said of it.
    """

    setting: str
    planned: GroupPlan
    facts: Facts = field(default_factory=dict)

    @property
    def option(self) -> str:
        return f"--set {shlex.quote(self.setting)}"

    def same(self, other: "Remedy | None") -> bool:
        return other is not None and self.setting == other.setting

    def tried(self, compiled: Compile, tpu: Slice) -> "Remedy | None":
        """With what the compiler says; None where it does not fit."""
        facts = compiled(self.planned, tpu)
        return replace(self, facts=facts) if "memory" in facts else None


@dataclass(frozen=True)
class Larger:
    """A slice that a run is divided over, with what the compiler said of it there; None where it was not asked."""

    tpu: Slice
    planned: GroupPlan
    facts: Facts | None


def helped(refused: Sequence[tuple[GroupPlan, Facts]], tpu: Slice, compiled: Compile) -> list[Remedy | None]:
    """For each run that does not fit what makes it fit: one setting for all of them, where there is one."""
    ways = [list(remedies(planned, tpu, state="state" in facts["too_large"])) for planned, facts in refused]
    found = [next((fit for way in own if (fit := way.tried(compiled, tpu))), None) for own in ways]
    if None in found or len({one.setting for one in found if one}) <= 1:
        return found
    # What stands before a run's own did not help it.
    left = [own[i:] for own, one in zip(ways, found, strict=True) for i, way in enumerate(own) if way.same(one)]
    for way in left[0]:
        alike = [next((other for other in own if other.same(way)), None) for own in left]
        if None not in alike:
            together = [one.tried(compiled, tpu) for one in alike if one]
            if None not in together:
                return together
    return found


def larger(planned: GroupPlan, tpu: Slice, compiled: Compile) -> Larger | None:
    """The smallest slice of a generation that holds a run which this one does not: by its parameters, moments and
    gradients, and then by the compiler, unless that has refused another.
    """
    config, source = planned.first.config, planned.source
    room, tried = int(tpu.generation.program_gib * 2**30), 0
    for there in tpu.generation.slices():
        if there.devices <= tpu.devices:
            continue
        data, model = fitting_division(config, source, room, there.devices)
        if device_bytes(config.model, source.vocab_size, source.seq_len, data, model) > room:
            continue
        found = plan_divided(planned.group, source, planned.precision, there, data, model)
        if tried == LARGER:
            return Larger(there, found, None)
        facts, tried = compiled(found, there), tried + 1
        if "memory" in facts:
            return Larger(there, found, facts)
    return None


def remedies(planned: GroupPlan, tpu: Slice, *, state: bool = False) -> Iterator[Remedy]:
    """Settings that change no result but in its last bits, one by one: the batch in two parts, which is free but for
    small products; more of each layer computed twice; the batch in as many parts as it takes; the run divided. Where
    its `state` alone is too large, only that helps.
    """
    if state:
        yield from _over_devices(planned, tpu)
        return
    parts = list(_in_parts(planned))
    yield from parts[:1]
    ways = list(REMAT)  # from what is kept whole to what is computed again whole
    for remat in ways[ways.index(planned.execution.remat) + 1 :]:
        yield Remedy(f"train.compute.remat={remat}", computed(planned, remat=remat))
    yield from parts[1:]
    yield from _over_devices(planned, tpu)


def _over_devices(planned: GroupPlan, tpu: Slice) -> Iterator[Remedy]:
    """A run divided over more devices of the slice, parameters and all."""
    config, now = planned.first.config, planned.layout.data * planned.layout.model
    for data, model in divisions(config, planned.source.vocab_size, tpu.devices):
        if data * model > now:
            setting = f"train.compute.mesh={{data: {data}, model: {model}}}"
            yield Remedy(setting, plan_divided(planned.group, planned.source, planned.precision, tpu, data, model))


def _in_parts(planned: GroupPlan) -> Iterator[Remedy]:
    """The batch worked on in more parts; as few as may do first."""
    train = planned.first.config.train
    parts = train.accumulate
    while (parts := 2 * parts) <= train.batch_size:
        if train.batch_size % parts == 0:
            yield Remedy(f"train.accumulate={parts}", with_train(planned, accumulate=parts))


def computed(planned: GroupPlan, **fields: Any) -> GroupPlan:
    """The same runs, computed in another way."""
    return replace(planned, execution=replace(planned.execution, **fields))


def with_train(planned: GroupPlan, **fields: Any) -> GroupPlan:
    """The same runs with other settings of training."""

    def changed(run: RunSpec) -> RunSpec:
        return replace(run, config=run.config.model_copy(update={"train": run.config.train.model_copy(update=fields)}))

    return replace(planned, group=replace(planned.group, runs=tuple(map(changed, planned.group.runs))))
