"""`taetpu chips`: published TPU data."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taetpu.cli.options import AsJson
from taetpu.cli.output import print_json, print_table, print_text

if TYPE_CHECKING:
    from taetpu.core.chips import Chip, Slice


def chips(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A slice, such as v5e-8 or v4:2x2x4. Default: all chips.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show published TPU data: chips, slices, prices and hosts.

    Example: taetpu chips v5e-8
    """
    from taetpu.core.chips import generations, parse_slice, table_date

    if name:
        tpu_slice = parse_slice(name)
        data = _slice(tpu_slice) | {"chip": _chip(tpu_slice.generation), "dated": table_date()}
        print_json(data) if as_json else _print_slice(tpu_slice)
        return
    if as_json:
        print_json({"dated": table_date(), "chips": [_chip(chip) for chip in generations()]})
        return
    print_table([_chip_row(chip) for chip in generations()])
    typer.echo("")
    print_table([row for chip in generations() for row in _host_rows(chip)])
    typer.echo("")
    print_text(
        f"Figures are per chip, those of the second table per machine, as of {table_date()}. Prices are in USD per "
        "hour, on demand and spot, in the cheapest US region. `by` shows whether the number in a slice's name counts "
        "cores or chips. `runtime` is the version for the Cloud TPU API. Sources: taetpu chips --json"
    )


def _chip_row(chip: "Chip") -> dict[str, Any]:
    """Return the table row for a chip, in the units that its vendor publishes."""
    sizes = chip.slices()
    return {
        "chip": chip.name,
        "bf16 TF/s": f"{chip.bf16_flops / 1e12:.0f}",
        "HBM": f"{chip.hbm_bytes / 2**30:.0f} GiB",
        "GB/s": f"{chip.hbm_bandwidth / 1e9:.0f}",
        "USD/h": _usd(chip.usd_per_chip_hour(spot=False)),
        "spot": _usd(chip.usd_per_chip_hour(spot=True)),
        "slices": f"{sizes[0].name} to {sizes[-1].name.rpartition('-')[2]}",
        "by": chip.counts,
    }


def _host_rows(chip: "Chip") -> list[dict[str, Any]]:
    """Return a row for each kind of machine of a chip, with its number of chips, its size and its runtime version."""
    sizes = {chip.multi_host_chips: None, **dict.fromkeys(chip.single_host_chips), **dict(chip.host_sizes)}
    rows = [
        {
            "machine": chip.name,
            "chips": chips,
            "vCPUs": size[0] if size else "unknown",
            "memory": f"{size[1]} GB" if size else "unknown",
            "runtime": chip.runtime or "none",
        }
        for chips, size in sorted(sizes.items())
    ]
    if chip.multi_host_size:
        vcpus, gb = chip.multi_host_size
        rows.append(rows[-1] | {"machine": f"{chip.name}, of several", "vCPUs": vcpus, "memory": f"{gb} GB"})
    return rows


def _usd(rate: float | None) -> str:
    return "no rate" if rate is None else f"{rate:.2f}"


def _chip(chip: "Chip") -> dict[str, Any]:
    """Return the data of the given chip, with its sources, for JSON output."""
    plain = asdict(chip) | {"machine_types": dict(chip.machine_types), "sources": {}}
    plain |= {"host_sizes": {chips: {"vcpus": vcpus, "memory_gb": gb} for chips, (vcpus, gb) in chip.host_sizes}}
    return plain | {"sources": {figure: asdict(source) for figure, source in chip.sources}}


def _slice(tpu_slice: "Slice") -> dict[str, Any]:
    """Return the size, machine type and cost of the given slice for JSON output."""
    vcpus, memory = tpu_slice.host_size or (None, None)
    return {
        "name": tpu_slice.name,
        "topology": tpu_slice.topology_name,
        "chips": tpu_slice.chips,
        "cores": tpu_slice.cores,
        "devices": tpu_slice.devices,
        "hosts": tpu_slice.hosts,
        "host_vcpus": vcpus,
        "host_memory_gb": memory,
        "machine_type": tpu_slice.machine_type,
        "runtime": tpu_slice.generation.runtime,
        "hbm_bytes": tpu_slice.hbm_bytes,
        "bf16_flops": tpu_slice.chips * tpu_slice.generation.bf16_flops,
        "usd_per_hour": tpu_slice.usd_per_hour(spot=False),
        "usd_per_hour_spot": tpu_slice.usd_per_hour(spot=True),
    }


def _print_slice(tpu_slice: "Slice") -> None:
    data = _slice(tpu_slice)
    bare = {"bf16_flops": f"{data['bf16_flops']:.4g}", "hbm_bytes": f"{tpu_slice.hbm_bytes / 2**30:.0f} GiB"}
    prices = {key: _usd(data[key]) for key in ("usd_per_hour", "usd_per_hour_spot")}
    for key, value in (data | bare | prices).items():
        if value is not None:
            label = key.replace("_", " ").replace("usd", "USD").replace("vcpus", "vCPUs").replace("gb", "GB")
            typer.echo(f"{label:<18} {value}")
