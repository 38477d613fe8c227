"""Published facts about accelerators: the chips, slices and prices of each TPU generation.

The figures are in `chips.yaml`, each with its source and the date on which it was read. Unpublished figures are None,
never 0. This module does not import jax and does not query the machine.
"""

import math
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from taetpu.core.errors import UserError, suggest

Topology = tuple[int, ...]

LANES = 128
"""The number of elements along the last axis of a vector register, in every generation. The last axis of an array is
padded to a multiple of this number."""


@dataclass(frozen=True)
class Source:
    """The source of a number in the chip table.

    `read` is the ISO date on which the source was read, or None if only a secondary source was read, namely `via`.
    """

    title: str
    url: str | None
    read: str | None
    via: str | None = None


@dataclass(frozen=True)
class Chip:
    """A TPU generation, with its chip and its slices. Figures are per chip. None means that a figure is unknown.

    Attributes:
        name: `v2` ... `v6e`, `tpu7x`.
        names: Prefixes of slice names; the first is the canonical one (`v5litepod`).
        device_kinds: jax's names for a device of this generation.
        counts: The unit of the number in a slice's name.
        cores_per_chip: TensorCores per chip.
        devices_per_chip: jax devices per chip: two if the cores do not share memory.
        topology_config: The `chip_config_name` to pass to libtpu so that its topology has as many devices per chip as
            jax reports on a machine. None if no name is needed.
        single_host_chips: Sizes, in chips, of the slices that fit on one machine.
        multi_host_chips: Chips per machine in a larger slice.
        machine_types: Compute Engine machine types by chips per machine. Empty if Compute Engine has no such machines.
        host_sizes: vCPUs and GB of memory of a machine, by chips per machine. Empty if they are unknown.
        multi_host_size: The same for the machines of larger slices, or None if it does not differ.
        runtime: The runtime version with which the Cloud TPU API starts the machines.
        apis: The Google APIs that create machines with the chip (`gce` and `tpu-api`), with the default first.
        zones: The zones that offer the chip, as published.
        image_family: The image family of the boot disk on Compute Engine.
        usd: USD per chip-hour by region, on demand and spot; `us` is an unspecified US region.
        bf16_flops: Peak FLOP/s with bfloat16 inputs.
        hbm_bytes: Memory size in bytes.
        program_gib: Memory per device, in GiB, that libtpu leaves to a program.
        hbm_bandwidth: Memory bandwidth in bytes/s.
        ici_bandwidth: Bandwidth to all neighbours together, in both directions, in bytes/s.
        mxu_size: Rows and columns of the matrix unit; matrix products are padded to multiples of it.
        mxus_per_core: Matrix units per core.
        clock_hz: Clock frequency of the cores.
        topologies: Every published slice shape in chips, by size.
        sources: The sources of the figures, by attribute.
    """

    name: str
    names: tuple[str, ...]
    device_kinds: tuple[str, ...]
    counts: Literal["cores", "chips"]
    cores_per_chip: int
    devices_per_chip: int
    topology_config: str | None
    single_host_chips: tuple[int, ...]
    multi_host_chips: int
    machine_types: tuple[tuple[int, str], ...]
    host_sizes: tuple[tuple[int, tuple[int, int]], ...]
    multi_host_size: tuple[int, int] | None
    runtime: str | None
    apis: tuple[str, ...]
    zones: tuple[str, ...]
    image_family: str | None
    usd: tuple[tuple[str, tuple[float, float]], ...]
    bf16_flops: float
    hbm_bytes: int
    program_gib: float
    hbm_bandwidth: float
    ici_bandwidth: float | None
    mxu_size: int
    mxus_per_core: int
    clock_hz: float | None
    topologies: tuple[Topology, ...]
    sources: tuple[tuple[str, Source], ...]

    @property
    def per_chip(self) -> int:
        """The amount by which each chip increases the number in a slice's name."""
        return self.cores_per_chip if self.counts == "cores" else 1

    def slices(self) -> "list[Slice]":
        """Return every published slice, by size."""
        return [Slice(self, topology) for topology in self.topologies]

    def usd_per_chip_hour(self, spot: bool) -> float | None:
        """Return the rate in the cheapest US region, or None if no rate is known."""
        return min((pair[spot] for region, pair in self.usd if region.startswith("us")), default=None)


