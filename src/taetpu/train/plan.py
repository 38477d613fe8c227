"""Which runs share a program, and how they are packed: decided before the first step, then kept."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import jax

from taetpu.core.errors import UserError
from taetpu.core.static_dynamic import active, split
from taetpu.data.batches import Source
from taetpu.nn.compute_options import AS_BUILT, Execution
from taetpu.spec.identity import plugin_sources
from taetpu.spec.resolved_study import RunSpec
from taetpu.spec.schema import ResolvedConfig
from taetpu.train.compute import decide
from taetpu.train.count import num_params
from taetpu.train.device_capabilities import here
from taetpu.train.memory import device_bytes_limit, memory_bytes, state_bytes, step_bytes
from taetpu.train.pack import structure_key
from taetpu.train.sharding import check_mesh, device_bytes, divisions

LIGHT = 8 << 20  # bytes of gradients, which devices that share a run exchange; more cost more than sharing gains
WIDEST = 32  # runs a device, where nothing was measured


@dataclass(frozen=True)
class Layout:
    """How a program holds runs.

    Attributes:
        width: how many it trains at once.
        devices: over how many devices they are spread; divides `width`. Of a run alone the batch may be divided over
            several. On a CPU each core is a device.
        unroll: how many layers of a deep stack one pass of its loop takes (see `nn.stack`).
        data, model: over how many of the devices each run is divided, parameters and all (see `train.sharding`).
    """

    width: int
    devices: int = 1
    unroll: int = 1
    data: int = 1
    model: int = 1

    @property
    def divided(self) -> bool:
        """Is each run divided over devices, parameters and all?"""
        return self.data * self.model > 1


@dataclass(frozen=True)
class PackPlan:
    """What is decided before a pack's first step and never changed after it, for the same bits on every resume.

    Attributes:
        id: names the pack's folder.
        width, devices, unroll, data, model: see `Layout`; beyond `runs` the pack is filled up with repeats of
            the first.
        precision: of activations and products; decided once, so that a study moved to another device keeps it.
        live: fields traced though neutral in some runs (see `core.static_dynamic.split`).
        runs: `(arm, seed, id)` of each run.
        chosen: how the layout was: `measured`, by `rule of thumb`, as `asked for`.
        attention, remat, loss_chunk: see `nn.compute_options`; decided once, too.
        halved_from: the width that was planned first, where that ran out of memory.
        platform: of the devices that it was planned on: cpu, gpu or tpu; "" in plans of earlier versions.
    """

    id: str
    width: int
    devices: int
    precision: str
    live: tuple[str, ...]
    runs: tuple[tuple[str, int, str], ...]
    unroll: int = 1
    chosen: str = "rule of thumb"
    attention: str = "plain"
    remat: str = "none"
    loss_chunk: int | None = None
    halved_from: int | None = None
    data: int = 1
    model: int = 1
    platform: str = ""

    @property
    def layout(self) -> Layout:
        return Layout(self.width, self.devices, self.unroll, self.data, self.model)

    @property
    def execution(self) -> Execution:
        return Execution(self.unroll, self.remat, self.attention, self.loss_chunk)

    @property
    def facts(self) -> dict[str, Any]:
        """What the results of its runs say of it."""
        names = ("id", "width", "devices", "unroll", "precision", "chosen", "halved_from")
        names = (*names, "data", "model") if self.layout.divided else names
        said = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return said | self.execution.told

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "PackPlan":
        """A plan as the study's `plan.json` holds it."""
        runs = tuple((arm, seed, run_id) for arm, seed, run_id in data["runs"])
        known = {field.name: data[field.name] for field in fields(cls) if field.name in data}
        return cls(**{**known, "live": tuple(data["live"]), "runs": runs})

    def halved(self, names: Sequence[tuple[str, int, str]]) -> list["PackPlan"]:
        """Plans for these of its runs at half its width: what is left when it needs more memory than there is."""
        width = -(-self.width // 2)
        devices = max(d for d in range(1, self.devices + 1) if width % d == 0)
        halves = [tuple(names[start : start + width]) for start in range(0, len(names), width)]
        layout = {"width": width, "devices": devices, "halved_from": self.halved_from or self.width}
        return [PackPlan(**{**_shallow(self), **layout, "id": pack_id(half), "runs": half}) for half in halves]


def _shallow(plan: PackPlan) -> dict[str, Any]:
    return {field.name: getattr(plan, field.name) for field in fields(plan)}


@dataclass(frozen=True)
class Packing:
    """What is asked of packs.

    Attributes:
        widest: the most runs in one; None leaves it to memory and speed.
        measure: whether layouts are measured: where it `pays`, `always` or `never`.
    """

    widest: int | None = None
    measure: Literal["pays", "always", "never"] = "pays"

    def kept_by(self, plan: PackPlan) -> bool:
        """Is a pack that was planned earlier as asked for now?"""
        if self.measure == "always":
            return plan.chosen == "measured"
        return self.widest is None or plan.width <= self.widest


AUTO = Packing()


def parse_packing(asked: str | int) -> Packing:
    """What `--pack` says: `auto`, `measured`, `off`, or the most runs in a pack.

    Raises:
        UserError: it says something else.
    """
    if asked == "auto":
        return AUTO
    if asked == "measured":
        return Packing(measure="always")
    number = 1 if asked == "off" else int(asked) if str(asked).isascii() and str(asked).isdecimal() else 0
    if number < 1 or isinstance(asked, bool):
        remedy = "auto, measured, off, or the most runs in a pack, e.g. 8"
        raise UserError(f"{asked!r} is no way to pack runs", path=("pack",), remedy=remedy)
    return Packing(number, "never")


@dataclass(frozen=True)
class Group:
    """Runs of one structure; `live` as in `PackPlan`."""

    live: frozenset[str]
    runs: tuple[RunSpec, ...]


@dataclass(frozen=True)
class Work:
    """A group that is to be packed, with its prepared task; `precision` and `execution` as in `PackPlan`."""

    group: Group
    source: Source
    precision: str
    execution: Execution = AS_BUILT

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


def group(runs: Sequence[RunSpec]) -> list[Group]:
    """Runs by structure, in order of first appearance.

    A mask that only some runs use is traced in all that could share their program, and in no others.
    """
    everywhere = frozenset[str]().union(*(active(run.config) for run in runs))
    groups: dict[str, list[RunSpec]] = defaultdict(list)
    for run in runs:
        groups[structure_key(split(run.config, everywhere)[0])].append(run)
    return [
        Group(frozenset[str]().union(*(active(run.config) for run in members)), tuple(members))
        for members in groups.values()
    ]


Measure = Callable[[Work, Packing], Layout | None]
"""Gives the fastest layout, None where it was not measured. See `train.calibrate`."""


def plan_packs(
    runs: Sequence[RunSpec],
    sources: Iterable[Source],
    earlier: Sequence[PackPlan] = (),
    packing: Packing = AUTO,
    measure: Measure = lambda work, packing: None,
) -> list[PackPlan]:
    """Packs for runs that have none yet.

    Args:
        sources: each run's prepared task.
        earlier: the study's packs so far; what `precision: auto` meant for them it means for these.
        packing: what the user asks for.
    """
    source_of = dict(zip((run.id for run in runs), sources, strict=True))
    plans = []
    for members in group(runs):
        precision = members.runs[0].config.train.precision
        if precision == "auto":
            precision = earlier[0].precision if earlier else auto_precision()
        work = Work(members, source_of[members.runs[0].id], precision)
        work = replace(work, execution=decide(work.config, work.source, precision))
        layout, chosen = choose(work, packing, measure)
        if layout.divided:
            work = replace(work, execution=partitionable(work.execution, work.config))
        settings = {"precision": precision, "live": tuple(sorted(members.live)), "chosen": chosen, **asdict(layout)}
        settings |= work.execution.told | {"platform": jax.default_backend()}
        for start in range(0, len(members.runs), layout.width):
            names = tuple((run.arm, run.seed, run.id) for run in members.runs[start : start + layout.width])
            plans.append(PackPlan(id=pack_id(names), runs=names, **settings))
    return plans


def choose(work: Work, packing: Packing, measure: Measure) -> tuple[Layout, str]:
    """A group's layout, and how it was chosen."""
    mesh = work.config.train.compute.mesh
    data, model = least_division(work) if mesh == "auto" else (mesh.data, mesh.model)
    if data * model > 1:
        return divided_layout(work, packing, data, model), "rule of thumb" if mesh == "auto" else "asked for"
    if packing.measure == "never":
        return rule_of_thumb(work, packing), "asked for"
    measured = measure(work, packing)
    return (measured, "measured") if measured else (rule_of_thumb(work, packing), "rule of thumb")


def missing_memory(config: ResolvedConfig, source: Source) -> tuple[int, int] | None:
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
        ways = divisions(config, source.vocab_size, jax.device_count())
        needed = min(device_bytes(*sizes, *way) for way in ways)
    return (needed, there) if needed > there else None


def partitionable(execution: Execution, config: ResolvedConfig) -> Execution:
    """How a run is computed that XLA divides over devices: it cannot divide a kernel, so attention is the plain one.

    Raises:
        UserError: a kernel was asked for outright.
    """
    asked = config.train.compute.attention
    if asked not in ("auto", "plain"):
        problem = f"attention={asked} is a kernel, which cannot be divided over devices as this run is"
        raise UserError(problem, path=("train", "compute", "attention"), remedy="auto or plain, or a mesh of 1 and 1")
    return replace(execution, attention="plain")


def least_division(work: Work) -> tuple[int, int]:
    """Over how many devices `(data, model)` a run has to be divided: over none, if one holds what it keeps from step to
    step; else over the fewest that do. The cores of a CPU share their memory, so that dividing gains none.
    """
    if jax.default_backend() == "cpu":
        return 1, 1
    return fitting_division(work.config, work.source, device_bytes_limit(), jax.device_count())


def fitting_division(config: ResolvedConfig, source: Source, memory: int, devices: int) -> tuple[int, int]:
    """The first way of dividing a run with which a device's memory, in bytes, holds its part; the last if none does."""
    ways = list(divisions(config, source.vocab_size, devices))
    sizes = (config.model, source.vocab_size, source.seq_len)
    return next((way for way in ways if device_bytes(*sizes, *way) <= memory), ways[-1])


def divided_layout(work: Work, packing: Packing, data: int, model: int) -> Layout:
    """As many runs at once as devices can each take a part of one.

    Raises:
        UserError: there are too few devices for one run, or a size of the run cannot be divided so.
    """
    here().check_devices(data, model)
    check_mesh(work.config, work.source.vocab_size, data, model)
    there, share = jax.device_count(), data * model
    # With several processes each has to take part, if only by repeating a run.
    at_once = there // share
    runs = at_once if jax.process_count() > 1 else min(at_once, work.size, packing.widest or at_once)
    return Layout(runs, runs * share, data=data, model=model)


def rule_of_thumb(work: Work, packing: Packing) -> Layout:
    """A layout that is rarely far from the fastest: as few packs as fit into memory, spread over all devices.

    On a CPU a run on each core beats all cores on one run. A run alone has its batch divided over them while it is
    small.
    """
    for devices in reversed(device_counts(work.size)):
        most = min(packing.widest or WIDEST * devices, work.widest(devices))
        if devices <= min(most, work.size) > 1:
            return Layout(even_width(work.size, most, devices), devices)
    sizes = (work.config.model, work.source.vocab_size, work.source.seq_len)
    return Layout(1, max(shard_counts(work.config)) if 4 * num_params(*sizes) < LIGHT else 1)


def shard_counts(config: ResolvedConfig) -> list[int]:
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
    """Over how many devices a pack of so many runs may be spread, see `spreads`. Of several processes each takes part.

    On a CPU they are as many as cores, unless who started this process has set another number.
    """
    there = jax.device_count()
    return [there] if jax.process_count() > 1 else spreads(there, runs)


def spreads(there: int, runs: int = 1) -> list[int]:
    """Over how many devices of those `there` so many runs may be spread: 1, 2, 4 ..., all, and one for each run."""
    return sorted({there, min(runs, there), *(2**i for i in range(there.bit_length()))})


def auto_precision() -> str:
    """What `precision: auto` means on this device: bfloat16 on accelerators, float32 on a CPU."""
    return "float32" if jax.default_backend() == "cpu" else "bfloat16"


def pack_id(names: Sequence[tuple[str, int, str]]) -> str:
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:12]
