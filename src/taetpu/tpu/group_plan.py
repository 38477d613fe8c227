"""Plan how runs with the same structure are packed on a slice, on a machine without a TPU."""

from dataclasses import dataclass, replace

from taetpu.core.chips import Slice
from taetpu.data.base import Source
from taetpu.nn.compute_options import ComputeOptions
from taetpu.spec.resolved_study import RunSpec
from taetpu.train.choose_compute import choose_compute
from taetpu.train.layout import (
    WIDEST,
    Layout,
    Packing,
    RunGroup,
    even_width,
    fitting_division,
    possible_device_counts,
    without_kernels,
)
from taetpu.train.memory import SHARE_OF_MEMORY, data_bytes, state_bytes, step_bytes


@dataclass(frozen=True)
class GroupPlan:
    """Runs with the same structure, and how they are packed and computed on a slice."""

    group: RunGroup
    source: Source
    precision: str
    execution: ComputeOptions
    layout: Layout

    @property
    def first(self) -> RunSpec:
        """The first run. All other runs have the same structure."""
        return self.group.runs[0]

    @property
    def packs(self) -> int:
        """Number of packs."""
        return -(-len(self.group.runs) // self.layout.width)

    def halve(self) -> "GroupPlan | None":
        """Return the plan with half as many runs per pack; None for packs of one run and for divided runs."""
        if self.layout.width == 1 or self.layout.divided:
            return None
        return replace(self, layout=self.layout.halved())


def plan_group(tpu: Slice, group: RunGroup, source: Source, packing: Packing) -> GroupPlan:
    """Return the plan with which training starts.

    Each run is divided over several devices if `train.compute.mesh` or the memory of a device requires this.
    Otherwise, the plan uses as many devices as possible, and then the smallest number of packs whose runs are estimated
    to fit into memory.
    """
    config = group.runs[0].config
    precision = "bfloat16" if config.train.precision == "auto" else config.train.precision
    mesh, memory = config.train.compute.mesh, int(tpu.generation.program_gib * 2**30)
    data, model = fitting_division(config, source, memory, tpu.devices) if mesh == "auto" else (mesh.data, mesh.model)
    if data * model > 1:
        return plan_divided(group, source, precision, tpu, data, model)
    memory = int(tpu.generation.program_gib * 2**30 * SHARE_OF_MEMORY)
    execution = choose_compute(config, source, precision, platform="tpu", memory=memory)
    per_run = state_bytes(config, source) + step_bytes(config, source, execution, precision)
    fitting = max(1, (memory - data_bytes(source, execution)) // per_run)
    runs, layout = len(group.runs), Layout(1)
    for devices in reversed(possible_device_counts(tpu.devices, runs)):
        widest = min(packing.widest or WIDEST * devices, fitting * devices)
        if devices <= min(widest, runs):
            layout = Layout(even_width(runs, widest, devices), devices)
            break
    return GroupPlan(group, source, precision, execution, layout)


def plan_divided(group: RunGroup, source: Source, precision: str, tpu: Slice, data: int, model: int) -> GroupPlan:
    """Return the plan that divides each run over `data * model` devices.

    The plan trains as many runs at the same time as the number of devices allows.
    """
    config = group.runs[0].config
    at_once = max(1, min(tpu.devices // (data * model), len(group.runs)))
    layout = Layout(at_once, at_once * data * model, data=data, model=model)
    memory = int(tpu.generation.program_gib * 2**30 * SHARE_OF_MEMORY) * data * model
    execution = without_kernels(choose_compute(config, source, precision, platform="tpu", memory=memory), config)
    return GroupPlan(group, source, precision, execution, layout)
