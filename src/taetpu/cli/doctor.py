"""`taetpu doctor`: whether everything is there that a TPU needs, and what to do where it is not."""

import os
import shutil
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taetpu.cli.cloud import Here
from taetpu.cli.options import AsJson
from taetpu.cli.tables import say, show_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taetpu.cloud.backends.base import Machine
    from taetpu.cloud.clients import Clients
    from taetpu.cloud.doctor import Check

WIDE = 9


def doctor(
    init: Annotated[bool, typer.Option("--init", help="Write taetpu.toml, with what an old .env says.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look whether everything is there that a TPU needs. Nothing is changed; fixes are shown as commands.

    Example: taetpu doctor
    """
    if init:
        _init(Path.cwd(), as_json)
        return
    from taetpu.cloud.doctor import checks
    from taetpu.core.errors import Failed

    found: list[Check] = []
    for _, alike in groupby(checks(Path.cwd(), os.environ, _machines), key=lambda check: (check.status, check.found)):
        together = list(alike)
        found += together
        if not as_json:
            _show(together)
    if as_json:
        show_json([asdict(check) for check in found])
    failing = list(dict.fromkeys(check.name for check in found if check.status == "fails"))
    if failing:
        many = f"{len(failing)} checks fail" if failing[1:] else "1 check fails"
        raise Failed(f"{many}: {', '.join(failing)}")
    if not as_json:
        worth = sum(check.status == "warning" for check in found)
        warnings = f"; {worth} warning{'s' if worth > 1 else ''}" if worth else ""
        typer.echo(f"nothing fails{warnings}")


def _machines(clients: "Clients") -> "Sequence[Machine]":
    from taetpu.cloud.settings import read

    return Here(read()).cloud.machines()


def _show(alike: "list[Check]") -> None:
    """Checks that came to the same, in sentences of 80 columns; a command on a line of its own, whole, to be copied."""
    check = alike[0]
    say(f"{check.status:<{WIDE}}{', '.join(one.name for one in alike)}: {check.found}", hanging=WIDE + 2)
    if check.status != "ok" and check.remedy:
        say(f"do: {check.remedy}", first=WIDE + 2, hanging=WIDE + 6)
    if check.status != "ok" and check.command:
        typer.echo(f"{'':{WIDE + 2}}{check.command}")


def _init(folder: Path, as_json: bool) -> None:
    """Write the settings' file, and say for each old variable what became of it."""
    from taetpu.cloud import settings_file
    from taetpu.cloud.doctor import dotenv

    old = dotenv.find(folder)
    taken = dotenv.take(old) if old else None
    path = settings_file.write_new(folder, settings_file.text(taken.values if taken else {}))
    if as_json:
        show_json({"file": str(path), "from": str(old) if old else None, "variables": taken.became if taken else {}})
        return
    typer.echo(f"wrote {path}")
    if taken:
        typer.echo(f"from {taken.file}, which stays as it is:")
        for name, what in taken.became.items():
            say(f"{name}: {what}", first=2, hanging=4)
    if taken is None or "project" not in taken.values:
        typer.echo("next: name the project in it, then `taetpu doctor`")
    else:
        typer.echo(f"next: `taetpu doctor`{'' if shutil.which('gcloud') else ' (gcloud is not installed yet)'}")
