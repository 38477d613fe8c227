"""`taetpu report`, `check` and `plot`: verdicts, claims and charts of stored studies."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taetpu.cli.addresses import Address, Addresses, log_latest, resolve_address, resolve_study
from taetpu.cli.options import AsJson, Root
from taetpu.cli.output import print_json, print_text
from taetpu.cli.status import print_departures
from taetpu.core.errors import Failed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taetpu.stats.claims import Finding
    from taetpu.stats.results import Results
    from taetpu.store.study import StudyFolder


def report(
    address: Address,
    verify: Annotated[
        bool, typer.Option(help="Write nothing. Recompute the results from the raw metrics and list differences.")
    ] = False,
    figures: Annotated[
        str, typer.Option(metavar="pdf|svg|png", help="Also write each chart to a file in report/figures.")
    ] = "",
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Analyse the stored runs, and write the report and results.json.

    Example: taetpu report quickstart
    """
    from taetpu.report.build import build_report
    from taetpu.stats.analyse import analyse

    study = resolve_study(address, root)
    if verify:
        _verify(study, as_json)
        return
    results = analyse(study)
    written = build_report(study, figures)
    if as_json:
        print_json(results)
    else:
        print_results(results, written, costs_of(study, results))


def costs_of(study: "StudyFolder", results: "Results") -> str:
    """Return the costs of a study's arms as text; "" if they are not known."""
    from taetpu.report.costs import read_costs, read_measured
    from taetpu.report.terminal_text import cost_text

    measured = read_measured(study, results)
    return cost_text(results, read_costs(study, results, measured), measured)


def print_results(results: "Results", written: dict[str, str], costs: str = "") -> None:
    """Print the verdicts, in colour on a terminal, the text of `costs_of`, and the report's path."""
    from taetpu.report.terminal_text import table_text

    print_verdicts(table_text(results) + (f"\n\n{costs}" if costs else ""))
    print_departures(results["departures"])
    typer.echo(f"\nreport: {written['html']}")
    if "figures" in written:
        typer.echo(f"figures: {written['figures']}")


def print_verdicts(text: str) -> None:
    """Print text. On a terminal with colours, a verdict at the end of a table's row has its colour."""
    from rich.console import Console
    from rich.text import Text

    from taetpu.report.verdict_style import COLOURS, VERDICTS

    coloured = Text(text)
    for verdict in VERDICTS:
        coloured.highlight_regex(rf"(?m)(?<=  ){verdict}$", COLOURS[verdict])
    Console().print(coloured, soft_wrap=True)


def print_next(results: "Results", run: str, root: str | None, look: str | None = "sample") -> None:
    """Print commands that look closer at a study: at its curves, if any, and into a model.

    Args:
        results: the content of `results.json`.
        run: the address of a run.
        root: the value of `--root`, or None.
        look: the command of `taetpu lens`; None for none.
    """
    from taetpu.report.summary import is_untrained

    place = "" if root is None else f" --root {shlex.quote(root)}"
    commands = [] if is_untrained(results) else [f"taetpu plot {results['study']}{place} -o curves.svg"]
    commands += [f"taetpu lens {look} {run}{place}"] if look is not None else []
    for number, command in enumerate(commands):
        typer.echo(f"{'next:' if number == 0 else '     '} {command}")


def _verify(study: "StudyFolder", as_json: bool) -> None:
    """Print how the stored results differ from the raw metrics. Raises `Failed` if they differ."""
    from taetpu.stats.verify import verify

    problems = verify(study)
    if as_json:
        print_json({"study": study.name, "problems": problems})
    elif problems:
        for problem in problems:
            print_text(problem, hanging=2)
    else:
        typer.echo(f"{study.name}: results.json agrees with the raw metrics of {len(list(study.runs()))} runs")
    if problems:
        raise Failed(f"{study.name}: {len(problems)} differences between results.json and the raw metrics")


def check(
    file: Annotated[
        Path, typer.Argument(metavar="CLAIMS", help="A YAML file with a study's address and claims about it.")
    ],
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Check claims about a study. Exits with 3 unless all claims hold.

    The file contains `study: quickstart` and `claims: [nope is worse by at least 0.02, baseline is below 1.9]`.

    Example: taetpu check claims.yaml
    """
    from taetpu.study.claims_file import check_claims

    match, outcomes = check_claims(file, root)
    log_latest(match.address, match.name)
    print_findings(outcomes, as_json)


def print_findings(findings: "Sequence[Finding]", as_json: bool = False) -> None:
    """Print which claims hold, each with its evidence. Raises `Failed` unless all hold."""
    if as_json:
        print_json(
            [
                {"claim": finding.claim.text, "holds": finding.holds, "evidence": finding.evidence}
                for finding in findings
            ]
        )
    else:
        for finding in findings:
            print_text(f"{'holds' if finding.holds else 'FAILS'}  {finding.claim.text}", hanging=7)
            print_text(finding.evidence, first=7, hanging=7)
    if failed := sum(not finding.holds for finding in findings):
        raise Failed(f"{failed} of {len(findings)} claims do not hold")


def plot(
    addresses: Addresses,
    metric: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="The metric, e.g. gradient-norm/all. Default: the primary metric, e.g. val/loss."
        ),
    ] = "",
    x: Annotated[
        str,
        typer.Option(
            metavar="AXIS", help="The x axis: steps, samples, tokens, flops, time, or a setting such as model.dim."
        ),
    ] = "steps",
    by: Annotated[
        str, typer.Option(metavar="WHAT", help="Draw one line per arm, study, run or value of a setting.")
    ] = "arm",
    arm: Annotated[list[str] | None, typer.Option(metavar="ARM", help="Draw only this arm. May be repeated.")] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write: .svg, .pdf, .png, .html or .json.")
    ] = Path("plot.svg"),
    root: Root = None,
) -> None:
    """Draw a metric of all runs of one or more studies.

    Example: taetpu plot quickstart --x tokens -o loss.pdf
    """
    from taetpu.report.chart_files import save_chart
    from taetpu.study.plots import plot as draw

    matches = [resolve_address(address, root) for address in addresses]
    save_chart(draw(matches, metric, x, by, arms=arm or ()), out)
    typer.echo(f"wrote {out}")
