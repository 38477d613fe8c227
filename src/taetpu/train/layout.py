"""How runs share programs: which can, how many train at once, and over which devices."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax

from taetpu.core.config import to_data
from taetpu.core.errors import UserError
from taetpu.core.static_dynamic import promoted_fields, split
from taetpu.data.batches import Source
from taetpu.nn.compute_options import DEFAULT_OPTIONS, ComputeOptions
from taetpu.spec.identity import plugin_sources
from taetpu.spec.resolved_study import RunSpec
from taetpu.spec.schema import ResolvedConfig
from taetpu.train.device_capabilities import local_capabilities
from taetpu.train.memory import device_bytes_limit, memory_bytes, state_bytes, step_bytes
from taetpu.train.model_cost import num_params
from taetpu.train.sharding import check_mesh, device_bytes, possible_divisions

LIGHT = 8 << 20  # bytes of gradients, which devices that share a run exchange; more cost more than sharing gains
WIDEST = 32  # runs a device, where nothing was measured


@dataclass(frozen=True)
class Layout:
    """How a program holds runs.

    Attributes:
        width: how many it trains at once.
        devices: over how many devices they are spread; divides `width`. Of a run alone the batch may be divided over
            several. On a CPU each core is a device.
        data, model: over how many of the devices each run is divided, parameters and all (see `train.sharding`).
    """

    width: int
    devices: int = 1
    data: int = 1
    model: int = 1

    @property
    def divided(self) -> bool:
        """Is each run divided over devices, parameters and all?"""
        return self.data * self.model > 1


@dataclass(frozen=True)
class Packing:
    """How the user wants runs packed.

    Attributes:
        widest: the most runs in a pack; None leaves the width to the rule of thumb.
    """

    widest: int | None = None


AUTO = Packing()


def parse_packing(text: str | int) -> Packing:
    """Parse `--pack`: `auto`, `off`, or the most runs in a pack.

    Raises:
        UserError: it is something else.
    """
    if text == "auto":
        return AUTO
    number = 1 if text == "off" else int(text) if str(text).isascii() and str(text).isdecimal() else 0
    if number < 1 or isinstance(text, bool):
        remedy = "Use auto, off, or the most runs in a pack, e.g. 8."
        raise UserError(
            f"`pack` must be auto, off or a number of at least 1, got {text!r}", path=("pack",), remedy=remedy
        )
    return Packing(number)


@dataclass(frozen=True)
class RunGroup:
    """Runs of one structure; `live` as in `PackPlan`."""

    live: frozenset[str]
    runs: tuple[RunSpec, ...]


@dataclass(frozen=True)
class Workload:
    """A group that is to be packed, with its prepared task; `precision` and `execution` as in `PackPlan`."""

    group: RunGroup
    source: Source
    precision: str
    execution: ComputeOptions = DEFAULT_OPTIONS

    @property
    def size(self) -> int:
        return len(self.group.runs)

    @property
    def config(self) -> ResolvedConfig:
        """One run's, which stands for all: they differ in numbers alone."""
        return self.group.runs[0].config

    def widest(self, devices: int) -> int:
        """The most runs of a pack on so many devices that fit into memory.

        The cores of a CPU share theirs, and each works on one run at a time.
        """
        state = state_bytes(self.config, self.source)
        step = step_bytes(self.config, self.source, self.execution, self.precision)
        if jax.default_backend() == "cpu":
            return max(1, (memory_bytes() - devices * step) // state)
        return max(1, memory_bytes() // (state + step)) * devices


def structure_key(structure: ResolvedConfig) -> str:
    """Return a key that is equal for configs that share a program."""
    return json.dumps(to_data(structure), sort_keys=True)


def group_runs(runs: Sequence[RunSpec]) -> list[RunGroup]:
    """Runs by structure, in order of first appearance.

    A mask that only some runs use is traced in all that could share their program, and in no others.
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
    """Choose the layout of a group; return it with how it was chosen."""
    mesh = work.config.train.compute.mesh
    data, model = least_division(work) if mesh == "auto" else (mesh.data, mesh.model)
    if data * model > 1:
        return divided_layout(work, packing, data, model), "rule of thumb" if mesh == "auto" else "asked for"
    return default_layout(work, packing), "rule of thumb" if packing.widest is None else "asked for"


def memory_shortfall(config: ResolvedConfig, source: Source) -> tuple[int, int] | None:
    """What a run keeps from step to step and what there is, in bytes of a device; None where it fits.

    Where several devices can share a run, the least that each of them then keeps. The cores of a CPU share memory.
    """
    there, sizes = device_bytes_limit(), (config.model, source.vocab_size, source.seq_len)
    mesh = config.train.compute.mesh
    if jax.default_backend() == "cpu":
        needed = state_bytes(config, source)
    elif mesh != "auto":
        needed = device_bytes(*sizes, mesh.data, mesh.model)
    else:
        ways = possible_divisions(config, source.vocab_size, jax.device_count())
        needed = min(device_bytes(*sizes, *way) for way in ways)
    return (needed, there) if needed > there else None


def without_kernels(execution: ComputeOptions, config: ResolvedConfig) -> ComputeOptions:
    """How a run is computed that XLA divides over devices: it cannot divide a kernel, so attention is the plain one.

    Raises:
        UserError: a kernel was asked for outright.
    """
    asked = config.train.compute.attention
    if asked not in ("auto", "plain"):
        problem = f"attention={asked} is a kernel, which cannot be divided over devices as this run is"
        raise UserError(problem, path=("train", "compute", "attention"), remedy="auto or plain, or a mesh of 1 and 1")
    return replace(execution, attention="plain")


def least_division(work: Workload) -> tuple[int, int]:
    """Over how many devices `(data, model)` a run has to be divided: over none, if one holds what it keeps from step to
    step; else over the fewest that do. The cores of a CPU share their memory, so that dividing gains none.
    """
    if jax.default_backend() == "cpu":
        return 1, 1
    return fitting_division(work.config, work.source, device_bytes_limit(), jax.device_count())


def fitting_division(config: ResolvedConfig, source: Source, memory: int, devices: int) -> tuple[int, int]:
    """The first way of dividing a run with which a device's memory, in bytes, holds its part; the last if none does."""
    ways = list(possible_divisions(config, source.vocab_size, devices))
    sizes = (config.model, source.vocab_size, source.seq_len)
    return next((way for way in ways if device_bytes(*sizes, *way) <= memory), ways[-1])


def divided_layout(work: Workload, packing: Packing, data: int, model: int) -> Layout:
    """As many runs at once as devices can each take a part of one.

    Raises:
        UserError: there are too few devices for one run, or a size of the run cannot be divided so.
    """
    local_capabilities().check_devices(data, model)
    check_mesh(work.config, work.source.vocab_size, data, model)
    there, share = jax.device_count(), data * model
    # With several processes each has to take part, if only by repeating a run.
    at_once = there // share
    runs = at_once if jax.process_count() > 1 else min(at_once, work.size, packing.widest or at_once)
    return Layout(runs, runs * share, data=data, model=model)


def default_layout(work: Workload, packing: Packing) -> Layout:
    """A layout that is rarely far from the fastest: as few packs as fit into memory, spread over all devices.

    On a CPU a run on each core beats all cores on one run. A run alone has its batch divided over them while it is
    small.
    """
    for devices in reversed(device_counts(work.size)):
        most = min(packing.widest or WIDEST * devices, work.widest(devices))
        if devices <= min(most, work.size) > 1:
            return Layout(even_width(work.size, most, devices), devices)
    sizes = (work.config.model, work.source.vocab_size, work.source.seq_len)
    return Layout(1, max(exact_shard_counts(work.config)) if 4 * num_params(*sizes) < LIGHT else 1)


def exact_shard_counts(config: ResolvedConfig) -> list[int]:
    """Over how many devices the batch of one run may be divided without another number but in its last bits.

    What is drawn for dropout, or in a plug-in, depends on how a batch is divided.
    """
    train, own = config.train, bool(plugin_sources(config))
    if jax.default_backend() != "cpu" or config.model.dropout or train.hooks or own:
        return [1]
    return [count for count in device_counts() if train.batch_size // train.accumulate % count == 0]


def even_width(runs: int, most: int, devices: int) -> int:
    """The least width, a multiple of `devices`, with which `runs` fit into as few packs as possible."""
    packs = -(-runs // (most // devices * devices))
    return -(-runs // (packs * devices)) * devices


def device_counts(runs: int = 1) -> list[int]:
    """Return the possible numbers of devices of a pack of `runs` runs.

    With several processes every device takes part. A CPU has one device per core unless XLA_FLAGS sets another number.
    """
    there = jax.device_count()
    return [there] if jax.process_count() > 1 else possible_device_counts(there, runs)


def possible_device_counts(there: int, runs: int = 1) -> list[int]:
    """Return the numbers of devices, of `there`, to try for `runs` runs: powers of two, all, and one per run."""
    return sorted({there, min(runs, there), *(2**i for i in range(there.bit_length()))})


def auto_precision() -> str:
    """What `precision: auto` means on this device: bfloat16 on accelerators, float32 on a CPU."""
    return "float32" if jax.default_backend() == "cpu" else "bfloat16"
