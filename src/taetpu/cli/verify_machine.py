"""`taetpu verify`: checks of this machine."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from taetpu.cli.options import AsJson
from taetpu.cli.output import log, print_json, print_table, print_text
from taetpu.core.errors import Failed, UserError

if TYPE_CHECKING:
    from taetpu.tpu.verifying.runner import Outcome


def verify(
    checks: Annotated[
        list[str] | None, typer.Argument(metavar="CHECK", help="Run only these checks. Default: all checks.")
    ] = None,
    torch: Annotated[bool, typer.Option("--torch", help="Check PyTorch on a TPU instead of jax.")] = False,
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="PATH", help="The Python that has PyTorch. Default: that of taetpu."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine: devices, numerics, speed and training.

    Also checks versions, locks, collectives and other users of the device. Takes less than a minute. Exits with 3 if
    a check fails. A slow result is not a failure.

    Example: taetpu verify
    """
    from taetpu.tpu.verifying import runner

    def show(name: str, done: int, total: int) -> None:
        log(f"check {done + 1} of {total}: {name}")

    if python and not torch:
        raise UserError("--python requires --torch", path=("--python",), remedy="Add --torch or omit --python.")
    if torch:
        outcomes = runner.verify_torch(python or sys.executable, checks or [], show)
    else:
        outcomes = runner.verify(checks or [], show)
    print_json(runner.as_data(outcomes)) if as_json else _print_outcomes(outcomes)
    if failed := [outcome for outcome in outcomes if outcome.finding.status == "FAILED"]:
        names = ", ".join(outcome.check.name for outcome in failed)
        raise Failed(f"{len(failed)} of {len(outcomes)} checks failed: {names}")


def _print_outcomes(outcomes: "list[Outcome]") -> None:
    print_table(
        {
            "check": outcome.check.name,
            "result": outcome.finding.status,
            "figure": outcome.finding.figure,
            "s": f"{outcome.seconds:.1f}",
        }
        for outcome in outcomes
    )
    for outcome in outcomes:
        if outcome.remedy:
            typer.echo("")
            print_text(f"{outcome.check.name}: {outcome.remedy}", hanging=2)
            typer.echo(f"  see {outcome.page}")
