"""`taetpu dev fake-cloud` and `preempt`: every cloud command tried on this machine, with no account."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer


def fake_cloud(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="What to run with the fake cloud.")],
) -> None:
    """Run a command with a Google Cloud that is not there: fake servers, real clients, machines on this one.

    Example: taetpu dev fake-cloud -- taetpu tpu up --type v6e-8 --yes
    """
    from taetpu.cli.cloud import tell
    from taetpu.cloud.clients import imported

    imported("google.cloud.tpu_v2")  # says what to install
    from taetpu.cloud.fakes.everything import running

    with tempfile.TemporaryDirectory(prefix="taetpu-") as folder, running(Path(folder)) as cloud:
        os.environ |= cloud.environment()  # machines that boot are given it
        tell(f"a fake cloud listens at {cloud.address}; its answers are our reading of Google's documentation")
        code = subprocess.run(command, check=False).returncode
        left = cloud.machines()
        tell(f"machines that are left: {', '.join(left)}" if left else "no machine is left")
        for line in cloud.others():
            tell(f"left: {line}")
    sys.exit(code)


def preempt(
    name: Annotated[str, typer.Argument(help="A TPU of the fake cloud.")],
    notice: Annotated[float, typer.Option(help="Seconds for which it is told before; Google gives up to 30.")] = 0.0,
) -> None:
    """Take a machine of the fake cloud back, as Google may do with spot machines at any time.

    Example: taetpu dev preempt my-tpu --notice 30
    """
    from urllib.error import HTTPError
    from urllib.parse import quote
    from urllib.request import Request, urlopen

    from taetpu.cloud.clients import fake_address
    from taetpu.core.errors import UserError

    address = fake_address()
    if address is None:
        raise UserError("no fake cloud runs here", remedy="taetpu dev fake-cloud -- COMMAND; real ones are Google's")
    try:
        urlopen(Request(f"{address}/fake/preempt/{quote(name, safe='')}?notice={notice}", method="POST"))
    except HTTPError as error:
        raise UserError(f"there is no machine {name!r}", remedy="`taetpu tpu list` shows what there is") from error
