"""Before something is made or removed in a cloud: what will happen, and whether it shall."""

import sys
from typing import Annotated

import typer

from taetpu.cli.tables import fitting

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done and what it may cost; change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


def agreed(plan: str, question: str, *, yes: bool, dry_run: bool, typed: str | None = None) -> bool:
    """Tell the plan, and ask unless `yes` was given. False after a dry run or a no.

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
        typer.echo("dry run: nothing was changed", err=True)
        return False
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UserError("nobody is here to agree to this", remedy="give --yes to do it, --dry-run to see what it is")
    if typed is not None:
        return typer.prompt(f"{question} Type {typed!r} to agree", err=True) == typed
    return typer.confirm(question, err=True)
