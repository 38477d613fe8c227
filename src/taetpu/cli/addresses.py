"""The argument with an address of a stored study, arm or run, which many commands have."""

from typing import TYPE_CHECKING, Annotated

import typer

from taetpu.cli.output import log
from taetpu.store.errors import ADDRESS_FORMS, LATEST

if TYPE_CHECKING:
    from taetpu.store.addresses import Match
    from taetpu.store.study import StudyFolder

Address = Annotated[str, typer.Argument(metavar="ADDRESS", help=f"{ADDRESS_FORMS}.")]
OptionalAddress = Annotated[
    str | None, typer.Argument(metavar="ADDRESS", help=f"{ADDRESS_FORMS}. Default: all studies.")
]
Addresses = Annotated[list[str], typer.Argument(metavar="ADDRESS...", help=f"Each is {ADDRESS_FORMS}.")]
ModelAddress = Annotated[str, typer.Argument(metavar="ADDRESS", help=f"{ADDRESS_FORMS}; or a model's folder.")]


def log_latest(address: str, name: str) -> None:
    """Print the study or run that the address names, if the address is `latest`."""
    if address == LATEST:
        log(f"latest: {name}")


def resolve_address(address: str, root: str | None) -> "Match":
    """Return the studies or runs that an address names, and print what `latest` is.

    Raises:
        UserError: see `taetpu.store.addresses.resolve`.
    """
    from taetpu.store.addresses import resolve

    match = resolve(address, root)
    log_latest(address, match.name)
    return match


def resolve_study(address: str, root: str | None) -> "StudyFolder":
    """Return the study with an address. If the address names an arm or a run, print which study is used.

    Raises:
        UserError: see `resolve_address`, or if the address names several studies.
    """
    match = resolve_address(address, root)
    study = match.study
    if match.arm is not None:
        log(f"{match.name}: the command is about the whole study {study.name}")
    return study
