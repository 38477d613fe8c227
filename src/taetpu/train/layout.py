"""Layouts: which runs share a program, how many runs train at once, and on which devices."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import jax

from taetpu.core.config import iter_components, to_data
from taetpu.core.errors import UserError
from taetpu.core.static_dynamic import promoted_fields, split
from taetpu.data.base import Source
from taetpu.nn.compute_options import DEFAULT_OPTIONS, ComputeOptions
from taetpu.spec.resolved_study import RunSpec
from taetpu.spec.run_ids import plugin_sources
from taetpu.spec.study_config import ResolvedConfig
from taetpu.train.device_capabilities import local_capabilities
from taetpu.train.memory import data_bytes, device_bytes_limit, memory_bytes, state_bytes, step_bytes
from taetpu.train.model_cost import num_params
from taetpu.train.sharding import check_mesh, device_bytes, possible_divisions

LIGHT = 8 << 20  # gradient bytes above which a batch is not divided, because the all-reduce would take too long
WIDEST = 32  # maximum number of runs per device


@dataclass(frozen=True)
class Layout:
    """The runs and devices of a program.

    Attributes:
        width: the number of runs that train at once.
        devices: the number of devices. Unless runs are divided, this number divides `width` or, for a single run, the
            size of a microbatch. Each CPU core is a device.
        data: the number of devices along the mesh axis `data`, over which each run's batch and parameters are divided
            (see `train.sharding`).
        model: the number of devices along the mesh axis `model`, over which each run's matrices are divided.
    """

    width: int
    devices: int = 1
    data: int = 1
    model: int = 1

    @property
    def divided(self) -> bool:
        """Whether each run and its parameters are divided over devices."""
        return self.data * self.model > 1

    def halved(self) -> "Layout":
        """Return the layout of half as many runs, on the largest number of devices that divides this number."""
        width = -(-self.width // 2)
        return replace(self, width=width, devices=max(d for d in range(1, self.devices + 1) if width % d == 0))


@dataclass(frozen=True)
class Packing:
    """The value of the option `--pack`.

    Attributes:
        widest: the maximum number of runs in a pack; None selects the default layout.
    """

    widest: int | None = None


AUTO = Packing()


def parse_packing(text: str | int) -> Packing:
    """Parse the value of `--pack`: `auto`, `off`, or the maximum number of runs in a pack.

    Raises:
        UserError: if the value is invalid.
    """
    if text == "auto":
        return AUTO
    number = 1 if text == "off" else int(text) if str(text).isascii() and str(text).isdecimal() else 0
    if number < 1 or isinstance(text, bool):
        problem = f"`pack` must be auto, off or a number of at least 1, got {text!r}"
        remedy = "Use auto, off, or the maximum number of runs in a pack, e.g. 8."
        raise UserError(problem, path=("pack",), remedy=remedy)
    return Packing(number)


@dataclass(frozen=True)
class RunGroup:
    """Runs whose configs have the same structure. `live` has the same meaning as in `PackPlan`."""

    live: frozenset[str]
    runs: tuple[RunSpec, ...]


@dataclass(frozen=True)
class Workload:
    """A group of runs to be packed, with the runs' prepared task.

    Attributes:
        group: the group of runs.
        source: the prepared task of the runs.
        precision: dtype of activations and matrix products.
        execution: the compute options of the model.
    """

    group: RunGroup
    source: Source
    precision: str
    execution: ComputeOptions = DEFAULT_OPTIONS

    @property
    def size(self) -> int:
        """The number of runs."""
        return len(self.group.runs)

    @property
    def config(self) -> ResolvedConfig:
        """The config of the first run. The configs of the other runs differ only in traced values."""
        return self.group.runs[0].config

    @cached_property
    def _bytes(self) -> tuple[int, int, int]:
        """The bytes of a run's state, of what a step computes, and of the data on a device."""
        step = step_bytes(self.config, self.source, self.execution, self.precision)
        return state_bytes(self.config, self.source), step, data_bytes(self.source, self.execution)

    def widest(self, devices: int, sharing: int = 1) -> int:
        """Return the maximum number of runs that fit into memory in a pack on `devices` devices.

        The cores of a CPU share one memory, and each core computes one run at a time.

        Args:
            devices: the number of devices of a pack.
            sharing: the number of packs that train at once and share the memory of the CPU or of an accelerator.
        """
        (state, step, data), memory = self._bytes, memory_bytes() // sharing
        if jax.default_backend() == "cpu":
            return max(1, (memory - devices * (step + data)) // state)
        return max(1, (memory - data) // (state + step)) * devices


def structure_key(structure: ResolvedConfig) -> str:
    """Return a key that is equal for configs that share a program."""
    return json.dumps(to_data(structure), sort_keys=True)


def group_runs(runs: Sequence[RunSpec]) -> list[RunGroup]:
    """Group runs by structure, in order of first appearance.

    If at least one run of a group uses a mask, the mask is traced in all runs of the group.
    """
    everywhere = frozenset[str]().union(*(promoted_fields(run.config) for run in runs))
    groups: dict[str, list[RunSpec]] = defaultdict(list)
    for run in runs:
        groups[structure_key(split(run.config, everywhere)[0])].append(run)
    return [
        RunGroup(frozenset[str]().union(*(promoted_fields(run.config) for run in members)), tuple(members))
        for members in groups.values()
    ]


def choose_layout(work: Workload, packing: Packing) -> tuple[Layout, str]:
    """Return the layout of a group of runs, and a description of how it was chosen."""
    mesh = work.config.train.compute.mesh
    data, model = least_division(work) if mesh == "auto" else (mesh.data, mesh.model)
    if data * model > 1:
        return divided_layout(work, packing, data, model), "rule of thumb" if mesh == "auto" else "asked for"
    return default_layout(work, packing), "rule of thumb" if packing.widest is None else "asked for"


def memory_shortfall(config: ResolvedConfig, source: Source) -> tuple[int, int] | None:
    """Return the needed and the available bytes per device for a run; None if the memory suffices.

    A run needs memory for the values that it keeps between steps. If the run can be divided over devices, the mesh that
    needs the fewest bytes is assumed.
    """
    available, sizes = device_bytes_limit(), (config, source.interface, source.seq_len)
    mesh = config.train.compute.mesh
    if jax.default_backend() == "cpu":
        needed = state_bytes(config, source)
    elif mesh != "auto":
        needed = device_bytes(*sizes, mesh.data, mesh.model)
    else:
        ways = possible_divisions(config, source.interface, jax.device_count())
        needed = min(device_bytes(*sizes, *way) for way in ways)
    return (needed, available) if needed > available else None


def without_kernels(execution: ComputeOptions, config: ResolvedConfig) -> ComputeOptions:
    """Return compute options with plain attention, since XLA cannot partition a kernel.

    Raises:
        UserError: if the config requests a kernel.
    """
    asked = config.train.compute.attention
    if asked not in ("auto", "plain"):
        problem = f"attention={asked} is a kernel, but this run is divided over devices, which kernels do not support"
        remedy = "Use auto or plain, or a mesh with data=1 and model=1."
        raise UserError(problem, path=("train", "compute", "attention"), remedy=remedy)
    return replace(execution, attention="plain")


def least_division(work: Workload) -> tuple[int, int]:
    """Return the smallest mesh `(data, model)` on which a run fits into memory; `(1, 1)` on a CPU."""
    if jax.default_backend() == "cpu":
        return 1, 1
    return fitting_division(work.config, work.source, device_bytes_limit(), jax.device_count())


def fitting_division(config: ResolvedConfig, source: Source, memory: int, devices: int) -> tuple[int, int]:
    """Return the smallest mesh `(data, model)` on which a run needs at most `memory` bytes per device.

    If no mesh is large enough, the largest mesh is returned.
    """
    ways = list(possible_divisions(config, source.interface, devices))
    sizes = (config, source.interface, source.seq_len)
    return next((way for way in ways if device_bytes(*sizes, *way) <= memory), ways[-1])


def divided_layout(work: Workload, packing: Packing, data: int, model: int) -> Layout:
    """Return the widest layout in which each run is divided over `data * model` devices.

    Raises:
        UserError: if there are too few devices for one run, or a size of the run is not divisible.
    """
    local_capabilities().check_devices(data, model)
    check_mesh(work.config, work.source.interface, data, model)
    share = data * model
    at_once = jax.device_count() // share
    # Every process must take part, even if it trains only padding.
    runs = at_once if jax.process_count() > 1 else min(at_once, work.size, packing.widest or at_once)
    return Layout(runs, runs * share, data=data, model=model)


def default_layout(work: Workload, packing: Packing) -> Layout:
    """Return a layout on as many devices as possible, with the smallest number of packs that fit into memory.

    This layout is close to the fastest layout: on a CPU, one run per core is faster than one run on all cores. If packs
    hold a single run, the batch of a small model may be divided over devices (see `exact_shard_counts`).
    """
    for devices in reversed(device_counts(work.size)):
        most = min(packing.widest or WIDEST * devices, work.widest(devices))
        if devices <= min(most, work.size) > 1:
            return Layout(even_width(work.size, most, devices), devices)
    sizes = (work.config.model, work.source.interface, work.source.seq_len)
    return Layout(1, max(exact_shard_counts(work.config)) if 4 * num_params(*sizes) < LIGHT else 1)


def exact_shard_counts(config: ResolvedConfig) -> list[int]:
    """Return the numbers of devices over which a run's batch can be divided with the same results up to rounding.

    Batches are divided only on CPUs. The batch of a run that draws random numbers in training, or has hooks or
    plug-ins, is never divided, because its random numbers may depend on the number of devices.
    """
    train, has_plugins = config.train, bool(plugin_sources(config))
    draws = config.model.dropout or any(component.draws_in_training for component in iter_components(config.model))
    if jax.default_backend() != "cpu" or draws or train.hooks or has_plugins:
        return [1]
    sizes = (train.batch_size // train.accumulate, config.task.eval_group or 0)
    return [count for count in device_counts() if all(size % count == 0 for size in sizes)]


def even_width(runs: int, most: int, devices: int) -> int:
    """Return the smallest pack width that needs the fewest packs.

    Args:
        runs: the number of runs.
        most: the maximum number of runs in a pack.
        devices: the number of devices, which divides the width.
    """
    packs = -(-runs // (most // devices * devices))
    return -(-runs // (packs * devices)) * devices


def device_counts(runs: int = 1) -> list[int]:
    """Return the possible numbers of devices for a pack of `runs` runs.

    With several processes, every device is used. A CPU has one device per core unless XLA_FLAGS sets another number.
    """
    devices = jax.device_count()
    return [devices] if jax.process_count() > 1 else possible_device_counts(devices, runs)


def possible_device_counts(devices: int, runs: int = 1) -> list[int]:
    """Return the numbers of devices to try for `runs` runs: powers of two, all devices, and one device per run."""
    return sorted({devices, min(runs, devices), *(2**i for i in range(devices.bit_length()))})


def auto_precision() -> str:
    """Return the dtype that `precision: auto` selects: bfloat16 on accelerators, float32 on a CPU."""
    return "float32" if jax.default_backend() == "cpu" else "bfloat16"
