"""`taetpu plan --tpu`: compile a study's programs for TPUs, and print their memory, speed and cost."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from taetpu.cli.output import log, plural, print_table, print_text
from taetpu.core.errors import UserError, locate_errors

if TYPE_CHECKING:
    from taetpu.core.chips import Slice
    from taetpu.study.preview import Prepared
    from taetpu.train.device_capabilities import Capabilities
    from taetpu.train.layout import Packing

ON_CHIP = 10
"""Arithmetic intensity, as a multiple of the device's balance, above which memory traffic is negligible."""
SMALL = 0.01
"""Utilisation at the roofline below which a study is too small for a TPU."""
COMPARED = 8
"""Size of the slices that `--tpu all` compares, as in their names (v5e-8)."""


def requested_slices(name: str | None) -> "list[Slice]":
    """Return the slices that `--tpu` selects: none, one, or for `all` a small slice of each generation.

    Raises:
        UserError: if the slice does not exist.
    """
    from taetpu.core.chips import generations, parse_slice

    if name is None:
        return []
    if name == "all":
        return [parse_slice(f"{chip.name}-{COMPARED}") for chip in generations()]
    with locate_errors("--tpu"):
        return [parse_slice(name)]


def largest_capabilities(slices: "list[Slice]") -> "Capabilities | None":
    """Return the capabilities of the slice with the largest number of devices, or None if there are no slices."""
    from taetpu.train.device_capabilities import Capabilities

    return Capabilities.of_slice(max(slices, key=lambda tpu: tpu.devices)) if slices else None


def compile_for(ready: "Prepared", packing: "Packing", slices: "list[Slice]") -> list[dict[str, Any]]:
    """Return the compiler's figures for each slice. If some runs are unfinished, only these runs are included.

    Slices that are too small for the study's mesh are left out.
    """
    from rich.console import Console

    from taetpu.study.progress import parts_bar
    from taetpu.tpu.preflight import PreflightRequest, preflight
    from taetpu.train.device_capabilities import Capabilities

    study, large = ready.study, []
    mesh = study.arms[0].config.train.compute.mesh
    for tpu in slices:
        try:
            if mesh != "auto":
                Capabilities.of_slice(tpu).check_devices(mesh.data, mesh.model)
            large.append(tpu)
        except UserError as error:
            log(f"{tpu.name}: {error.problem}")
    runs = [*ready.missing[0], *ready.missing[1]] or study.runs()
    plugins = tuple(plugin.file for plugin in study.plugins)
    request = PreflightRequest(runs, study.sources, packing, study.folder, plugins)
    with parts_bar(Console(stderr=True), "compiling for TPU") as update:
        return preflight(request, large, update)


def print_slices(slices: list[dict[str, Any]]) -> None:
    """Print the details of one slice or a comparison of several slices, then the source of the figures."""
    from importlib.metadata import version

    from taetpu.core.chips import table_date

    if len(slices) == 1:
        _print_slice(slices[0])
    else:
        print_table([_compared(compiled) for compiled in slices])
        for compiled in slices:
            for problem in _problems(compiled):
                print_text(f"{compiled['tpu']}: {problem}")
    typer.echo("")
    print_text(
        f"Compiled by libtpu {version('libtpu')} without a TPU, so nothing was measured. Times range from a roofline "
        f"to the compiler's cycle estimate. Chip data and prices are of {table_date()}."
    )


def _print_slice(compiled: dict[str, Any]) -> None:
    size = f"{plural(compiled['chips'], 'chip')} on {plural(compiled['hosts'], 'host')}"
    shape = f"{size}, {compiled['hbm'] / 2**30:.4g} GiB per device"
    typer.echo(f"{compiled['tpu']} ({compiled['topology']}): {shape}")
    print_table([_program(entry) for entry in compiled["programs"]])
    affected: dict[str, list[str]] = {}
    for program in compiled["programs"]:
        for hazard in program["hazards"]:
            affected.setdefault(hazard, []).append(program["arms"][0] + (" ..." if len(program["arms"]) > 1 else ""))
    for hazard, arms in affected.items():
        who = "every program" if len(arms) == len(compiled["programs"]) > 1 else ", ".join(arms)
        print_text(f"- {hazard} ({who})", hanging=2)
    for problem in _problems(compiled):
        print_text(f"- {problem}", hanging=2)
    used = [entry["utilisation"][1] for entry in compiled["programs"] if "utilisation" in entry]
    if used and max(used) < SMALL:
        print_text("- this study is too small for a TPU, of which it uses less than 1%", hanging=2)
    if bound := _bound(compiled["programs"]):
        print_text(f"- {bound}", hanging=2)
    typer.echo("")
    print_text(_bill(compiled))


def _bound(programs: list[dict[str, Any]]) -> str:
    """Return text that says whether matmuls or memory traffic bound the programs; "" if no intensity is known."""
    known = [program for program in programs if program.get("intensity")]
    if not known:
        return ""
    low, high = (f([program["intensity"] for program in known]) for f in (min, max))
    balance = known[0]["balance"]
    if low > ON_CHIP * balance:
        return "almost no memory traffic, because the compiler keeps a step's data on the chip"
    bounds = "matmuls bound" if low > balance else "memory traffic or matmuls bound"
    bounds = "memory traffic bounds" if high < balance else bounds
    span = format_range((low, high), "{:.3g}".format)
    return f"{span} FLOPs per byte, and the device balances at {balance:.3g}, so {bounds} the roofline"


