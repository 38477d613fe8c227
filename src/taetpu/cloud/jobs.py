"""Jobs on the hosts of a TPU: begun everywhere or nowhere, alive without a connection, read without losing a line.

What happens on a host is `vm.machine.agent`'s; this is the side of who asks.
"""

import json
import os
import secrets
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from taetpu.cloud.errors import CloudError, Conflict
from taetpu.cloud.ssh import Slice, together
from taetpu.cloud.ssh_errors import NO_CONNECTION, CommandFailed, Done, OtherKey, refusal
from taetpu.cloud.vm import AGENT, ANSWER

REFUSED = 3
"""The agent's exit code where it says why something cannot be done."""
PAUSE = 2.0
"""Seconds between two tries to reach a host again."""


class Busy(Conflict):
    """A host's TPU is in use."""


class NoJob(CommandFailed):
    """What was asked of a job cannot be done: there is none, it runs, its name is taken."""

    exit_code = 2


@dataclass(frozen=True)
class Asked:
    """A job to be begun.

    Attributes:
        commands: run one after the other until one fails, each with its own arguments.
        folder: where, in the home folder.
        environment: added to; `{job}` is the job's folder on the host.
        image: of the container that they run in; "": in the machine's virtual environment.
    """

    commands: Sequence[Sequence[str]]
    folder: str = "."
    environment: Mapping[str, str] = field(default_factory=dict)
    image: str = ""


def new_name() -> str:
    """A name that no other job has: the day, the time and some chance."""
    return f"{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def start(
    slice: Slice,
    asked: Asked,
    *,
    name: str = "",
    workers: Sequence[int] | None = None,
    beside: bool = False,
    answer: float = ANSWER,
) -> str:
    """Begin a job on all hosts, or some, side by side: on all of them or on none. Its name.

    Args:
        beside: although a job runs or the TPU is held, which is for jobs that do not use it.
        answer: seconds in which a host must answer.

    Raises:
        Unreachable: a host does not answer; nothing was begun, or what was is stopped.
        Busy: a host's TPU is in use.
        NoJob: the name is taken.
    """
    chosen = list(slice.all if workers is None else workers)
    if not beside:
        check(slice, chosen)
    name = name or new_name()
    request = {
        "name": name, "id": secrets.token_hex(8), "commands": [list(command) for command in asked.commands],
        "folder": asked.folder, "environment": dict(asked.environment), "image": asked.image,
    }  # fmt: skip
    ended = _asked(slice, "start", request, chosen, answer)
    lost = [done.worker for done in ended if not done.reached]
    if lost:  # whether it began there is not known; the same request begins it only once
        again = {done.worker: done for done in _asked(slice, "start", request, lost, answer)}
        ended = [again.get(done.worker, done) for done in ended]
    if not all(done.ok for done in ended):
        begun = [done.worker for done in ended if done.ok or not done.reached]
        _asked(slice, "stop", {"name": name, "grace": 0}, begun, answer)
        _told(ended, "start the job")
    return name


def check(slice: Slice, workers: Sequence[int] | None = None) -> None:
    """Make sure that a job may have the TPU of every host: each answers, no job runs, nobody holds a device. libtpu's
    lock is removed where it is left over.

    Raises:
        Unreachable: a host does not answer.
        Busy: by whom.
    """
    for worker, told in ask(slice, "check", {}, workers).items():
        place = slice.place(worker)
        if told["running"]:
            remedy = "`taetpu tpu stop` ends it; --beside starts another that does not use the TPU"
            raise Busy(f"{place} runs the job {told['running'][0]} already", remedy=remedy)
        if told["holders"]:
            pid, name, path = told["holders"][0]
            problem = f"the TPU of {place} is in use: process {pid} ({name}) holds {path}"
            remedy = f"`taetpu tpu ssh -- sudo kill {pid}` ends it; what stays busy needs `taetpu tpu down` and `up`"
            raise Busy(problem, remedy=remedy)
        if told["lock"] == "unknown":
            problem = f"libtpu's lock lies on {place}, and whether anybody holds the TPU cannot be told there"
            raise Busy(problem, remedy="look with `taetpu tpu ssh -- sudo lsof /tmp/libtpu_lockfile`")


def status(slice: Slice, workers: Sequence[int] | None = None) -> dict[int, dict[str, Any] | CloudError]:
    """What each host tells of itself (see the agent), or why it tells nothing."""
    found: dict[int, dict[str, Any] | CloudError] = {}
    for done in _asked(slice, "status", {}, slice.all if workers is None else workers):
        problem = refusal(done, "tell its state")
        found[done.worker] = problem or json.loads(done.out)
    return found


def job(slice: Slice, name: str, workers: Sequence[int] | None = None) -> dict[int, dict[str, Any]]:
    """A job on each host that has it: `state`, `rc`, `bytes` of log and more. With "" the newest.

    Raises:
        NoJob: no host has it.
        Unreachable: a host does not answer.
    """
    told = ask(slice, "status", {}, workers)
    everywhere = [one for host in told.values() for one in host["jobs"]]
    known = list(dict.fromkeys(one["name"] for one in sorted(everywhere, key=lambda one: one["began"] or 0.0)))
    name = name or (known[-1] if known else "")
    found = {worker: one for worker, host in told.items() for one in host["jobs"] if one["name"] == name}
    if not found:
        what = f"there is no job {name!r} on {slice.stack}" if name else f"{slice.stack} has had no job yet"
        raise NoJob(what, remedy=f"known: {', '.join(known[-5:])}" if known else "`taetpu tpu run` begins one")
    return found


