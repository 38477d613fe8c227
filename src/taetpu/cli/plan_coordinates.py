"""`taetpu plan --coordinates`: the sizes of activations of each arm at several widths."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from taetpu.cli.output import plural, print_table, print_text
from taetpu.core.errors import UserError
from taetpu.core.number_parsing import parse_int

if TYPE_CHECKING:
    from taetpu.spec.resolved_study import Study

COLUMNS = 5
"""Maximum number of widths in a table, so that it fits into 80 columns."""
STEPS, SEEDS = 4, 3
"""Defaults of `--check-steps` and `--check-seeds`."""


def parse_widths(text: str | None) -> list[int]:
    """Return the widths in the value of `--widths`.

    Raises:
        UserError: if the text is not a list of at most `COLUMNS` integers above 0.
    """
    try:
        widths = [parse_int(part) for part in text.split(",")] if text else []
    except ValueError:
        widths = [0]
    if len(widths) > COLUMNS or any(width < 1 for width in widths):
        problem = f"`--widths` must be at most {COLUMNS} integers above 0, separated by commas, got {text!r}"
        raise UserError(problem, path=("--widths",), remedy="Use e.g. --widths 64,128,256.")
    return widths


def measure_coordinates(
    study: "Study", arms: list[str], widths: list[int], steps: int, seeds: int, out: Path | None
) -> dict[str, Any]:
    """Return the result of `study.coordinates.check_coordinates`, and write its chart to `out` if that is given."""
    from rich.console import Console

    from taetpu.report.chart_files import FORMATS, save_chart
    from taetpu.report.coordinate_chart import coordinate_chart
    from taetpu.study.coordinates import check_coordinates
    from taetpu.study.progress import parts_bar

    if out is not None and out.suffix not in FORMATS:  # refused before minutes of computation
        known = ", ".join(FORMATS)
        raise UserError(f"unknown chart format {out.suffix or out.name!r}", file=out, remedy=f"Use {known}.")
    with parts_bar(Console(stderr=True), "measuring sizes") as update:
        coordinates = check_coordinates(study, update, arms=arms, widths=widths, steps=steps, seeds=seeds)
    if out is not None:
        save_chart(coordinate_chart(coordinates), out)
    return coordinates


def print_coordinates(coordinates: dict[str, Any]) -> None:
    """Print the result of `measure_coordinates`: two tables for each arm."""
    steps, limit = plural(coordinates["steps"], "step"), coordinates["threshold"]
    moments = {"before": "before training", "change": f"change after {steps}"}
    typer.echo(f"{coordinates['study']}: mean absolute activations, {plural(coordinates['seeds'], 'seed')}")
    print_text(
        "slope: of log size over log dim, with its standard error over seeds (se); "
        f"steady: at most {limit:g} in magnitude",
    )
    for arm in coordinates["arms"]:
        for moment, title in moments.items():
            typer.echo(f"\n{arm['arm']}, {title}")
            rows = [row for row in arm["sites"] if row["moment"] == moment]
            print_table([_format_row(row, arm["widths"]) for row in rows])


def _format_row(row: dict[str, Any], widths: list[int]) -> dict[str, Any]:
    sizes = {f"dim {width}": f"{size:.2g}" for width, size in zip(widths, row["sizes"], strict=True)}
    slope, error = (None if row[name] is None else f"{row[name]:.2f}" for name in ("slope", "slope_se"))
    return {"site": row["site"], **sizes, "slope": slope, "se": error, "with dim": row["verdict"]}