@dataclass(frozen=True)
class Slice:
    """Connected chips of one generation, in a published shape."""

    generation: Chip
    topology: Topology

    @property
    def chips(self) -> int:
        """The number of chips."""
        return math.prod(self.topology)

    @property
    def cores(self) -> int:
        """The number of TensorCores."""
        return self.chips * self.generation.cores_per_chip

    @property
    def devices(self) -> int:
        """The number of jax devices on all hosts."""
        return self.chips * self.generation.devices_per_chip

    @property
    def chips_per_host(self) -> int:
        """The number of chips attached to each machine."""
        single = self.chips in self.generation.single_host_chips
        return self.chips if single else self.generation.multi_host_chips

    @property
    def hosts(self) -> int:
        """The number of machines in the slice."""
        return self.chips // self.chips_per_host

    @property
    def name(self) -> str:
        """Google's accelerator type: `v5litepod-8`, `v4-32`."""
        return f"{self.generation.names[0]}-{self.chips * self.generation.per_chip}"

    @property
    def topology_name(self) -> str:
        """The `topology_name` for `jax.experimental.topologies.get_topology_desc(platform="tpu")`."""
        return f"{self.generation.name}:{'x'.join(map(str, self.topology))}"

    @property
    def topology_options(self) -> dict[str, Any]:
        """Further arguments to `get_topology_desc`, so that the topology has the devices and hosts of real machines."""
        options: dict[str, Any] = {}
        if self.generation.topology_config:
            options["chip_config_name"] = self.generation.topology_config
        if self.hosts == 1:
            options["chips_per_host_bounds"] = (*self.topology, 1, 1)[:3]
        return options

    @property
    def machine_type(self) -> str | None:
        """The Compute Engine machine type of each host, or None if Compute Engine does not offer the chip."""
        return dict(self.generation.machine_types).get(self.chips_per_host)

    @property
    def host_size(self) -> tuple[int, int] | None:
        """The vCPUs and GB of memory of each machine, or None if they are unknown."""
        if self.hosts > 1 and self.generation.multi_host_size:
            return self.generation.multi_host_size
        return dict(self.generation.host_sizes).get(self.chips_per_host)

    @property
    def hbm_bytes(self) -> int:
        """The memory of all chips together, in bytes."""
        return self.chips * self.generation.hbm_bytes

    @property
    def hbm_bytes_per_device(self) -> int:
        """The memory of one device in bytes, including the part that libtpu reserves (see `Chip.program_gib`)."""
        return self.generation.hbm_bytes // self.generation.devices_per_chip

    def usd_per_hour(self, spot: bool) -> float | None:
        """Return the price of all chips for an hour, or None if no rate is known."""
        rate = self.generation.usd_per_chip_hour(spot)
        return None if rate is None else rate * self.chips


@dataclass(frozen=True)
class Peak:
    """The published peak figures of a device. `source` is for `bf16_flops`, or for `hbm_bandwidth` if that is None."""

    name: str
    bf16_flops: float | None
    hbm_bandwidth: float | None
    source: Source


@cache
def _document() -> dict[str, Any]:
    from ruamel.yaml import YAML

    return YAML(typ="safe").load(files("taetpu.core").joinpath("chips.yaml").read_text(encoding="utf-8"))


@cache
def _sources() -> dict[str, Source]:
    entries = _document()["sources"].items()
    return {key: Source(**source | {"read": source["read"] and source["read"].isoformat()}) for key, source in entries}


def table_date() -> str:
    """Return the ISO date of the table."""
    return _document()["dated"].isoformat()


@cache
def _table() -> tuple[Chip, ...]:
    return tuple(_chip(name, entry) for name, entry in _document()["tpus"].items())


def generations() -> list[Chip]:
    """Return every TPU generation, from the oldest."""
    return list(_table())


def _chip(name: str, entry: dict[str, Any]) -> Chip:
    """Build a generation from its entry in `chips.yaml`. A value is `[value, source]`, a plain value, or null."""
    plain = {"names", "device_kinds", "counts", "topology_config"}
    values: dict[str, Any] = {k: v if k in plain or v is None else v[0] for k, v in entry.items()}
    cited = {key: _sources()[value[1]] for key, value in entry.items() if key not in plain and value is not None}
    hosts = values["multi_host_chips"]
    return Chip(
        **{
            **values,
            "name": name,
            **{key: tuple(values[key]) for key in ("names", "device_kinds", "apis", "zones")},
            "single_host_chips": tuple(values.get("single_host_chips") or [hosts]),
            "machine_types": tuple((values["machine_types"] or {}).items()),
            "host_sizes": tuple((chips, tuple(size)) for chips, size in (values["host_sizes"] or {}).items()),
            "multi_host_size": tuple(values["multi_host_size"]) if "multi_host_size" in values else None,
            "usd": tuple((region, tuple(pair)) for region, pair in (values["usd"] or {}).items()),
            "topologies": tuple(sorted(map(_shape, values["topologies"]), key=math.prod)),
            "sources": tuple(cited.items()),
        }
    )