def stop(slice: Slice, name: str, *, grace: float = 30.0, workers: Sequence[int] | None = None) -> dict[int, int]:
    """End a job wherever it is: SIGTERM, and SIGKILL after so many seconds. Its exit code on each host.

    Raises:
        NoJob: no host has it.
    """
    chosen = sorted(job(slice, name, workers))
    told = ask(slice, "stop", {"name": name, "grace": grace}, chosen, timeout=grace + ANSWER)
    return {worker: one["rc"] for worker, one in told.items()}


def clean(slice: Slice, names: Sequence[str] = (), workers: Sequence[int] | None = None) -> list[str]:
    """Remove the folders of jobs that have ended, of all or of some. Those that were removed on any host.

    Raises:
        NoJob: one runs, or is not there.
    """
    told = ask(slice, "clean", {"names": list(names)}, workers)
    return sorted({name for removed in told.values() for name in removed})


def logs(
    slice: Slice,
    name: str,
    write: Callable[[int, str], None],
    *,
    follow: bool = False,
    workers: Sequence[int] | None = None,
    patience: float = 600.0,
    read: dict[int, int] | None = None,
) -> None:
    """Hand every line of a job's logs to `write(worker, line)`, each once, in order; with `follow` until it has ended.

    A connection that breaks off is made again, and the log goes on at the byte where it did.

    Args:
        patience: seconds for which a host may be out of reach.
        read: bytes of each host's log that have been handed over before; kept up to date.

    Raises:
        Unreachable: one was for longer.
        NoJob: it is not there any more.
    """
    problems: list[CloudError] = []
    lock, read = threading.Lock(), {} if read is None else read

    def one(worker: int) -> None:
        def locked(line: str) -> None:
            with lock:
                write(worker, line)

        reader = _Reader(slice, worker, name, follow, patience, read.get(worker, 0))
        try:
            reader.read(locked)
        except CloudError as problem:
            problems.append(problem)
        finally:
            read[worker] = reader.offset - len(reader.rest)

    chosen = slice.all if workers is None else workers
    threads = [threading.Thread(target=one, args=(worker,), daemon=True) for worker in chosen]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():  # so that Ctrl-C is heard
            thread.join(0.2)
    if problems:
        raise problems[0]


class _Reader:
    """Reads the log of one host to its end, over as many connections as it takes."""

    def __init__(self, slice: Slice, worker: int, name: str, follow: bool, patience: float, offset: int = 0):
        self.slice, self.worker, self.name, self.follow, self.patience = slice, worker, name, follow, patience
        self.offset, self.rest = offset, b""
        self.heard = time.monotonic()

    def read(self, write: Callable[[str], None]) -> None:
        while (done := self._once(write)).rc == NO_CONNECTION:
            problem = refusal(done, "read the log")
            if isinstance(problem, OtherKey) or time.monotonic() - self.heard > self.patience:
                raise problem or AssertionError
            time.sleep(min(PAUSE, self.patience / 10))
        _told([done], "read the log")
        if self.rest:
            write(self.rest.decode(errors="replace"))
            self.rest = b""

    def _once(self, write: Callable[[str], None]) -> Done:
        """Read until the log or the connection ends."""
        request = json.dumps({"name": self.name, "offset": self.offset, "follow": self.follow})
        process = subprocess.Popen(
            [*self.slice.ssh(self.worker), _remote("tail")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
        )  # fmt: skip
        assert process.stdin
        assert process.stdout
        assert process.stderr
        with process:
            try:
                process.stdin.write(request.encode())
                process.stdin.close()
            except BrokenPipeError:
                pass
            while data := os.read(process.stdout.fileno(), 1 << 16):
                self.offset += len(data)
                self.heard = time.monotonic()
                *lines, self.rest = (self.rest + data).split(b"\n")
                for line in lines:
                    write(line.decode(errors="replace"))
            said = process.stderr.read().decode(errors="replace")
        return Done(self.worker, self.slice.place(self.worker), process.returncode, "", said)


def ask(
    slice: Slice, command: str, request: Mapping[str, Any], workers: Sequence[int] | None = None,
    timeout: float | None = ANSWER,
) -> dict[int, Any]:  # fmt: skip
    """What the agent of each host answers.

    Raises:
        CloudError: one does not, or refuses.
    """
    ended = _asked(slice, command, request, slice.all if workers is None else workers, timeout)
    return {done.worker: json.loads(done.out or "null") for done in _told(ended, f"answer `{command}`")}


def _asked(
    slice: Slice, command: str, request: Mapping[str, Any], workers: Sequence[int], timeout: float | None = ANSWER
) -> list[Done]:
    words = ["sh", "-c", AGENT, "agent", command]
    return slice.everywhere(words, input=json.dumps(request), timeout=timeout, workers=workers)


def _remote(command: str) -> str:
    return shlex.join(["sh", "-c", AGENT, "agent", command])


def _told(ended: Sequence[Done], doing: str) -> list[Done]:
    """As `together`; what an agent refuses is told in its own words."""
    for done in ended:
        if done.rc == REFUSED:
            if "No space left on device" in done.err:
                raise refusal(done, doing) or AssertionError
            raise NoJob(f"{done.place}: {done.err.strip()}")
    return together(ended, doing)
