"""Jobs on this machine: begun, told about, read and ended. A command's arguments come as JSON on its standard input, so
that no shell sees an argument of a job, and it answers with JSON. Exit codes: 0 answered, 3 refused (stderr says why).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

from . import jobs, processes
from .jobs import BASE, ROOM, Job

HOME = os.path.expanduser("~")
OWN = os.path.join(HOME, BASE)
REFUSED = 3
BEGINS = 5.0
"""Seconds in which a job begins."""
SESSION = ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY", "SSH_ORIGINAL_COMMAND")
"""Of a login's environment, what a job is not given: it is nobody's session."""


class Refusal(Exception):
    """What was asked cannot be done."""


def main(words: list[str]) -> int:
    """Answer one command."""
    if words[0] == "holders":
        print(json.dumps(processes.holders()))
        return 0
    _touch()
    try:
        answer = COMMANDS[words[0]](**json.loads(sys.stdin.read() or "{}"))
    except Refusal as refusal:
        sys.stderr.write(f"{refusal}\n")
        return REFUSED
    if answer is not None:
        print(json.dumps(answer))
    return 0


def check() -> dict[str, Any]:
    """Whether a job may have the TPU: jobs that run, processes that hold it (None: not to be known), libtpu's lock.

    libtpu leaves its lock file behind when it is killed, and does not start while it is there. It is removed only if
    nobody holds it or a device.
    """
    running = [job.name for job in jobs.of(HOME) if job.state == "running"]
    held = _holders()
    lock = "none"
    if os.path.exists(processes.LOCK):
        lock = "unknown" if held is None else "held" if held else _removed(processes.LOCK)
    return {"running": running, "holders": held, "lock": lock}


def start(
    name: str, id: str, commands: list[list[str]], folder: str, environment: dict[str, str], image: str,
    secrets: dict[str, str],
) -> dict[str, Any]:  # fmt: skip
    """Begin a job that runs commands one after the other, until one fails; once only, however often it is asked for.

    Args:
        id: of this very start; another of the same name is refused.
        folder: where it runs, in the home folder; made if it is not there.
        image: of the container that the commands run in; "": of none.
        secrets: what they are called, by variable.
    """
    job, here = Job(HOME, name), os.path.join(HOME, folder)
    asked = {
        "name": name, "id": id, "commands": commands, "folder": here, "environment": environment, "image": image,
        "secrets": secrets,
    }  # fmt: skip
    try:
        os.makedirs(here, exist_ok=True)
        os.makedirs(job.path)
    except FileExistsError:
        if job.asked.get("id", id) != id:
            raise Refusal(f"there is a job {name!r} already") from None
        return _begun(job)
    except OSError as error:
        raise Refusal(f"cannot make the job's folder: {error.strerror}") from error
    try:
        job.write(ROOM, "000")
        open(job.log, "wb").close()
        job.write("job.json", json.dumps(asked))
    except OSError as error:
        shutil.rmtree(job.path, ignore_errors=True)
        raise Refusal(f"cannot write the job's folder: {error.strerror}") from error
    _launch(job)
    return job.told()


def _launch(job: Job) -> None:
    """Start a job's process, and wait until it has written down who it is."""
    environment = {key: text for key, text in os.environ.items() if key not in SESSION}
    environment["TAETPU_JOB"] = job.name  # it counts as the job from its beginning on
    with open(os.path.join(job.path, "supervisor"), "w+", errors="replace") as said:
        supervisor = subprocess.Popen(
            jobs.python("supervisor", job.name), start_new_session=True, env=environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said,
        )  # fmt: skip
        while not job.read("pid"):
            if supervisor.poll() is not None:
                said.seek(0)
                raise Refusal(f"the job did not begin: {said.read().strip()[-300:]}")
            time.sleep(0.01)


def _begun(job: Job) -> dict[str, Any]:
    """A job that the same request has begun before, or is beginning at the moment."""
    end = time.monotonic() + BEGINS
    while not job.read("pid"):
        if time.monotonic() > end:
            raise Refusal("the job did not begin")
        time.sleep(0.01)
    return job.told()


def status() -> dict[str, Any]:
    """Jobs, chips and who holds them, what libtpu tells of them (None where it tells nothing), free bytes, and the last
    that the guard said.
    """
    free = os.statvfs(OWN)
    return {
        "jobs": told(),
        "chips": processes.chips(),
        "holders": _holders(),
        "usage": _usage(),
        "free": free.f_bavail * free.f_frsize,
        "guard": _last_line(os.path.join(processes.ROOT or "/var/lib/taetpu", "guard.log")),
    }


