"""The command line in a separate process, as users run it."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ZONE = "us-east5-b"
UP = {
    "tpu-api": ("tpu", "up", "box", "--type", "v5e-8", "--zone", ZONE, "--yes"),
    "gce": ("tpu", "up", "box", "--type", "v6e-8", "--zone", ZONE, "--yes"),
}
"""By API: a command that makes a machine of one host."""
DOWN = ("tpu", "down", "box", "--yes")
CREATES = {"tpu-api": "queuedResources.create", "gce": "instances.insert"}
TABLES = {"tpu-api": "tpu.queuedResources", "gce": "compute.instances"}


def taetpu(*words: str, folder: Path | None = None, given: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "taetpu", *words], cwd=folder, capture_output=True, text=True, check=False, input=given
    )


def succeed(*words: str, folder: Path | None = None) -> str:
    """Run a command that must succeed; return its standard output."""
    done = taetpu(*words, folder=folder)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def start(words: Sequence[str], **options) -> subprocess.Popen[str]:
    """Start a command in a new session."""
    return subprocess.Popen(
        [sys.executable, "-m", "taetpu", *words], start_new_session=True, stdin=subprocess.DEVNULL, text=True, **options
    )
