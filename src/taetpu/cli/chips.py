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
    """Show published TPU data: speed, memory, slices and prices.

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
    print_text(
        f"Figures are per chip, as of {table_date()}. Prices are in USD per hour, on demand and spot, in the cheapest "
        "US region. `by` shows whether the number in a slice's name counts cores or chips. Sources: taetpu chips --json"
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


def _usd(rate: float | None) -> str:
    return "no rate" if rate is None else f"{rate:.2f}"


def _chip(chip: "Chip") -> dict[str, Any]:
    """Return the data of the given chip, with its sources, for JSON output."""
    plain = asdict(chip) | {"machine_types": dict(chip.machine_types), "sources": {}}
    return plain | {"sources": {figure: asdict(source) for figure, source in chip.sources}}


def _slice(tpu_slice: "Slice") -> dict[str, Any]:
    """Return the size, machine type and cost of the given slice for JSON output."""
    return {
        "name": tpu_slice.name,
        "topology": tpu_slice.topology_name,
        "chips": tpu_slice.chips,
        "cores": tpu_slice.cores,
        "devices": tpu_slice.devices,
        "hosts": tpu_slice.hosts,
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
            typer.echo(f"{key.replace('_', ' ').replace('usd', 'USD'):<18} {value}")
