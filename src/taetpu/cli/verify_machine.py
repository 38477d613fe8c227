"""`taetpu verify`: checks of this machine."""

from typing import TYPE_CHECKING, Annotated

import typer

from taetpu.cli.options import AsJson
from taetpu.cli.output import log, print_json, print_table, print_text
from taetpu.core.errors import Failed

if TYPE_CHECKING:
    from taetpu.tpu.verifying.runner import Outcome


def verify(
    checks: Annotated[
        list[str] | None, typer.Argument(metavar="CHECK", help="Run only these checks. Default: all checks.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine: devices, numerics, speed and training.

    Also checks versions, locks, collectives and other users of the device. Takes less than a minute. Exits with 3 if
    a check fails. A slow result is not a failure.

    Example: taetpu verify
    """
    from taetpu.tpu.verifying import runner

    outcomes = runner.verify(checks or [], lambda name, done, total: log(f"check {done + 1} of {total}: {name}"))
    print_json(runner.as_data(outcomes)) if as_json else _print_outcomes(outcomes)
    if failed := [outcome for outcome in outcomes if outcome.finding.status == "FAILED"]:
        names = ", ".join(outcome.check.name for outcome in failed)
        raise Failed(f"{len(failed)} of {len(outcomes)} checks failed: {names}")


def _print_outcomes(outcomes: "list[Outcome]") -> None:
    print_table(
        [
            {
                "check": outcome.check.name,
                "result": outcome.finding.status,
                "figure": outcome.finding.figure,
                "s": f"{outcome.seconds:.1f}",
            }
            for outcome in outcomes
        ]
    )
    for outcome in outcomes:
        if outcome.remedy:
            typer.echo("")
            print_text(f"{outcome.check.name}: {outcome.remedy}", hanging=2)
            typer.echo(f"  see {outcome.page}")
