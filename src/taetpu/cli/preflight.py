"""`taetpu plan --tpu`: compile a study's programs for TPUs, and print tables of memory, speed and cost."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import typer

from taetpu.cli.chips import ALL, slice_named
from taetpu.cli.output import plural, print_table, print_text
from taetpu.core.errors import UserError

if TYPE_CHECKING:
    from taetpu.core.chips import Slice
    from taetpu.study.preview import Prepared
    from taetpu.train.device_capabilities import Capabilities
    from taetpu.train.layout import Packing

ON_CHIP = 10
"""Arithmetic intensity, as a multiple of the device's balance, above which memory traffic is negligible."""
SMALL = 0.01
"""Utilisation below which a study is too small for a TPU."""
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
    if name.strip().lower() == ALL:
        return [parse_slice(f"{chip.name}-{COMPARED}") for chip in generations()]
    try:
        return [slice_named(name, "compares the generations")]
    except UserError as error:
        raise error.within("--tpu") from None


def largest_capabilities(slices: "list[Slice]") -> "Capabilities | None":
    """Return the capabilities of the slice with the largest number of devices, or None if there are no slices."""
    from taetpu.train.device_capabilities import Capabilities

    return Capabilities.of_slice(max(slices, key=lambda tpu: tpu.devices)) if slices else None


def compile_for(ready: "Prepared", packing: "Packing", slices: "list[Slice]") -> list[dict[str, Any]]:
    """Return the compiler's figures for each slice: for the unfinished runs, or for all runs if all are finished."""
    from rich.console import Console

    from taetpu.study.progress import DelayedBar
    from taetpu.tpu.preflight import PreflightRequest, preflight

    study = ready.study
    runs = [*ready.missing[0], *ready.missing[1]] or study.runs()
    plugins = tuple(plugin.file for plugin in study.plugins)
    asked = PreflightRequest(runs, study.sources, packing, study.folder, plugins)
    too_few = {tpu: why for tpu in slices if (why := _too_few(tpu, study.arms[0].config.train.compute.mesh))}
    with DelayedBar(Console(stderr=True), "compiling for TPU") as update:
        found = iter(preflight(asked, [tpu for tpu in slices if tpu not in too_few], update))
    return [_too_small(tpu, too_few[tpu]) if tpu in too_few else next(found) for tpu in slices]


def _too_few(tpu: "Slice", mesh: Any) -> str:
    """Return the reason why a slice is too small for the study's mesh, or "" if it is large enough."""
    from taetpu.train.device_capabilities import Capabilities

    try:
        if mesh != "auto":
            Capabilities.of_slice(tpu).check_devices(mesh.data, mesh.model)
    except UserError as error:
        return error.problem
    return ""


def _too_small(tpu: "Slice", why: str) -> dict[str, Any]:
    """Return the entry for a slice that is too small for the study's mesh. Nothing is compiled for it."""
    shape = {"tpu": tpu.name, "topology": tpu.topology_name, "chips": tpu.chips, "devices": tpu.devices}
    unknown = dict.fromkeys(("hours", "usd_on_demand", "usd_spot"))
    rates = {"on_demand": tpu.usd_per_hour(False), "spot": tpu.usd_per_hour(True)}
    room = {"hosts": tpu.hosts, "hbm": tpu.hbm_bytes_per_device}
    return {**shape, **room, "fits": False, "refused": why, "programs": [], **unknown, "rates": rates}


def print_slices(found: list[dict[str, Any]]) -> None:
    """Print the details of one slice or a comparison of several slices, then the source of the figures."""
    from importlib.metadata import version

    from taetpu.core.chips import table_date

    if len(found) == 1:
        _print_slice(found[0])
    else:
        print_table([_compared(one) for one in found])
        for one in found:
            for problem in _problems(one):
                print_text(f"{one['tpu']}: {problem}")
    typer.echo("")
    print_text(
        f"Compiled by libtpu {version('libtpu')} without a TPU; nothing was measured. Times range from a roofline to "
        f"the compiler's cycle estimate; chip data and prices of {table_date()}."
    )


def _print_slice(found: dict[str, Any]) -> None:
    shape = f"{plural(found['chips'], 'chip')} on {plural(found['hosts'], 'host')}, {_gib(found['hbm'])} a device"
    typer.echo(f"{found['tpu']} ({found['topology']}): {shape}")
    print_table([_program(one) for one in found["programs"]])
    affected: dict[str, list[str]] = {}
    for program in found["programs"]:
        for hazard in program["hazards"]:
            affected.setdefault(hazard, []).append(program["arms"][0] + (" ..." if len(program["arms"]) > 1 else ""))
    for hazard, arms in affected.items():
        who = "every program" if len(arms) == len(found["programs"]) > 1 else ", ".join(arms)
        print_text(f"- {hazard} ({who})", hanging=2)
    for problem in _problems(found):
        print_text(f"- {problem}", hanging=2)
    if _small(found["programs"]):
        print_text("- this study is too small for a TPU: it uses less than 1%", hanging=2)
    if bound := _bound(found["programs"]):
        print_text(f"- {bound}", hanging=2)
    typer.echo("")
    print_text(_bill(found))


def _small(programs: list[dict[str, Any]]) -> bool:
    """Return whether all programs use less than `SMALL` of the device, even at the roofline."""
    used = [one["utilisation"][1] for one in programs if "utilisation" in one]
    return bool(used) and max(used) < SMALL


