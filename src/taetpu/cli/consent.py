"""Before something is made or removed in a cloud: what will happen, and whether it shall."""

import sys
from typing import Annotated

import typer

from taetpu.cli.tables import fitting

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done and what it may cost; change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]

UNCHANGED = "nothing was changed"


def agreed(plan: str, question: str, *, yes: bool, dry_run: bool, typed: str | None = None) -> bool:
    """Tell the plan, and ask unless `yes` was given. False after a dry run.

    A no ends the process with exit code 1; Ctrl-C, or the end of the input, with 130.

    Args:
        plan: what will be done, in lines.
        question: "Create it?"
        typed: a name that has to be typed instead of a yes, for what cannot be brought back.

    Raises:
        UserError: there is nobody to ask.
    """
    from taetpu.core.errors import UserError

    typer.echo(fitting(plan), err=True)
    if dry_run:
        typer.echo(f"dry run: {UNCHANGED}", err=True)
        return False
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UserError("nobody is here to agree to this", remedy="give --yes to do it, --dry-run to see what it is")
    try:
        if typed is None:
            agrees = typer.confirm(question, err=True)
        else:
            agrees = typer.prompt(f"{question} Type {typed!r} to agree", err=True) == typed
    except typer.Abort:
        typer.echo(f"\n{UNCHANGED}", err=True)
        sys.exit(130)
    if not agrees:
        typer.echo(UNCHANGED, err=True)
        sys.exit(1)
    return True
