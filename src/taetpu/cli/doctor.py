"""`taetpu doctor`: is everything set up to make machines, and would any secret leave this computer?"""

from dataclasses import asdict
from pathlib import Path

import typer

from taetpu.cli.cloud import read_settings
from taetpu.cli.options import AsJson
from taetpu.cli.output import say, show_json


def doctor(as_json: AsJson = False) -> None:
    """Check the account, project and network, and files for keys.

    Example: taetpu doctor
    """
    from taetpu.cloud.doctor import Check, run_checks
    from taetpu.core.errors import Failed

    done: list[Check] = []
    for check in run_checks(read_settings(need_project=False), Path.cwd()):
        done.append(check)
        if not as_json:
            say(f"{check.status:<8} {check.name}: {check.found}", hanging=9)
            if check.remedy:
                typer.echo(f"         {check.remedy}")
    if as_json:
        show_json([asdict(check) for check in done])
    if failed := [check.name for check in done if check.status == "fails"]:
        raise Failed(f"{len(failed)} check(s) failed: {', '.join(failed)}")
