"""How the runs of a study would be packed on a slice, as far as that is known without one."""

from dataclasses import dataclass, replace

from taetpu.core.chips import Slice
from taetpu.data.batches import Source
from taetpu.nn.compute_options import Execution
from taetpu.spec.resolved_study import RunSpec
from taetpu.train.compute import decide
from taetpu.train.layout import WIDEST, Group, Layout, Packing, even_width, fitting_division, partitionable, spreads
from taetpu.train.memory import SHARE_OF_MEMORY, state_bytes, step_bytes


@dataclass(frozen=True)
class GroupPlan:
    """Runs of one structure, and how they would be packed.

    Attributes:
        group: the runs; `group.live` as in `train.plan.PackPlan`.
    """

    group: Group
    source: Source
    precision: str
    execution: Execution
    layout: Layout

    @property
    def first(self) -> RunSpec:
        return self.group.runs[0]

    @property
    def packs(self) -> int:
        return -(-len(self.group.runs) // self.layout.width)

    def narrower(self) -> "GroupPlan | None":
        """The same in packs of half the width; None where each run is alone already."""
        width = self.layout.width
        if width == 1 or self.layout.divided:
            return None
        half = -(-width // 2)
        devices = max(d for d in range(1, self.layout.devices + 1) if half % d == 0)
        return replace(self, layout=replace(self.layout, width=half, devices=devices))


def plan_divided(group: Group, source: Source, precision: str, tpu: Slice, data: int, model: int) -> GroupPlan:
    """Runs that are divided over devices each, as many at once as the slice has room for."""
    config = group.runs[0].config
    at_once = max(1, min(tpu.devices // (data * model), len(group.runs)))
    layout = Layout(at_once, at_once * data * model, data=data, model=model)
    room = int(tpu.generation.program_gib * 2**30 * SHARE_OF_MEMORY) * data * model
    execution = partitionable(decide(config, source, precision, platform="tpu", memory=room), config)
    return GroupPlan(group, source, precision, execution, layout)


def plan_group(tpu: Slice, group: Group, source: Source, packing: Packing) -> GroupPlan:
    """The layout that training starts with on a slice: as few packs as seem to fit, spread over all devices."""
    config = group.runs[0].config
    precision = "bfloat16" if config.train.precision == "auto" else config.train.precision
    mesh, whole = config.train.compute.mesh, int(tpu.generation.program_gib * 2**30)
    data, model = fitting_division(config, source, whole, tpu.devices) if mesh == "auto" else (mesh.data, mesh.model)
    if data * model > 1:
        return plan_divided(group, source, precision, tpu, data, model)
    room = int(tpu.generation.program_gib * 2**30 * SHARE_OF_MEMORY)
    execution = decide(config, source, precision, platform="tpu", memory=room)
    need = state_bytes(config, source) + step_bytes(config, source, execution, precision)
    fit = max(1, room // need)
    size = len(group.runs)
    for devices in reversed(spreads(tpu.devices, size)):
        most = min(packing.widest or WIDEST * devices, fit * devices)
        if devices <= min(most, size):
            layout = Layout(even_width(size, most, devices), devices)
            break
    else:
        layout = Layout(1)
    return GroupPlan(group, source, precision, execution, layout)
