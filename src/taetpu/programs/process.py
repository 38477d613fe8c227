"""Programs of the user: a command runs in a process group of its own, and its output passes through this process.

Standard output and standard error are two pipes: a progress bar never appears within a line with metrics, and a warning
after the last line of results is not taken for it. `output` stores both in one file.

Each program has a supervisor process (`supervisor`). On Linux, all processes that a program starts have ended when
`Process.wait` returns, also those that left its group, and they are stopped when this process dies, however it dies. If
the supervisor is killed too, the kernel still kills the program itself. Elsewhere, only its process group is stopped.
"""

import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from taetpu.core.errors import UserError
from taetpu.core.json_files import explain_unreadable
from taetpu.programs.output import OutputLog, Stream

POLL_INTERVAL = 1.0
"""Seconds between calls of `Listener.poll`."""
READ_SIZE = 2**18
"""The most bytes that are read from a pipe at once."""
FULL_PIPE = 2**20 // 2**12
"""The number of reads, of at least a page, that empty a pipe of the largest usual size."""
SUPERVISOR = Path(__file__).with_name("supervisor.py")
SHELL_SIGNAL = 128
"""A shell whose command is killed by a signal exits with this code plus the signal's number."""
UNLIMITED = 10**9
"""A time in seconds that no program reaches."""

Cause = Literal["exit", "signal", "memory", "time", "stopped"]


@dataclass(frozen=True)
class Limits:
    """The limits of a program.

    Attributes:
        seconds: The time after which it is stopped.
        memory: The memory of all its processes in bytes, above which they are killed. Linux only.
        output: The bytes of output that are stored, before compression: the first half and the last.
        grace: Seconds between SIGTERM and SIGKILL.
        linger: Seconds for processes that remain after the program's end, before they are stopped.
    """

    seconds: float | None = None
    memory: int | None = None
    output: int = 2**24
    grace: float = 30.0
    linger: float = 5.0


class Listener(Protocol):
    """Reads what a program reports. An exception of its methods stops the program."""

    def write(self, stream: Stream, data: bytes) -> None:
        """Take output as it arrives; it may begin and end within a line or a character."""

    def poll(self) -> None:
        """Read other sources. Called about each second, and once after the program's end."""


@dataclass(frozen=True)
class Ending:
    """How a program ended.

    Attributes:
        cause: `exit` or `signal` if it ended by itself; `memory` if it was killed for its memory; `time` if it was
            stopped at the time limit; `stopped` if it was stopped by `Process.stop`.
        code: Its exit code; None if a signal ended it.
        signal: The number of the signal that ended it, or None.
        seconds: The time that it ran.
        lines: The last 20 lines of its output, for a terminal.
        left: The names of processes that it left behind and that had to be stopped.
        output_bytes: The size of its output, stored or not.
        peak_memory: The memory of its largest process in bytes.
        cpu_seconds: The CPU time of the program and of the processes it waited for.
    """

    cause: Cause
    code: int | None
    signal: int | None
    seconds: float
    lines: tuple[str, ...]
    left: tuple[str, ...]
    output_bytes: int
    peak_memory: int
    cpu_seconds: float

    @property
    def succeeded(self) -> bool:
        """Whether the program ended by itself with exit code 0."""
        return self.cause == "exit" and self.code == 0

    def describe(self) -> str:
        """Return a phrase for messages, such as `exit code 1`."""
        if self.cause == "memory":
            return "killed for its memory"
        if self.cause in ("time", "stopped"):
            return "stopped at its time limit" if self.cause == "time" else "stopped"
        if self.signal is not None:
            return f"killed by {_name_signal(self.signal)}"
        assert self.code is not None
        named = _name_signal(self.code - SHELL_SIGNAL) if self.code > SHELL_SIGNAL else ""
        return f"exit code {self.code}" + (f" ({named} in a shell's command)" if named.startswith("SIG") else "")


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def start_process(
    command: Sequence[str],
    *,
    cwd: Path,
    output: Path,
    variables: Mapping[str, str | None] | None = None,
    cpus: Collection[int] | None = None,
    limits: Limits | None = None,
    keep: Sequence[int] = (),
) -> "Process":
    """Start a program. Its standard input is empty.

    Args:
        command: The program and its arguments; no shell reads them.
        cwd: The working folder.
        output: The file for its output, `<name>.log.gz`. An existing file is replaced.
        variables: Environment variables to add to those of this process; None removes one. Unless it is set,
            `PYTHONUNBUFFERED` is 1: Python would keep printed lines back until it has 8 KiB of them.
        cpus: The CPUs on which it may run; by default those of this process. Linux only.
        limits: The limits.
        keep: Descriptors that the supervisor keeps open until all processes of the program have ended.

    Raises:
        UserError: If the command cannot be run.
    """
    wanted = {"PYTHONUNBUFFERED": "1", **os.environ, **(variables or {})}
    environment = {name: value for name, value in wanted.items() if value is not None}
    check_command(command, cwd, environment)
    _check_cpus(cpus or ())
    limits = limits or Limits()
    return Process(command, cwd, OutputLog(output, limits.output), environment, cpus or (), limits, keep)


