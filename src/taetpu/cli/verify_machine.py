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

    found = runner.verify(checks or [], lambda name, done, total: log(f"check {done + 1} of {total}: {name}"))
    print_json(runner.as_data(found)) if as_json else _print_outcomes(found)
    if failed := [one for one in found if one.finding.status == "FAILED"]:
        names = ", ".join(one.check.name for one in failed)
        raise Failed(f"{len(failed)} of {len(found)} checks failed: {names}")


def _print_outcomes(found: "list[Outcome]") -> None:
    print_table(
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
            print_text(f"{one.check.name}: {one.remedy}", hanging=2)
            typer.echo(f"  see {one.page}")
