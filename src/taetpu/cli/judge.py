"""`taetpu judge`: verdicts on tables and folders of results that other programs wrote."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taetpu.cli.options import AsJson, Root, number
from taetpu.cli.output import print_json, print_text

if TYPE_CHECKING:
    from taetpu.judging.judged import Judged


Table = Annotated[
    Path,
    typer.Argument(
        metavar="TABLE", help="A file: .csv, .tsv, .json, .jsonl (also .gz) or .parquet; or a folder of runs."
    ),
]
Better = Annotated[
    list[str],
    typer.Option(
        "--better", metavar="min|max", help="Whether lower or higher values are better: once, or for each metric."
    ),
]
Wide = Annotated[
    str,
    typer.Option(metavar="arms|seeds", help="Each column without another role holds the values of one arm, or seed."),
]
Format = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="FORMAT",
        help="The format of a folder, if its layout leaves it open: wandb, tensorboard, lightning, trainer, "
        "mlflow or lm-eval.",
    ),
]


def column(name: str, text: str, metavar: str = "COLUMN") -> Any:
    """Return an option that names a column."""
    return typer.Option(name, metavar=metavar, help=text)


def judge(
    table: Table,
    metric: Annotated[list[str], column("--metric", "A metric to judge. May be repeated.")],
    better: Better,
    arm: Annotated[
        list[str] | None, column("--arm", "The column that names the arm. May be repeated for settings.")
    ] = None,
    seed: Annotated[str, column("--seed", "The column of seeds. Runs with equal seeds are compared.")] = "",
    baseline: Annotated[str, typer.Option(metavar="ARM", help="The arm that all others are compared with.")] = "",
    block: Annotated[
        list[str] | None, column("--block", "A column within whose values arms are compared. May be repeated.")
    ] = None,
    unpaired: Annotated[
        bool, typer.Option("--unpaired", help="Runs with equal seeds share nothing: compare all runs of two arms.")
    ] = False,
    equivalence: Annotated[
        list[float] | None,
        number("--equivalence", help="Differences below this do not matter: once, or for each metric."),
    ] = None,
    alpha: Annotated[float, number("--alpha", help="The error rate of the verdicts on a metric.")] = 0.05,
    step: Annotated[
        str, column("--step", "The column of steps, if runs have several rows. The last value counts.")
    ] = "",
    wide: Wide = "",
    ignore: Annotated[
        list[str] | None, column("--ignore", "A column of a wide table to leave out. May be repeated.")
    ] = None,
    where: Annotated[
        list[str] | None,
        column("--where", "Judge runs with this value only; also !=, <, <=. May be repeated.", "COLUMN=VALUE"),
    ] = None,
    kind: Format = "",
    name: Annotated[str, typer.Option(metavar="NAME", help="The name of the study. Default: the file's.")] = "",
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="DIR", help="The study's folder. Default: ROOT/NAME.")
    ] = "",
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Judge the arms of a table of results that other programs wrote.

    Example: taetpu judge results.csv --arm method --seed seed --metric val_loss --better min --baseline base
    """
    from taetpu.judging.judged import judge as judge_table
    from taetpu.judging.sources import default_name
    from taetpu.store.backend import default_root
    from taetpu.store.errors import check_name

    folder = out or f"{default_root(root).rstrip('/')}/{check_name(name or default_name(table), 'name', ('--name',))}"
    judged = judge_table(
        table,
        metric=metric,
        better=better,
        arm=arm or (),
        seed=seed,
        baseline=baseline,
        block=block or (),
        step=step,
        wide=wide,
        ignore=ignore or (),
        where=where or (),
        unpaired=unpaired,
        equivalence=equivalence or None,
        alpha=alpha,
        kind=kind,
        out=folder,
    )
    _print(judged, as_json)


def _print(judged: "Judged", as_json: bool) -> None:
    """Print the results of each metric."""
    from taetpu.cli.report_commands import print_results
    from taetpu.judging.judged import FAMILIES

    studies = judged.studies
    if as_json:
        print_json([study.results for study in studies.values()] if len(studies) > 1 else judged.results)
        return
    for place, (name, study) in enumerate(studies.items()):
        if place:
            typer.echo()
        print_results(study.results, dict(judged.reports[name]))
    if len(studies) > 1:
        typer.echo()
        print_text(FAMILIES)