def check_command(command: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> None:
    """Raise `UserError` if a command cannot be run.

    Args:
        command: The program and its arguments.
        cwd: The working folder, where relative paths start.
        environment: Its environment variables, whose `PATH` is searched.
    """
    with explain_unreadable(cwd):
        if not cwd.is_dir():
            problem = f"this working folder {'is a file' if cwd.exists() else 'does not exist'}"
            raise UserError(problem, file=cwd, remedy="Use the path of a folder that exists.")
    if not command or not command[0]:
        raise UserError("the command is empty", remedy="Write the program and its arguments as a list.")
    for index, word in enumerate(command):
        if "\0" in word:
            problem = f"{word!r} contains a zero byte, which no argument can"
            raise UserError(problem, path=(index,), remedy="Remove the zero byte.")
    program = command[0]
    if "/" not in program:
        if shutil.which(program, path=environment.get("PATH", os.defpath)) is None:
            remedy = "Use its path, or add its folder to `PATH`. Aliases and commands of a shell are not found."
            if " " in program:
                remedy = f"Write each word as an item of the list: [{', '.join(program.split())}]."
            raise UserError(f"`PATH` has no program {program!r}", path=(0,), remedy=remedy)
        return
    file = cwd / program
    with explain_unreadable(file):
        if not file.is_file():
            remedy = f"Relative paths start in {cwd}."
            raise UserError(f"no such program: {program}", path=(0,), file=file, remedy=remedy)
        if not os.access(file, os.X_OK):
            remedy = f"Run `chmod +x {file}`, or write its interpreter before it, such as `python`."
            raise UserError(f"{program} is not executable", path=(0,), file=file, remedy=remedy)


def _join(numbers: Collection[int]) -> str:
    return ",".join(map(str, numbers))


def _check_cpus(cpus: Collection[int]) -> None:
    if not cpus:
        return
    if not hasattr(os, "sched_getaffinity"):
        raise UserError("this system cannot bind programs to CPUs", remedy="Use Linux, or leave the CPUs out.")
    known = os.sched_getaffinity(0)
    if unknown := sorted(set(cpus) - known):
        problem = f"this process may not use CPU {', '.join(map(str, unknown))}"
        raise UserError(problem, remedy=f"Use some of {', '.join(map(str, sorted(known)))}.")


class Process:
    """A program that runs; see `start_process`. At the end of a `with` block, it is stopped if it has not ended.

    Attributes:
        pid: The number of the process, and of its process group.
    """

    def __init__(
        self,
        command: Sequence[str],
        cwd: Path,
        log: OutputLog,
        environment: Mapping[str, str],
        cpus: Collection[int],
        limits: Limits,
        keep: Sequence[int] = (),
    ):
        self._log, self._limits, self._lock = log, limits, threading.RLock()
        self._events = b""
        self._ending: Ending | None = None
        self._reached_time_limit = False
        self._kills = count_memory_kills()
        control, self._control = os.pipe()
        self._status, status = os.pipe()
        (self._stdout, stdout), (self._stderr, stderr) = os.pipe(), os.pipe()
        numbers = (control, status, os.getpid(), limits.memory or 0, limits.grace, limits.linger)
        self._supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SUPERVISOR), *map(str, numbers), *map(_join, (cpus, keep)), *command],
            stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, cwd=cwd, env=environment,
            pass_fds=(control, status, *keep), start_new_session=True,
        )  # fmt: skip
        self._started = time.monotonic()
        for descriptor in (control, status, stdout, stderr):
            os.close(descriptor)
        self.pid = self._read_start(command)
        self._streams: dict[int, Stream] = {self._stdout: "stdout", self._stderr: "stderr"}
        self._poller = select.poll()
        for descriptor in (self._stdout, self._stderr, self._status):
            os.set_blocking(descriptor, False)
            self._poller.register(descriptor, select.POLLIN)
        with suppress(OSError, AttributeError):  # many pipes are open, or this is not Linux
            fcntl.fcntl(self._stdout, fcntl.F_SETPIPE_SZ, READ_SIZE)

    def _read_start(self, command: Sequence[str]) -> int:
        """Return the number of the started process."""
        while b"\n" not in self._events and (data := os.read(self._status, READ_SIZE)):
            self._events += data
        line, _, self._events = self._events.partition(b"\n")
        event, _, value = line.decode().partition(" ")
        if event == "started":
            return int(value)
        reason = os.read(self._stderr, READ_SIZE).decode(errors="replace").strip() or "it was killed"
        self._close()
        self._log.close()
        if event == "failed":
            remedy = "Check that it is a program. A script has its interpreter in its first line: `#!/bin/bash`."
            raise UserError(f"cannot run {command[0]}: {os.strerror(int(value))}", path=(0,), remedy=remedy)
        problem = f"the supervisor of {command[0]} did not start: {reason}"
        raise UserError(problem, remedy=f"Check that {sys.executable} works.")

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        if self._ending is not None:
            return
        self.stop()
        while self._ending is None:
            try:
                self.wait()
            except KeyboardInterrupt:
                self.stop(grace=0)

    def stop(self, grace: float | None = None) -> None:
        """Send SIGTERM to all processes of the program, and SIGKILL later. Return at once; any thread may call this.

        Args:
            grace: The seconds until SIGKILL; by default that of the limits. A further call can shorten it.
        """
        with self._lock, suppress(BrokenPipeError):
            if self._ending is None:
                os.write(self._control, f"stop {self._limits.grace if grace is None else grace}\n".encode())

    def wait(self, *listeners: Listener) -> Ending:
        """Pass on the output until the program and all its processes have ended. Return how it ended."""
        if self._ending is not None:
            return self._ending
        poll_at = 0.0
        while True:
            has_ended = self._read_events()
            # Of what escaped from the supervisor and holds a pipe, only what a pipe can contain is read.
            output = self._read_output(0.0, rounds=FULL_PIPE) if has_ended else self._read_output(self._until(poll_at))
            for stream, data in output:
                self._log.write(stream, data)
                for listener in listeners:
                    listener.write(stream, data)
            now = time.monotonic()
            if now - self._started >= (self._limits.seconds or UNLIMITED) and not self._reached_time_limit:
                self._reached_time_limit = True
                self.stop()
            if now >= poll_at or has_ended:
                poll_at = now + POLL_INTERVAL
                self._log.flush()
                for listener in listeners:
                    listener.poll()
            if has_ended:
                return self._finish()

    def _until(self, poll_at: float) -> float:
        """Return the seconds until something has to be done without output."""
        left = self._started + (self._limits.seconds or UNLIMITED) - time.monotonic()
        return max(0.0, min(poll_at - time.monotonic(), UNLIMITED if self._reached_time_limit else left))

    def _read_events(self) -> bool:
        """Read the supervisor's events. Return whether it has ended, and with it all processes of the program."""
        with suppress(BlockingIOError):
            while data := os.read(self._status, READ_SIZE):
                self._events += data
            return True
        return False

    def _read_output(self, seconds: float, rounds: int = 1) -> Iterator[tuple[Stream, bytes]]:
        """Yield output that arrives within some seconds; with several rounds, until no more arrives."""
        for _ in range(rounds):
            ready = self._poller.poll(1000 * seconds)
            for descriptor, _ in ready:
                if descriptor in self._streams:
                    if data := os.read(descriptor, READ_SIZE):
                        yield self._streams[descriptor], data
                    else:
                        self._poller.unregister(descriptor)
            if not ready:
                return

    def _finish(self) -> Ending:
        events = [line.partition(" ")[::2] for line in self._events.decode(errors="replace").splitlines()]
        left = tuple(value for event, value in events if event == "left")
        ended = next((value.split() for event, value in events if event == "ended"), None)
        if ended is None:  # the supervisor was killed, and with it the program
            with suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
            ended = [str(int(signal.SIGKILL)), "0", "0", "0", "0"]
        code = os.waitstatus_to_exitcode(int(ended[0]))
        lines = self._log.last_lines()
        with self._lock:
            self._close()
            self._ending = Ending(
                cause=self._find_cause(code, was_stopped=ended[1] == "1", exceeded_memory=ended[2] == "1"),
                code=code if code >= 0 else None,
                signal=-code if code < 0 else None,
                seconds=time.monotonic() - self._started,
                lines=lines,
                left=left,
                output_bytes=self._log.size,
                peak_memory=int(ended[3]) * 1024,
                cpu_seconds=float(ended[4]),
            )
        self._log.close()
        return self._ending

    def _find_cause(self, code: int, was_stopped: bool, exceeded_memory: bool) -> Cause:
        if exceeded_memory:
            return "memory"
        if was_stopped:
            return "time" if self._reached_time_limit else "stopped"
        if code in (-signal.SIGKILL, SHELL_SIGNAL + signal.SIGKILL) and count_memory_kills() > self._kills:
            return "memory"
        return "exit" if code >= 0 else "signal"

    def _close(self) -> None:
        for descriptor in (self._control, self._status, self._stdout, self._stderr):
            os.close(descriptor)
        self._supervisor.wait()


def count_memory_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory, in this control group and the machine.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html (`memory.events`); `oom_kill` in `/proc/vmstat`.
    """
    files = [Path("/proc/vmstat")]
    with suppress(OSError):
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        groups = [line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
        files += [Path("/sys/fs/cgroup") / group / "memory.events" for group in groups]
    kills = 0
    for file in files:
        with suppress(OSError, ValueError):
            for line in file.read_text(encoding="utf-8").splitlines():
                kills += int(line.split()[1]) if line.startswith("oom_kill ") else 0
    return kills
