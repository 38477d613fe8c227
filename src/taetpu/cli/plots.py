"""`taetpu plot`: any metric of any runs as a picture."""

from pathlib import Path
from typing import Annotated

import typer


def plot(
    folders: Annotated[list[str], typer.Argument(metavar="DIR...", help="Studies' folders, or roots of many.")],
    metric: Annotated[str, typer.Option(metavar="NAME", help="What is drawn, e.g. val/loss or gradient-norm/all.")],
    x: Annotated[
        str,
        typer.Option(
            metavar="AXIS",
            help="steps, samples, tokens, flops or time; or a setting such as model.dim, for the last values over it; "
            "or varied, for a panel for each setting in which runs differ.",
        ),
    ] = "steps",
    by: Annotated[
        str, typer.Option(metavar="WHAT", help="What makes a line: arm, study, run, or the value of a setting.")
    ] = "arm",
    arm: Annotated[list[str] | None, typer.Option(metavar="ARM", help="Only this arm. May be repeated.")] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="Where to: a name in .svg, .pdf, .png, .html or .json.")
    ] = Path("plot.svg"),
) -> None:
    """Draw a metric of all runs of some studies on one axis.

    Example: taetpu plot runs/quickstart --metric val/loss --x tokens -o loss.pdf
    """
    from taetpu.report.chart_files import save_chart
    from taetpu.study.plots import plot as drawn

    save_chart(drawn(folders, metric, x, by, arms=arm or ()), out)
    typer.echo(f"wrote {out}")
