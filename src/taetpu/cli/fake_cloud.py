"""`taetpu dev fake-cloud`, `left` and `preempt`: every cloud command tried on this machine, with no account."""

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from taetpu.cli.options import AsJson, number
from taetpu.cli.tables import count, show_json


def fake_cloud(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="What to run with the fake cloud.")],
) -> None:
    """Run a command with a fake Google Cloud. Its servers are fakes, clients and ssh are real, machines are this one.

    Example: taetpu dev fake-cloud -- taetpu tpu up --type v6e-8 --yes
    """
    from taetpu.cli.cloud import tell
    from taetpu.cloud.clients import imported

    imported("google.cloud.tpu_v2")  # says what to install
    from taetpu.cloud.fakes.ending import signalled, watched
    from taetpu.cloud.fakes.everything import running

    with (
        signalled(),
        tempfile.TemporaryDirectory(prefix="taetpu-") as folder,
        running(Path(folder)) as cloud,
        watched(cloud.address, Path(folder)),
    ):
        os.environ |= cloud.environment()  # machines that boot are given it
        tell(f"a fake cloud listens at {cloud.address}; its answers are our reading of Google's documentation")
        code = _run(command, cloud.address, cloud.folder)
        for line in _told(cloud.left()):
            tell(line)
    sys.exit(code)


def _run(command: list[str], address: str, folder: Path) -> int:
    """The exit code of a command; 128 and the signal's number where one ended it. It ends with this process.

    Raises:
        UserError: it cannot be begun.
    """
    from taetpu.cloud.fakes.ending import GRACE, end_command
    from taetpu.core.errors import UserError

    try:
        begun = subprocess.Popen(command)
    except OSError as error:
        remedy = "a program and its arguments, as in `taetpu dev fake-cloud -- bash`"
        raise UserError(f"{command[0]!r} cannot be run: {error.strerror}", remedy=remedy) from error
    try:
        code = begun.wait()
    except BaseException as stopped:
        if isinstance(stopped, KeyboardInterrupt):  # a terminal sends it to the command as well
            with suppress(subprocess.TimeoutExpired):
                begun.wait(GRACE)
        end_command(address, folder)
        begun.wait()
        raise
    return code if code >= 0 else 128 - code


def left(as_json: AsJson = False) -> None:
    """What there is in the fake cloud, of whatever kind. Exit code 3 if anything is.

    Example: taetpu dev left
    """
    import json

    from taetpu.core.errors import Failed

    found: list[str] = json.loads(_asked("left"))
    if as_json:
        show_json(found)
    else:
        for line in _told(found):
            typer.echo(line)
    if found:
        raise Failed(f"{count(len(found), 'thing')} left")


def _told(found: list[str]) -> list[str]:
    return [f"left: {line}" for line in found] or ["nothing is left in the fake cloud"]


def preempt(
    name: Annotated[str, typer.Argument(help="A TPU of the fake cloud.")],
    notice: Annotated[float, number(help="Seconds for which it is told before; Google gives up to 30.")] = 0.0,
) -> None:
    """Take a machine of the fake cloud back. Google may do so with spot machines at any time.

    Example: taetpu dev preempt my-tpu --notice 30
    """
    from urllib.error import HTTPError
    from urllib.parse import quote

    from taetpu.core.errors import UserError

    try:
        _asked(f"preempt/{quote(name, safe='')}?notice={notice}", "POST")
    except HTTPError as error:
        raise UserError(f"there is no machine {name!r}", remedy="`taetpu tpu list` shows what there is") from error


def _asked(path: str, method: str = "GET") -> bytes:
    """What the fake cloud answers.

    Raises:
        UserError: there is none, or none any more.
        HTTPError: it refuses.
    """
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    from taetpu.cloud.clients import FAKE, fake_address
    from taetpu.core.errors import UserError

    address, remedy = fake_address(), "`taetpu dev fake-cloud -- COMMAND` runs one"
    if address is None:
        raise UserError("no fake cloud runs here", remedy=remedy)
    try:
        return urlopen(Request(f"{address}/fake/{path}", method=method)).read()
    except HTTPError:
        raise
    except OSError as error:  # urllib's own are, too
        problem = f"no fake cloud answers at {address}: {getattr(error, 'reason', error)}"
        raise UserError(problem, path=(FAKE,), remedy=f"it has ended; {remedy}, and sets {FAKE} for it") from None