def _bound(programs: list[dict[str, Any]]) -> str:
    """Return whether matmuls or memory traffic bound the programs, judged by their arithmetic intensity."""
    known = [one for one in programs if one.get("intensity")]
    if not known:
        return ""
    low, high = (f([one["intensity"] for one in known]) for f in (min, max))
    balance = known[0]["balance"]
    if low > ON_CHIP * balance:
        return "almost no memory traffic: the compiler keeps a step's data on the chip"
    bounds = "memory traffic bounds" if high < balance else "matmuls bound"
    bounds = bounds if high < balance or low > balance else "memory traffic or matmuls bound"
    span = format_range((low, high), "{:.3g}".format)
    return f"{span} FLOPs per byte; the device balances at {balance:.3g}: {bounds} the roofline"


def _program(one: dict[str, Any]) -> dict[str, Any]:
    """Return the table row for a program."""
    others = f" and {len(one['arms']) - 1} more" if len(one["arms"]) > 1 else ""
    row = {"arm": f"{one['arms'][0]}{others}", "runs": one["runs"], "pack": f"{one['width']} on {one['devices']}"}
    if "hbm" not in one:
        why = "too large" if "too_large" in one else "failed"
        return {**row, "memory": why, "step": "", "tokens/s": "", "used": ""}
    return {
        **row,
        "memory": f"{one['hbm']['needed'] / one['hbm']['available']:.1%}",
        "step": format_range(one["step_seconds"], format_seconds),
        "tokens/s": format_range(one["tokens_per_second"], _amount),
        "used": format_range(one["utilisation"], _percent, 100),
    }


def _compared(found: dict[str, Any]) -> dict[str, Any]:
    """Return the table row for a slice."""
    programs = [one for one in found["programs"] if "hbm" in one]
    most = max((one["hbm"]["needed"] / one["hbm"]["available"] for one in programs), default=None)
    return {
        "TPU": found["tpu"],
        "chips": found["chips"],
        "fits": f"{len(programs)} of {len(found['programs'])}" if found["programs"] else "-",
        "memory": None if most is None else f"{most:.1%}",
        "steps": format_range(found["hours"], format_seconds, 3600),
        "$ on demand": _price(found, "on_demand"),
        "$ spot": _price(found, "spot"),
        "": _remark(found),
    }


def _price(found: dict[str, Any], how: str) -> str:
    """Return the cost of the study as text, or "no rate" if no rate is known."""
    if found["rates"][how] is None:
        return "no rate"
    return format_range(found[f"usd_{how}"], _usd)


def _remark(found: dict[str, Any]) -> str:
    """Return a short reason why a slice has no figures or no upper bound. `_problems` returns the full reason."""
    from taetpu.core.chips import parse_slice

    if "refused" in found:
        return "too few devices"
    if found["hours"] is None:
        return "too large" if any("too_large" in one for one in found["programs"]) else "does not compile"
    if found["hours"][1] is None:
        return "no cycles" if parse_slice(found["tpu"]).generation.clock_hz else "clock not published"
    return ""


def _problems(found: dict[str, Any]) -> list[str]:
    """Return the compiler's errors and descriptions of missing data, without duplicates."""
    failed = [f"{one['arms'][0]}: {one['error']}" for one in found["programs"] if "error" in one]
    missing = [text for one in found["programs"] for text in one.get("missing", ())]
    refused = [found["refused"]] if "refused" in found else []
    return list(dict.fromkeys([*refused, *failed, *missing]))


def _bill(found: dict[str, Any]) -> str:
    if found["hours"] is None:
        return "No estimate for the study, because a program has none."
    steps = format_range(found["hours"], format_seconds, 3600)
    price = _priced(format_range(found[f"usd_{how}"], _usd) for how in ("on_demand", "spot"))
    return (
        f"All packs in sequence: {steps} of steps; {price or 'no rate is known'}. Compiling took "
        f"{format_seconds(found['compile_seconds'])} of CPU time. Not included: machine setup, evaluation, storage."
    )


def _priced(costs: Iterable[str]) -> str:
    """Return costs as text, such as `$1.20 on demand, $0.40 spot`. Unknown costs are omitted."""
    pairs = zip(costs, ("on demand", "spot"), strict=True)
    return ", ".join(f"{cost} {how}" for cost, how in pairs if cost != "-")


def format_range(found: Any, text: Callable[[float], str], factor: float = 1.0) -> str:
    """Return a range as text: `29us-650us`, one value if both ends are printed alike, or `>14ms` if one is unknown."""
    if found is None:
        return "-"
    low, high = (None if end is None else text(factor * end) for end in found)
    if low is None or high is None:
        return f">{low}" if low else f"<{high}"
    return low if low == high else f"{low}-{high}"


def format_seconds(seconds: float) -> str:
    """Return a duration with two significant digits and a unit, such as `1.7ms`."""
    for unit, size in (("h", 3600), ("min", 60), ("s", 1), ("ms", 1e-3)):
        if seconds >= size:
            return f"{_two(seconds / size)}{unit}"
    return f"{_two(seconds * 1e6)}us"


def _amount(number: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{_two(number / size)}{unit}"
    return _two(number)


def _percent(number: float) -> str:
    return f"{_two(number)}%" if number >= 0.01 else "<0.01%"


def _usd(amount: float) -> str:
    return "<$0.01" if 0 < amount < 0.005 else f"${amount:.2f}"


def _two(number: float) -> str:
    return f"{number:.0f}" if number >= 9.95 else f"{number:.2g}"


def _gib(size: int) -> str:
    return f"{size / 2**30:.4g} GiB"


def refuse_oversized(found: list[dict[str, Any]]) -> None:
    """Raise `UserError` with the compiler's figures if a single slice is requested and an arm does not fit on it."""
    if len(found) != 1:
        return
    from taetpu.tpu.preflight import describe_failures

    if refused := describe_failures(found[0]):
        raise UserError("\n".join(refused), path=(f"--tpu {found[0]['tpu']}",))
