"""Start, follow and end jobs on a machine's hosts, through `agent` on each host.

A job starts either on all chosen hosts or on none. After a lost connection, the job continues, and no line of the log
is lost.
"""

import json
import os
import secrets
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from taetpu.cloud.gcloud import CloudError
from taetpu.cloud.ssh import NO_CONNECTION, CommandResult, Hosts, Unreachable

ANSWER = 60.0
"""Seconds within which a host must answer a request."""
REFUSED = 4
BUSY = "Stop the job with `taetpu tpu stop`, or run a program that uses no TPU with `taetpu tpu ssh COMMAND`."
RECONNECT = 2.0
"""Seconds between attempts to reconnect to a log."""


class Refused(CloudError):
    """A host refused a job, because another job runs or a process holds the TPU."""


@dataclass(frozen=True)
class Request:
    """A job: commands that run one after another until one fails.

    Attributes:
        folder: working folder, relative to the home folder.
        environment: environment variables. In values, `{job}` is replaced by the job's folder and `{worker}` by the
            host's number.
        image: container image; "" for the machine's virtual environment.
        secrets: names of secrets in Secret Manager, by environment variable. The host reads the secrets.
    """

    commands: Sequence[Sequence[str]]
    folder: str = "."
    environment: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    secrets: Mapping[str, str] = field(default_factory=dict)


def new_name() -> str:
    """Return a name for a job: date, time and four random hexadecimal digits."""
    return f"{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def start(hosts: Hosts, request: Request, workers: Sequence[int] | None = None, name: str = "") -> str:
    """Start a job on all hosts or on none, and return the job's name.

    Raises:
        Unreachable: if a host does not answer. The job is then stopped on the hosts on which it started.
        Refused: if another job runs, or a process holds the TPU.
    """
    chosen = list(hosts.all if workers is None else workers)
    name = name or new_name()
    job = {
        "name": name, "id": secrets.token_hex(8), "commands": [list(words) for words in request.commands],
        "folder": request.folder, "image": request.image, "secrets": dict(request.secrets),
    }  # fmt: skip

    def request_for(worker: int) -> str:
        environment = {key: text.replace("{worker}", str(worker)) for key, text in request.environment.items()}
        return json.dumps(job | {"environment": environment})

    ended = _send(hosts, "start", request_for, chosen)
    if lost := [result.worker for result in ended if result.code in (None, NO_CONNECTION)]:
        repeated = _send(hosts, "start", request_for, lost)  # the same ID starts only once
        again = {result.worker: result for result in repeated}
        ended = [again.get(result.worker, result) for result in ended]
    if any(result.code != 0 for result in ended):
        started = [result.worker for result in ended if result.code != REFUSED]
        _send(hosts, "stop", lambda _: json.dumps({"name": name, "grace": 1.0}), started)
        _answers(hosts, ended, "start the job")
    return name


def state(hosts: Hosts, workers: Sequence[int] | None = None) -> dict[int, dict[str, Any]]:
    """Return the state of each host, by worker.

    Returns:
        For each worker, its `jobs` (oldest first), the number of `chips`, the processes that hold the TPU (`holders`),
        and the free space on its disk (`free_bytes`).

    Raises:
        Unreachable: if a host does not answer.
    """
    return _ask(hosts, "state", {}, workers)


def find(hosts: Hosts, name: str, workers: Sequence[int] | None = None) -> dict[int, dict[str, Any]]:
    """Return the descriptions of a job by worker. If `name` is "", use the newest job.

    Raises:
        CloudError: if no host has the job.
        Unreachable: if a host does not answer.
    """
    states = state(hosts, workers)
    names = list(dict.fromkeys(job["name"] for host in states.values() for job in host["jobs"]))
    name = name or (names[-1] if names else "")
    jobs = {worker: job for worker, host in states.items() for job in host["jobs"] if job["name"] == name}
    if not jobs:
        problem = f"{hosts.name} has no job {name!r}" if name else f"{hosts.name} has no jobs"
        remedy = (
            f"Use one of its jobs: {', '.join(names[-5:])}." if names else "Start one with `taetpu tpu run COMMAND`."
        )
        raise CloudError(problem, remedy=remedy)
    return jobs


