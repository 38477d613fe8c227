"""Options that several commands take, and options that are numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from taetpu.core.numerals import parse_float, parse_int

Root = Annotated[str | None, typer.Option("--root", help="Where studies live; else TAETPU_ROOT, else ./runs.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
StudyFile = Annotated[Path, typer.Argument(metavar="STUDY", help="The study's YAML file.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change the baseline, e.g. train.steps=200. May be repeated."),
]

Pack = Annotated[
    str,
    typer.Option(
        metavar="auto|N|off",
        help="Runs trained together in one program: by a rule of thumb (auto), at most N, or every run alone (off). "
        "Packs that have begun keep their plan.",
    ),
]


def integer(*names: str, least: int | None = None, most: int | None = None, metavar: str = "INTEGER", **kw: Any) -> Any:
    """Return a typer option for an integer in decimal digits, within bounds that are included."""
    return typer.Option(*names, parser=_parser(parse_int, "an integer", least, most), metavar=metavar, **kw)


def number(*names: str, least: float | None = None, metavar: str = "FLOAT", **kw: Any) -> Any:
    """Return a typer option for a finite number in decimal digits, of at least `least`."""
    return typer.Option(*names, parser=_parser(parse_float, "a number", least, None), metavar=metavar, **kw)


def _parser(parse: Callable[[str], Any], what: str, least: Any, most: Any) -> Callable[[Any], Any]:
    """Return a parser for typer, whose own reads `0_1` as 1. Defaults arrive as numbers and are kept."""
    limits = [f"at least {least}"] * (least is not None) + [f"at most {most}"] * (most is not None)
    bounds = " of " + " and ".join(limits) if limits else ""

    def parsed(value: Any) -> Any:
        try:
            found = parse(value) if isinstance(value, str) else value
        except ValueError:
            found = None
        if found is None or (least is not None and found < least) or (most is not None and found > most):
            raise typer.BadParameter(f"{value!r} is not {what}{bounds}")
        return found

    return parsed
