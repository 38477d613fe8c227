"""NVIDIA's Multi-Process Service (MPS), by which kernels of several processes run on one GPU at once.

Without it, processes that share a GPU take turns on it. Its control daemon starts a server when the first process that
uses the GPU connects to it, and a process that cannot connect runs without MPS, so that a server is the sign that MPS
was used. The daemon and its clients find each other by `CUDA_MPS_PIPE_DIRECTORY`. Compute modes and other settings of
the GPU need not be changed, and are not. Source: https://docs.nvidia.com/deploy/mps/ (pages "When to Use MPS" and
"Common Tasks") and the manual page of nvidia-cuda-mps-control, read on 2026-11-29.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
START_SECONDS, QUIT_SECONDS = 10.0, 10.0


class MpsFailed(Exception):
    """MPS does not run on this machine, or was not used."""


class Mps(NamedTuple):
    """A control daemon.

    Attributes:
        environ: Variables for its clients.
        servers: Returns the process numbers of its servers; empty if no process uses the GPU through it.
    """

    environ: Mapping[str, str]
    servers: Callable[[], list[str]]


def without_mps(folder: Path) -> dict[str, str]:
    """Return variables for processes that must not use a daemon that runs on the machine already."""
    return {PIPES: str(folder / "no-mps")}


@contextmanager
def mps() -> Iterator[Mps]:
    """Start a control daemon in the foreground of a process group, and stop the group at the end, whatever happens.

    Raises:
        MpsFailed: if the program is missing or the daemon does not start.
    """
    if shutil.which(CONTROL) is None:
        raise MpsFailed(f"MPS does not run here: {CONTROL} is missing")
    with tempfile.TemporaryDirectory(prefix="mps") as place:
        more = {PIPES: f"{place}/pipes", LOGS: f"{place}/logs"}
        for folder in more.values():
            Path(folder).mkdir()
        environ = {**os.environ, **more}
        with tempfile.TemporaryFile("w+") as said:
            daemon = subprocess.Popen([CONTROL, "-f"], env=environ, start_new_session=True, stdin=subprocess.DEVNULL,
                                      stdout=said, stderr=said)  # fmt: skip
            try:
                wait_until_started(daemon, environ)
                yield Mps(more, partial(list_servers, environ))
            except MpsFailed as error:
                said.seek(0)
                lines = said.read().splitlines()
                raise MpsFailed(f"{error}: {lines[-1]}" if lines else str(error)) from None
            finally:
                stop(daemon, environ)


def wait_until_started(daemon: "subprocess.Popen[bytes]", environ: Mapping[str, str]) -> None:
    """Wait until the daemon answers.

    Raises:
        MpsFailed: if it ended, or does not answer within `START_SECONDS`.
    """
    end = time.monotonic() + START_SECONDS
    while tell("get_server_list", environ) is None:
        if daemon.poll() is not None:
            raise MpsFailed(f"MPS does not run here: {CONTROL} ended with code {daemon.returncode}")
        if time.monotonic() > end:
            raise MpsFailed(f"MPS does not run here: {CONTROL} gave no answer in {START_SECONDS:g} s")
        time.sleep(0.05)


def tell(command: str, environ: Mapping[str, str]) -> str | None:
    """Send a command to the daemon and return its answer, or None if there is none."""
    try:
        done = subprocess.run([CONTROL], input=f"{command}\n", env=dict(environ), capture_output=True, text=True,
                              timeout=QUIT_SECONDS, check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None


def list_servers(environ: Mapping[str, str]) -> list[str]:
    return (tell("get_server_list", environ) or "").split()


def stop(daemon: "subprocess.Popen[bytes]", environ: Mapping[str, str]) -> None:
    """Ask the daemon to quit, and kill its process group, with its servers, if it does not within `QUIT_SECONDS`."""
    if daemon.poll() is not None:
        return
    tell("quit", environ)
    try:
        daemon.wait(QUIT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()