def running(hosts: Hosts, workers: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """Return the running jobs of all hosts."""
    return [job for host in state(hosts, workers).values() for job in host["jobs"] if job["state"] == "running"]


def stop(hosts: Hosts, name: str, workers: Sequence[int] | None = None, *, grace: float = 30.0) -> dict[int, Any]:
    """End a job with SIGTERM, and with SIGKILL after `grace` seconds. Return the job's descriptions by worker.

    Raises:
        CloudError: if no host has the job.
        Unreachable: if a host does not answer.
    """
    jobs = find(hosts, name, workers)
    request = {"name": next(iter(jobs.values()))["name"], "grace": grace}
    return _ask(hosts, "stop", request, sorted(jobs), limit=grace + ANSWER)


def clean(hosts: Hosts, names: Sequence[str] = (), workers: Sequence[int] | None = None) -> list[str]:
    """Delete the folders of the given ended jobs (default: all ended jobs), and return the names of these jobs."""
    deleted = _ask(hosts, "clean", {"names": list(names)}, workers)
    return sorted({name for gone in deleted.values() for name in gone})


def follow(
    hosts: Hosts,
    name: str,
    write: Callable[[int, str], None],
    workers: Sequence[int] | None = None,
    *,
    to_end: bool = True,
    patience: float = 600.0,
    offsets: dict[int, int] | None = None,
) -> None:
    """Pass each line of a job's logs to `write(worker, line)` once.

    After a lost connection, reading continues at the same byte.

    Args:
        hosts: the machine's hosts.
        name: the job's name.
        write: called with each line.
        workers: numbers of the hosts to follow. Default: all hosts.
        to_end: whether to continue until the job ends.
        patience: seconds for which a host may be unreachable.
        offsets: number of bytes that were read earlier from each log, by worker; updated in place.

    Raises:
        Unreachable: if a host is unreachable for longer than `patience`.
    """
    chosen = list(hosts.all if workers is None else workers)
    offsets = {} if offsets is None else offsets
    lock, errors = threading.Lock(), list[CloudError]()

    def follow_worker(worker: int) -> None:
        def locked(line: str) -> None:
            with lock:
                write(worker, line)

        try:
            _follow_one(hosts, name, worker, locked, to_end, patience, offsets)
        except CloudError as error:
            errors.append(error)

    threads = [threading.Thread(target=follow_worker, args=(worker,), daemon=True) for worker in chosen]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():  # a join without a time limit would ignore Ctrl-C
            thread.join(0.2)
    if errors:
        raise errors[0]


def _follow_one(
    hosts: Hosts, name: str, worker: int, write: Callable[[str], None], to_end: bool, patience: float,
    offsets: dict[int, int],
) -> None:  # fmt: skip
    last_read = time.monotonic()
    while True:
        read = offsets.get(worker, 0)
        try:
            pid = find(hosts, name, [worker])[worker]["pid"] if to_end else None
            waiting = ["-f", f"--pid={pid}", "--sleep-interval=0.2"] if pid else []
            words = ["tail", "-c", f"+{read + 1}", *waiting, f".taetpu/jobs/{name}/log"]
            got, ended = _read_lines(hosts, worker, words, write)
            offsets[worker] = read + got
            if ended.code == 0 and not pid:
                return
            if ended.code == 0 or got:
                last_read = time.monotonic()
            if ended.code != 0:
                hosts.require_success([ended], "send its log")
        except Unreachable:
            if time.monotonic() - last_read > patience:
                raise
            time.sleep(min(RECONNECT, patience / 10))


def _read_lines(
    hosts: Hosts, worker: int, words: Sequence[str], write: Callable[[str], None]
) -> tuple[int, CommandResult]:
    """Run a command that prints a log. Return the number of bytes passed to `write`, and the command's result."""
    process = subprocess.Popen(
        [*hosts.ssh(worker), *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout
    assert process.stderr
    passed, rest = 0, b""
    with process:
        while data := os.read(process.stdout.fileno(), 1 << 16):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                write(line.decode(errors="replace"))
                passed += len(line) + 1
        err = process.stderr.read().decode(errors="replace")
    if rest and process.returncode == 0:
        write(rest.decode(errors="replace"))
        passed += len(rest)
    return passed, CommandResult(worker, process.returncode, "", err)


def _ask(
    hosts: Hosts, action: str, request: Mapping[str, Any], workers: Sequence[int] | None, limit: float = ANSWER
) -> dict[int, Any]:
    chosen = list(hosts.all if workers is None else workers)
    ended = _send(hosts, action, lambda _: json.dumps(request), chosen, limit)
    return dict(zip(chosen, _answers(hosts, ended, action), strict=True))


def _send(
    hosts: Hosts, action: str, stdin: Callable[[int], str], workers: Sequence[int], limit: float = ANSWER
) -> list[CommandResult]:
    return hosts.run_all(["python3", ".taetpu/agent.py", action], stdin=stdin, limit=limit, workers=workers)


def _answers(hosts: Hosts, ended: Sequence[CommandResult], action: str) -> list[Any]:
    for result in ended:
        if result.code == REFUSED:
            problem = f"{hosts.describe(result.worker)}: {result.err.strip()}"
            raise Refused(problem, remedy=BUSY)
    return [json.loads(out) for out in hosts.require_success(ended, action)]