def _program(program: dict[str, Any]) -> dict[str, Any]:
    """Return the table row for a program."""
    others = f" and {len(program['arms']) - 1} more" if len(program["arms"]) > 1 else ""
    row = {
        "arm": f"{program['arms'][0]}{others}",
        "runs": program["runs"],
        "pack": f"{program['width']} on {program['devices']}",
    }
    if "hbm" not in program:
        why = "too large" if "too_large" in program else "failed"
        return {**row, "memory": why, "step": "", "tokens/s": "", "used": ""}
    return {
        **row,
        "memory": f"{program['hbm']['needed'] / program['hbm']['available']:.1%}",
        "step": format_range(program["step_seconds"], format_seconds),
        "tokens/s": format_range(
            program["tokens_per_second"], lambda rate: _scaled(rate, {"G": 1e9, "M": 1e6, "k": 1e3, "": 1})
        ),
        "used": format_range(program["utilisation"], _percent, 100),
    }


def _compared(compiled: dict[str, Any]) -> dict[str, Any]:
    """Return the table row for a slice."""
    programs = [program for program in compiled["programs"] if "hbm" in program]
    most = max((program["hbm"]["needed"] / program["hbm"]["available"] for program in programs), default=None)
    return {
        "TPU": compiled["tpu"],
        "chips": compiled["chips"],
        "fits": f"{len(programs)} of {len(compiled['programs'])}",
        "memory": None if most is None else f"{most:.1%}",
        "steps": format_range(compiled["hours"], format_seconds, 3600),
        "$ on demand": _price(compiled, "on_demand"),
        "$ spot": _price(compiled, "spot"),
        "": _remark(compiled),
    }


def _price(compiled: dict[str, Any], how: str) -> str:
    """Return the cost of the study as text, or "no rate" if no rate is known."""
    if compiled["rates"][how] is None:
        return "no rate"
    return format_range(compiled[f"usd_{how}"], _usd)


def _remark(compiled: dict[str, Any]) -> str:
    """Return a short reason why a slice has no figures or no upper bound. `_problems` returns the full reason."""
    if compiled["hours"] is None:
        return "too large" if any("too_large" in program for program in compiled["programs"]) else "does not compile"
    return "no upper end" if compiled["hours"][1] is None else ""


def _problems(compiled: dict[str, Any]) -> list[str]:
    """Return the compiler's errors and descriptions of missing data, without duplicates."""
    failed = [f"{program['arms'][0]}: {program['error']}" for program in compiled["programs"] if "error" in program]
    missing = [text for program in compiled["programs"] for text in program.get("missing", ())]
    return list(dict.fromkeys([*failed, *missing]))


def _bill(compiled: dict[str, Any]) -> str:
    if compiled["hours"] is None:
        return "The study has no estimate, because one of its programs has none."
    steps = format_range(compiled["hours"], format_seconds, 3600)
    prices = {way.replace("_", " "): format_range(compiled[f"usd_{way}"], _usd) for way in ("on_demand", "spot")}
    known = ", ".join(f"{price} {way}" for way, price in prices.items() if price != "-")
    return (
        f"All packs in sequence: {steps} of steps; {known or 'no rate is known'}. Compiling took "
        f"{format_seconds(compiled['compile_seconds'])} of CPU time. Not included: machine setup, evaluation "
        "and storage."
    )


def format_range(bounds: Any, text: Callable[[float], str], factor: float = 1.0) -> str:
    """Return a range as text: `29us-650us`, one value if the ends have the same text, `>14ms` if an end is unknown."""
    if bounds is None:
        return "-"
    low, high = (None if end is None else text(factor * end) for end in bounds)
    if low is None or high is None:
        return f">{low}" if low else f"<{high}"
    return low if low == high else f"{low}-{high}"


def format_seconds(seconds: float) -> str:
    """Return a duration with two significant digits and a unit, such as `1.7ms`."""
    return _scaled(seconds, {"h": 3600, "min": 60, "s": 1, "ms": 1e-3, "us": 1e-6})


def _scaled(number: float, units: dict[str, float]) -> str:
    """Return a number in the largest unit that does not exceed it, or in the last unit if all units exceed it."""
    unit, size = next(((unit, size) for unit, size in units.items() if number >= size), list(units.items())[-1])
    return f"{_two(number / size)}{unit}"


def _percent(number: float) -> str:
    return f"{_two(number)}%" if number >= 0.01 else "<0.01%"


def _usd(amount: float) -> str:
    return "<$0.01" if 0 < amount < 0.005 else f"${amount:.2f}"


def _two(number: float) -> str:
    return f"{number:.0f}" if number >= 9.95 else f"{number:.2g}"


def refuse_oversized(slices: list[dict[str, Any]]) -> None:
    """Raise `UserError` with the compiler's figures if a single slice is requested and an arm does not fit on it."""
    if len(slices) != 1:
        return
    from taetpu.tpu.preflight import describe_failures

    if refused := describe_failures(slices[0]):
        raise UserError("\n".join(refused), path=(f"--tpu {slices[0]['tpu']}",))
