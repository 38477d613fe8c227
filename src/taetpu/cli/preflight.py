"""`taetpu plan --tpu`: what the TPU compiler says of a study, as tables."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import typer

from taetpu.cli.chips import ALL, named
from taetpu.cli.output import count, say, show_table

if TYPE_CHECKING:
    from taetpu.core.chips import Slice
    from taetpu.study.preview import Prepared
    from taetpu.train.device_capabilities import Place
    from taetpu.train.layout import Packing

ON_CHIP = 10  # times the balance, above which an intensity tells nothing but that there is no traffic
SMALL = 0.01  # of a TPU: less is told
COMPARED = 8  # chips or cores by the name: a machine of each generation


def wanted_slices(name: str | None) -> "list[Slice]":
    """The slices that `--tpu` names: none, one, or the smallest whole machine of each generation.

    Raises:
        UserError: there is no such slice.
    """
    from taetpu.core.chips import generations, parse_slice
    from taetpu.core.errors import UserError

    if name is None:
        return []
    if name.strip().lower() == ALL:
        return [parse_slice(f"{chip.name}-{COMPARED}") for chip in generations()]
    try:
        return [named(name, "compares the generations")]
    except UserError as error:
        raise error.within("--tpu") from None


def most_of(slices: "list[Slice]") -> "Place | None":
    """Where a study is to be trained, if not here: of several slices, that with most devices."""
    from taetpu.train.device_capabilities import Place

    return Place.of(max(slices, key=lambda tpu: tpu.devices)) if slices else None


def compiled_for(ready: "Prepared", packing: "Packing", slices: "list[Slice]") -> list[dict[str, Any]]:
    """What the compiler says of all runs that are to be trained; of a study that is done, of all its runs."""
    from rich.console import Console

    from taetpu.study.spinner import Waiting
    from taetpu.tpu.preflight import PreflightRequest, preflight

    study = ready.study
    runs = [*ready.missing[0], *ready.missing[1]] or study.runs()
    plugins = tuple(plugin.file for plugin in study.plugins)
    asked = PreflightRequest(runs, study.sources, packing, study.folder, plugins)
    too_few = {tpu: why for tpu in slices if (why := _too_few(tpu, study.arms[0].config.train.compute.mesh))}
    with Waiting(Console(stderr=True), "compiling for TPU") as told:
        found = iter(preflight(asked, [tpu for tpu in slices if tpu not in too_few], told))
    return [_unsuited(tpu, too_few[tpu]) if tpu in too_few else next(found) for tpu in slices]


def _too_few(tpu: "Slice", mesh: Any) -> str:
    """Why a slice among several cannot divide runs as the study asks; empty where it can."""
    from taetpu.core.errors import UserError
    from taetpu.train.device_capabilities import Place

    try:
        if mesh != "auto":
            Place.of(tpu).check_devices(mesh.data, mesh.model)
    except UserError as error:
        return error.problem
    return ""


def _unsuited(tpu: "Slice", why: str) -> dict[str, Any]:
    """What is told of a slice for which nothing can be compiled."""
    shape = {"tpu": tpu.name, "topology": tpu.topology_name, "chips": tpu.chips, "devices": tpu.devices}
    unknown = dict.fromkeys(("hours", "usd_on_demand", "usd_spot"))
    rates = {"on_demand": tpu.usd_per_hour(False), "spot": tpu.usd_per_hour(True)}
    room = {"hosts": tpu.hosts, "hbm": tpu.hbm_bytes_per_device}
    return {**shape, **room, "fits": False, "refused": why, "programs": [], **unknown, "rates": rates}


def show_slices(found: list[dict[str, Any]]) -> None:
    """One slice in detail, or several side by side; then what all of it rests on."""
    from importlib.metadata import version

    from taetpu.core.chips import table_date

    if len(found) == 1:
        _show_slice(found[0])
    else:
        show_table([_compared(one) for one in found])
        for one in found:
            for told in _troubles(one):
                say(f"{one['tpu']}: {told}")
    typer.echo("")
    say(
        f"Compiled by libtpu {version('libtpu')} for TPUs that are not here; nothing was measured. Times lie between a "
        f"roofline and the compiler's own cycles; facts and prices of {table_date()}."
    )


def _show_slice(found: dict[str, Any]) -> None:
    shape = f"{count(found['chips'], 'chip')} on {count(found['hosts'], 'host')}, {_gib(found['hbm'])} a device"
    typer.echo(f"{found['tpu']} ({found['topology']}): {shape}")
    show_table([_program(one) for one in found["programs"]])
    told: dict[str, list[str]] = {}
    for program in found["programs"]:
        for hazard in program["hazards"]:
            told.setdefault(hazard, []).append(program["arms"][0] + (" ..." if len(program["arms"]) > 1 else ""))
    for hazard, arms in told.items():
        who = "every program" if len(arms) == len(found["programs"]) > 1 else ", ".join(arms)
        say(f"- {hazard} ({who})", hanging=2)
    for trouble in _troubles(found):
        say(f"- {trouble}", hanging=2)
    if _small(found["programs"]):
        say("- this study is too small for a TPU: under 1% of it is used", hanging=2)
    if pace := _pace(found["programs"]):
        say(f"- {pace}", hanging=2)
    typer.echo("")
    say(_bill(found))


def _small(programs: list[dict[str, Any]]) -> bool:
    """Is next to nothing used, by the roofline, which no program is above?"""
    used = [one["utilisation"][1] for one in programs if "utilisation" in one]
    return bool(used) and max(used) < SMALL


def _pace(programs: list[dict[str, Any]]) -> str:
    """Whether products or memory traffic decide how fast the programs can be, by their arithmetic intensity."""
    known = [one for one in programs if one.get("intensity")]
    if not known:
        return ""
    low, high = (f([one["intensity"] for one in known]) for f in (min, max))
    balance = known[0]["balance"]
    if low > ON_CHIP * balance:
        return "next to no traffic with the device's memory: what a step works on stays on the chip, says the compiler"
    bounds = "memory traffic bounds" if high < balance else "products bound"
    bounds = bounds if high < balance or low > balance else "memory traffic or products bound"
    span = between((low, high), "{:.3g}".format)
    return f"{span} FLOPs a byte, where a device balances at {balance:.3g}: {bounds} the roofline"


def _program(one: dict[str, Any]) -> dict[str, Any]:
    """A row for a program."""
    others = f" and {len(one['arms']) - 1} more" if len(one["arms"]) > 1 else ""
    row = {"arm": f"{one['arms'][0]}{others}", "runs": one["runs"], "pack": f"{one['width']} on {one['devices']}"}
    if "hbm" not in one:
        why = "too large" if "too_large" in one else "failed"
        return {**row, "memory": why, "step": "", "tokens/s": "", "used": ""}
    return {
        **row,
        "memory": f"{one['hbm']['needed'] / one['hbm']['available']:.1%}",
        "step": between(one["step_seconds"], short),
        "tokens/s": between(one["tokens_per_second"], _amount),
        "used": between(one["utilisation"], _percent, 100),
    }


def _compared(found: dict[str, Any]) -> dict[str, Any]:
    """A row for a slice."""
    programs = [one for one in found["programs"] if "hbm" in one]
    most = max((one["hbm"]["needed"] / one["hbm"]["available"] for one in programs), default=None)
    return {
        "TPU": found["tpu"],
        "chips": found["chips"],
        "fits": f"{len(programs)} of {len(found['programs'])}" if found["programs"] else "-",
        "memory": None if most is None else f"{most:.1%}",
        "steps": between(found["hours"], short, 3600),
        "$ on demand": _price(found, "on_demand"),
        "$ spot": _price(found, "spot"),
        "": _remark(found),
    }


def _price(found: dict[str, Any], how: str) -> str:
    """What a study takes; where no rate is known, that."""
    if found["rates"][how] is None:
        return "no rate"
    return between(found[f"usd_{how}"], _usd)


def _remark(found: dict[str, Any]) -> str:
    """Why a slice has no figures, or no upper end of them, in a word or two; below it is told whole."""
    from taetpu.core.chips import parse_slice

    if "refused" in found:
        return "too few devices"
    if found["hours"] is None:
        return "too large" if any("too_large" in one for one in found["programs"]) else "does not compile"
    if found["hours"][1] is None:
        return "no cycles" if parse_slice(found["tpu"]).generation.clock_hz else "clock not published"
    return ""


def _troubles(found: dict[str, Any]) -> list[str]:
    """Programs that the compiler failed on, and what is not known, each said once."""
    failed = [f"{one['arms'][0]}: {one['error']}" for one in found["programs"] if "error" in one]
    missing = [text for one in found["programs"] for text in one.get("missing", ())]
    refused = [found["refused"]] if "refused" in found else []
    return list(dict.fromkeys([*refused, *failed, *missing]))


def _bill(found: dict[str, Any]) -> str:
    if found["hours"] is None:
        return "Without an estimate for every program there is none for the study."
    steps = between(found["hours"], short, 3600)
    price = _priced(between(found[f"usd_{how}"], _usd) for how in ("on_demand", "spot"))
    compiling = _priced("-" if usd is None else _usd(usd) for usd in found["usd_compiling"])
    return (
        f"All packs, one after another: {steps} of steps; {price or 'no rate is known'}. Compiling once took "
        f"{short(found['compile_seconds'])} of this machine's processors"
        f"{f'; as long on the slice: {compiling}' if compiling else ''}. Setting up machines, evaluating and storing "
        "come on top."
    )


def _priced(costs: Iterable[str]) -> str:
    """`$1.20 on demand, $0.40 spot`, of what has a rate."""
    named = zip(costs, ("on demand", "spot"), strict=True)
    return ", ".join(f"{cost} {how}" for cost, how in named if cost != "-")


def between(found: Any, text: Callable[[float], str], factor: float = 1.0) -> str:
    """A range as text, `29us-650us`; one value where its ends look alike; `>14ms` where one end is not known."""
    if found is None:
        return "-"
    low, high = (None if end is None else text(factor * end) for end in found)
    if low is None or high is None:
        return f">{low}" if low else f"<{high}"
    return low if low == high else f"{low}-{high}"


def short(seconds: float) -> str:
    """Two digits and a unit: `1.7ms`."""
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


def refuse_what_does_not_fit(found: list[dict[str, Any]]) -> None:
    """Raises `UserError` with the compiler's figures where an arm does not fit on the one slice that was asked for."""
    from taetpu.core.errors import UserError

    if len(found) == 1 and (refused := _refusals(found[0])):
        raise UserError("\n".join(refused), path=(f"--tpu {found[0]['tpu']}",))


def _refusals(found: dict[str, Any]) -> list[str]:
    from taetpu.tpu.preflight import describe_failures

    return describe_failures(found)
