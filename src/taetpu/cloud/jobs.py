"""Jobs on the hosts of a TPU: begun everywhere or nowhere, alive without a connection, read without losing a line.

What happens on a host is `vm.machine.agent`'s; this is the side of who asks.
"""

import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from taetpu.cloud.agents import ANSWER, REFUSED, NoJob, ask, send, told
from taetpu.cloud.errors import CloudError, Conflict
from taetpu.cloud.job_log import Reader
from taetpu.cloud.ssh import Slice
from taetpu.cloud.ssh_errors import refusal


class Running(Conflict):
    """Another job runs on a host: nobody's machine is taken from him for that."""


class Busy(Conflict):
    """A host's TPU is held by something that is no job of ours, or whether it is cannot be known."""


@dataclass(frozen=True)
class Asked:
    """A job to be begun.

    Attributes:
        commands: run one after the other until one fails, each with its own arguments.
        folder: where, in the home folder.
        environment: added to; `{job}` is the job's folder on the host, `{worker}` the host's number.
        image: of the container that they run in; "": in the machine's virtual environment.
        secrets: names of Secret Manager's secrets by the variable that each is given in; the host reads them itself.
    """

    commands: Sequence[Sequence[str]]
    folder: str = "."
    environment: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    secrets: Mapping[str, str] = field(default_factory=dict)


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
        Running: another job runs.
        Busy: a host's TPU is in use.
        NoJob: the name is taken.
    """
    chosen = list(slice.all if workers is None else workers)
    if not beside:
        check(slice, chosen)
    name = name or new_name()
    request = {
        "name": name, "id": secrets.token_hex(8), "commands": [list(command) for command in asked.commands],
        "folder": asked.folder, "image": asked.image, "secrets": dict(asked.secrets),
    }  # fmt: skip

    def own(worker: int) -> dict[str, Any]:
        environment = {key: text.replace("{worker}", str(worker)) for key, text in asked.environment.items()}
        return request | {"environment": environment}

    ended = send(slice, "start", own, chosen, answer)
    lost = [done.worker for done in ended if not done.reached]
    if lost:  # whether it began there is not known; the same request begins it only once
        again = {done.worker: done for done in send(slice, "start", own, lost, answer)}
        ended = [again.get(done.worker, done) for done in ended]
    if not all(done.ok for done in ended):
        begun = [done.worker for done in ended if done.rc != REFUSED]  # or may have, or may yet
        send(slice, "cancel", {"name": name, "id": request["id"]}, begun, answer)
        told(ended, "start the job")
    return name


def check(slice: Slice, workers: Sequence[int] | None = None) -> None:
    """Make sure that a job may have the TPU of every host: each answers, no job runs, nobody holds a device. libtpu's
    lock is removed where it is left over.

    Raises:
        Unreachable: a host does not answer.
        Running: another job runs.
        Busy: by whom.
    """
    for worker, found in ask(slice, "check", {}, workers).items():
        place = slice.place(worker)
        if found["running"]:
            name = found["running"][0]
            ends = f"`taetpu tpu stop {name} --tpu {slice.stack}` ends it"
            remedy = f"{ends}; --beside starts another that does not use the TPU"
            raise Running(f"{place} runs the job {name} already", remedy=remedy)
        if found["holders"]:
            pid, name, path = found["holders"][0]
            problem = f"the TPU of {place} is in use: process {pid} ({name}) holds {path}"
            remedy = f"`taetpu tpu ssh -- sudo kill {pid}` ends it; what stays busy needs `taetpu tpu down` and `up`"
            raise Busy(problem, remedy=remedy)
        if found["lock"] == "unknown":
            problem = f"libtpu's lock lies on {place}, and whether anybody holds the TPU cannot be told there"
            raise Busy(problem, remedy="look with `taetpu tpu ssh -- sudo lsof /tmp/libtpu_lockfile`")


def status(slice: Slice, workers: Sequence[int] | None = None) -> dict[int, dict[str, Any] | CloudError]:
    """What each host tells of itself (see the agent), or why it tells nothing."""
    found: dict[int, dict[str, Any] | CloudError] = {}
    for done in send(slice, "status", {}, slice.all if workers is None else workers):
        problem = refusal(done, "tell its state")
        found[done.worker] = problem or json.loads(done.out)
    return found


def running(slice: Slice, workers: Sequence[int] | None = None) -> list[str]:
    """Names of the jobs that run on any host, the newest last.

    Raises:
        Unreachable: a host does not answer.
    """
    return _by_age(ask(slice, "jobs", {}, workers), "running")


def below(slice: Slice, folder: str, workers: Sequence[int] | None = None) -> str:
    """A job that runs in a folder of the hosts' home folders, or below it; "" if none does.

    Raises:
        Unreachable: a host does not answer.
    """
    everywhere = [one for host in ask(slice, "jobs", {}, workers).values() for one in host]
    inside = [one for one in everywhere if PurePosixPath(one["folder"]).is_relative_to(folder)]
    return next((one["name"] for one in inside if one["state"] == "running"), "")


def job(slice: Slice, name: str, workers: Sequence[int] | None = None) -> dict[int, dict[str, Any]]:
    """A job on each host that has it: `state`, `rc`, `bytes` of log and more. With "" the newest.

    Raises:
        NoJob: no host has it.
        Unreachable: a host does not answer.
    """
    return _named(slice, name, ask(slice, "jobs", {}, workers))


def _named(slice: Slice, name: str, hosts: Mapping[int, list[dict[str, Any]]]) -> dict[int, dict[str, Any]]:
    """A job among those that hosts tell of; with "" the newest."""
    known = _by_age(hosts)
    name = name or (known[-1] if known else "")
    found = {worker: one for worker, host in hosts.items() for one in host if one["name"] == name}
    if not found:
        what = f"there is no job {name!r} on {slice.stack}" if name else f"{slice.stack} has had no job yet"
        raise NoJob(what, remedy=f"known: {', '.join(known[-5:])}" if known else "`taetpu tpu run` begins one")
    return found


def _by_age(hosts: Mapping[int, list[dict[str, Any]]], state: str = "") -> list[str]:
    """Names of jobs, or of those in a state, the newest last."""
    everywhere = [one for host in hosts.values() for one in host if state in ("", one["state"])]
    return list(dict.fromkeys(one["name"] for one in sorted(everywhere, key=lambda one: one["began"] or 0.0)))


def stop(
    slice: Slice, name: str, *, grace: float = 30.0, workers: Sequence[int] | None = None, dry_run: bool = False
) -> tuple[str, dict[int, int | None]]:
    """End a job wherever it is: SIGTERM, and SIGKILL after so many seconds. Its name, and its exit code on each host.

    With "" the newest that runs on any; where none does, its name is "". Hosts that do not answer keep none of the
    others from being asked.

    Args:
        dry_run: only say which it is; the code of one that runs is None.

    Raises:
        NoJob: no host has it.
        Unreachable: a host did not answer; the job has ended on the others.
    """
    asked = send(slice, "jobs", {}, slice.all if workers is None else workers)
    away = [problem for done in asked if (problem := refusal(done, "tell of its jobs"))]
    near = {done.worker: json.loads(done.out) for done in asked if done.ok}
    alive = _by_age(near, "running")
    if away and not (name in _by_age(near) if name else alive):
        raise away[0]
    if not name and not alive:
        return "", {}
    there = _named(slice, name or alive[-1], near)
    name = next(iter(there.values()))["name"]
    if dry_run:
        return name, {worker: one["rc"] for worker, one in there.items()}
    ended = ask(slice, "stop", {"name": name, "grace": grace}, sorted(there), timeout=grace + ANSWER)
    if away:
        away[0].problem += f"; {name} was ended wherever a host answered"
        raise away[0]
    return name, {worker: one["rc"] for worker, one in ended.items()}


def clean(
    slice: Slice, names: Sequence[str] = (), workers: Sequence[int] | None = None, *, dry_run: bool = False
) -> list[str]:
    """Remove the folders of jobs that have ended, of all or of some. Those that were, or would be, on any host.

    Raises:
        NoJob: one runs, or is not there.
    """
    removed = ask(slice, "clean", {"names": list(names), "dry_run": dry_run}, workers)
    return sorted({name for gone in removed.values() for name in gone})


def logs(
    slice: Slice,
    name: str,
    write: Callable[[int, str], None],
    *,
    follow: bool = False,
    workers: Sequence[int] | None = None,
    patience: float = 600.0,
    tell: Callable[[str], None] = lambda line: None,
    read: dict[int, int] | None = None,
) -> None:
    """Hand every line of a job's logs to `write(worker, line)`, each once, in order; with `follow` until it has ended.

    A connection that breaks off is made again, and the log goes on at the byte where it did.

    Args:
        patience: seconds for which a host may be out of reach.
        tell: is told when a connection is lost, and when one worker of several has failed.
        read: bytes of each host's log that have been handed over before; kept up to date.

    Raises:
        Unreachable: one was for longer.
        NoJob: it is not there any more.
    """
    chosen = list(slice.all if workers is None else workers)
    problems: list[CloudError] = []
    lock, read = threading.Lock(), {} if read is None else read

    def one(worker: int) -> None:
        def locked(line: str) -> None:
            with lock:
                write(worker, line)

        reader = Reader(slice, worker, name, follow, patience, tell, read.get(worker, 0))
        try:
            reader.read(locked)
            if follow and len(chosen) > 1 and (code := job(slice, name, [worker])[worker]["rc"]):
                tell(f"{slice.place(worker)} has ended with {code}; others may still run, or wait for it")
        except CloudError as problem:
            problems.append(problem)
        finally:
            read[worker] = reader.offset - len(reader.rest)

    threads = [threading.Thread(target=one, args=(worker,), daemon=True) for worker in chosen]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():  # so that Ctrl-C is heard
            thread.join(0.2)
    if problems:
        raise problems[0]