def told() -> list[dict[str, Any]]:
    """All that is known of the jobs, from the oldest on."""
    return [job.told() for job in jobs.of(HOME)]


def tail(name: str, offset: int, follow: bool) -> None:
    """A job's log from a byte on, to the standard output; with `follow` until the job has ended."""
    job = _found(name)
    with open(job.log, "rb") as log:
        size = os.fstat(log.fileno()).st_size
        if offset > size:
            raise Refusal(f"the log of {name!r} has {size} bytes, fewer than were read of it: it is another one")
        log.seek(offset)
        while True:
            running = job.state == "running"  # asked before reading: what it writes last is read, too
            while True:
                data = log.read(1 << 16)
                if not data:
                    break
                sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            if not (follow and running):
                return
            time.sleep(0.2)


def stop(name: str, grace: float) -> dict[str, Any]:
    """End a job: SIGTERM to all its processes, so that it can write a checkpoint, and SIGKILL after so many seconds."""
    job = _found(name)
    job.signal(signal.SIGTERM)
    end = time.monotonic() + grace
    while job.members() and time.monotonic() < end:
        time.sleep(0.05)
    while job.members():
        job.signal(signal.SIGKILL)
        time.sleep(0.05)
    job.reclaim()
    if job.rc is None:
        job.write("rc", str(128 + signal.SIGKILL))
    return job.told()


def cancel(name: str, id: str) -> None:
    """See to it that a start does not run: what it has begun is ended, and if it is only on its way here yet, as on a
    host that hung, it finds its place taken.
    """
    job = Job(HOME, name)
    try:
        os.makedirs(job.path)
    except FileExistsError:
        with suppress(Refusal):
            _begun(job)
        if job.asked.get("id") == id:
            stop(name, 0.0)


def clean(names: list[str], dry_run: bool) -> list[str]:
    """Remove the folders of jobs that have ended; of all that have if none is named. Their names."""
    chosen = [_found(name) for name in names]
    for job in chosen:
        if job.members():
            raise Refusal(f"the job {job.name!r} is running")
    gone = chosen or [job for job in jobs.of(HOME) if not job.members()]
    for job in () if dry_run else gone:
        shutil.rmtree(job.path)
    return [job.name for job in gone]


def write(path: str, text: str) -> None:
    """A file of ours in the home folder."""
    whole = os.path.join(OWN, path)
    with open(f"{whole}.new", "w") as file:
        file.write(text)
    os.replace(f"{whole}.new", whole)


COMMANDS = {
    "check": check, "start": start, "status": status, "jobs": told, "tail": tail, "stop": stop, "cancel": cancel,
    "clean": clean, "write": write,
}  # fmt: skip


def _found(name: str) -> Job:
    job = Job(HOME, name)
    if not job.asked:
        known = ", ".join(one.name for one in jobs.of(HOME)[-5:]) or "none"
        raise Refusal(f"there is no job {name!r}; the newest: {known}")
    return job


def _holders() -> list[Any] | None:
    """Who holds the TPU; None where nothing can be told of some processes."""
    try:
        if processes.ROOT or not jobs.as_root():
            return processes.holders()
        asked = [*jobs.as_root(), *jobs.python("agent", "holders")]
        return json.loads(subprocess.run(asked, capture_output=True, check=True).stdout)
    except (OSError, subprocess.CalledProcessError, ValueError):
        return None


def _removed(path: str) -> str:
    try:
        os.unlink(path)
    except OSError:
        done = subprocess.run([*jobs.as_root(), "rm", "-f", "--", path], capture_output=True, check=False)
        return "unknown" if done.returncode else "removed"
    return "removed"


USAGE = """
import json
from tpu_info import device, metrics
kind, count = device.get_local_chips()
print(json.dumps([one._asdict() for one in metrics.get_chip_usage(kind)] if kind else None))
"""


def _usage() -> list[dict[str, Any]] | None:
    """Memory and duty cycle of each device by libtpu's own metrics, which a program that runs serves; None where
    `tpu-info` is not installed, or nothing runs. Known from the source of tpu-info alone; never seen on a TPU.
    """
    if not processes.chips():
        return None
    try:
        python = os.path.join(OWN, "venv", "bin", "python")
        done = subprocess.run([python, "-c", USAGE], capture_output=True, check=True, timeout=20)
        return json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _last_line(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return (file.read().strip().splitlines() or [""])[-1]
    except OSError:
        return ""


def _touch() -> None:
    """Somebody was here: the guard looks at this."""
    try:
        os.makedirs(OWN, exist_ok=True)
        with open(os.path.join(OWN, "asked"), "w") as file:
            file.write(f"{time.time():.0f}\n")
    except OSError:  # a full disk
        pass