def _shape(text: str) -> Topology:
    return tuple(int(size) for size in text.split("x"))


def find_chip(device_kind: str) -> Chip | None:
    """Return the generation of a jax device kind such as `TPU v5 lite`, or None if it is not a known TPU."""
    return next((chip for chip in _table() if device_kind in chip.device_kinds), None)


def find_peak(device_kind: str) -> Peak | None:
    """Return the published peak figures of a jax device kind, or None if no figures are known, as for a CPU."""
    if chip := find_chip(device_kind):
        share = chip.devices_per_chip
        source = dict(chip.sources)["bf16_flops"]
        return Peak(f"TPU {chip.name}", chip.bf16_flops / share, chip.hbm_bandwidth / share, source)
    for entry in _document()["gpus"]:
        if re.search(rf"(?<![A-Za-z0-9]){re.escape(entry['kind'])}(?![A-Za-z0-9])", device_kind):
            flops, bandwidth = entry["bf16_flops"], entry["hbm_bandwidth"]
            if not (flops or bandwidth):
                return None
            source = _sources()[(flops or bandwidth)[1]]
            return Peak(entry["kind"], flops and flops[0], bandwidth and bandwidth[0], source)
    return None


def parse_slice(name: str) -> Slice:
    """Return the slice with a given name: an accelerator type (`v4-32`, `v5e-8`) or a topology (`v5e:2x4`).

    The prefix of SkyPilot's names (`tpu-v5litepod-8`) is accepted.

    Raises:
        UserError: if the generation, the size or the shape does not exist. The remedy lists the nearest slices.
    """
    text = name.strip().lower().removeprefix("tpu-")  # SkyPilot's names have this prefix
    match = re.fullmatch(r"([a-z0-9]*[a-z][a-z0-9]*)\s*(?:-(\d+)|:(\d+(?:x\d+)+))?", text, re.ASCII)
    word = match.group(1) if match else re.split(r"[-:]", text)[0]
    chip = next((chip for chip in _table() if word in (*chip.names, chip.name)), None)
    if chip is None:
        smallest = [Slice(candidate, candidate.topologies[0]).name for candidate in _table()]
        raise UserError(f"there is no TPU {name!r}", remedy=suggest(text, smallest))
    if match is None or not (match.group(2) or match.group(3)):
        problem = f"TPU {name!r} has no size" if match else f"TPU {name!r} is not the name of a slice"
        raise UserError(problem, remedy=f"Add a size, as in {_some(chip, word)}.")
    size, shape = match.group(2), match.group(3)
    if size:
        return _sized(chip, word, int(size), name)
    written = _shape(shape)
    wanted = next((topology for topology in chip.topologies if sorted(topology) == sorted(written)), written)
    if wanted not in chip.topologies:
        near = sorted(chip.topologies, key=lambda t: (abs(math.log(math.prod(t) / max(1, math.prod(wanted)))), t))[:3]
        shapes = ", ".join(f"{word}:{'x'.join(map(str, topology))}" for topology in near)
        raise UserError(f"there is no TPU slice {name!r}", remedy=f"Use one of the nearest: {shapes}.")
    return Slice(chip, wanted)


def _sized(chip: Chip, word: str, size: int, name: str) -> Slice:
    sizes = {math.prod(topology) * chip.per_chip: topology for topology in chip.topologies}
    if size in sizes:
        return Slice(chip, sizes[size])
    near = sorted(sorted(sizes, key=lambda count: abs(count - size))[:2])
    remedy = f"Use one of the nearest: {', '.join(f'{word}-{count}' for count in near)}."
    counts = f"The number in a {chip.name} slice's name counts {chip.counts}."
    raise UserError(f"there is no TPU slice {name!r}", remedy=f"{counts} {remedy}")


def _some(chip: Chip, word: str) -> str:
    return ", ".join(f"{word}-{math.prod(topology) * chip.per_chip}" for topology in chip.topologies[:3])
