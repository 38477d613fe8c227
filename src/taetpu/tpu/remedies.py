"""What makes a run fit into memory, in the order in which it costs least; each is compiled before it is advised."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from taetpu.core.chips import Slice
from taetpu.nn.stack import REMAT
from taetpu.spec.design import RunSpec
from taetpu.tpu.compiler import Facts
from taetpu.tpu.layouts import Planned, divided
from taetpu.train.sharding import divisions


@dataclass(frozen=True)
class Remedy:
    """A run with another setting.

    Attributes:
        setting: as `--set` takes it.
        facts: what the compiler said of it.
    """

    setting: str
    planned: Planned
    facts: Facts = field(default_factory=dict)

    def facts_in_words(self) -> str:
        return f"--set {shlex.quote(self.setting)}, which needs {self.facts['memory']['needed'] / 2**30:.2f} GiB"


def remedies(planned: Planned, tpu: Slice) -> Iterator[Remedy]:
    """Settings that change no result but in its last bits, one by one: the batch in two parts, which is free but for
    small products; more of each layer computed twice; the batch in as many parts as it takes.
    """
    parts = list(_in_parts(planned))
    yield from parts[:1]
    ways = list(REMAT)  # from what is kept whole to what is computed again whole
    for remat in ways[ways.index(planned.execution.remat) + 1 :]:
        yield Remedy(f"train.compute.remat={remat}", computed(planned, remat=remat))
    yield from parts[1:]
    yield from _over_devices(planned, tpu)


def _over_devices(planned: Planned, tpu: Slice) -> Iterator[Remedy]:
    """A run divided over more devices of the slice, parameters and all."""
    config, now = planned.first.config, planned.layout.data * planned.layout.model
    for data, model in divisions(config, planned.source.vocab_size, tpu.devices):
        if data * model > now:
            setting = f"train.compute.mesh={{data: {data}, model: {model}}}"
            yield Remedy(setting, divided(planned.group, planned.source, planned.precision, tpu, data, model))


def _in_parts(planned: Planned) -> Iterator[Remedy]:
    """The batch worked on in more parts; as few as may do first."""
    train = planned.first.config.train
    parts = train.accumulate
    while (parts := 2 * parts) <= train.batch_size:
        if train.batch_size % parts == 0:
            yield Remedy(f"train.accumulate={parts}", with_train(planned, accumulate=parts))


def computed(planned: Planned, **fields: Any) -> Planned:
    """The same runs, computed in another way."""
    return replace(planned, execution=replace(planned.execution, **fields))


def with_train(planned: Planned, **fields: Any) -> Planned:
    """The same runs with other settings of training."""

    def changed(run: RunSpec) -> RunSpec:
        return replace(run, config=run.config.model_copy(update={"train": run.config.train.model_copy(update=fields)}))

    return replace(planned, group=replace(planned.group, runs=tuple(map(changed, planned.group.runs))))
