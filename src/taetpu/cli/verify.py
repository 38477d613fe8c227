"""`taetpu verify`: is this machine's accelerator sane?"""

from typing import TYPE_CHECKING, Annotated

import typer

from taetpu.cli.options import AsJson
from taetpu.cli.output import say, show_json, show_table

if TYPE_CHECKING:
    from taetpu.tpu.verifying.runner import Outcome


def verify(
    checks: Annotated[
        list[str] | None, typer.Argument(metavar="CHECK", help="Only these checks; all unless any is named.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Is this machine sane: devices, numbers, rates, a short training.

    Also versions, locks, collectives and who has the device; in under a minute. Exit code 3 when a check fails; one
    that is slow does not.

    Example: taetpu verify
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from taetpu.core.errors import Failed
    from taetpu.tpu.verifying import runner

    columns = TextColumn("{task.description}"), BarColumn(bar_width=16), MofNCompleteColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        bar = bars.add_task("starting", total=None)
        found = runner.verify(
            checks or [], lambda name, done, total: bars.update(bar, description=name, completed=done, total=total)
        )
    show_json(runner.as_data(found)) if as_json else _show(found)
    if failed := [one for one in found if one.finding.status == "FAILED"]:
        names = ", ".join(one.check.name for one in failed)
        raise Failed(f"{len(failed)} of {len(found)} checks failed: {names}")


def _show(found: "list[Outcome]") -> None:
    show_table(
        [
            {
                "check": one.check.name,
                "result": one.finding.status,
                "figure": one.finding.figure,
                "s": f"{one.seconds:.1f}",
            }
            for one in found
        ]
    )
    for one in found:
        if one.remedy:
            typer.echo("")
            say(f"{one.check.name}: {one.remedy}", hanging=2)
            typer.echo(f"  see {one.page}")
