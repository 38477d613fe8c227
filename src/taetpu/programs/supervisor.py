"""The process between this driver and a program: it starts the program, and stops all processes that descend from it.

`process.start_process` runs this file as a script, so it imports little. Its arguments are CONTROL STATUS DRIVER MEMORY
GRACE LINGER CPUS KEEP COMMAND... It keeps the descriptors KEEP open. On Linux, it adopts the orphans among its
descendants, so that processes which leave the program's group or session stay below it, and ends after the last of
them. Elsewhere, it knows the process group only.

It reads lines from the descriptor CONTROL: `stop SECONDS` sends SIGTERM to all processes, and SIGKILL after that time.
The end of CONTROL, or another parent than the process DRIVER, means that the driver has died; then SECONDS is GRACE.
It writes lines to the descriptor STATUS:

    started PID       the program runs
    failed ERRNO      it cannot be started
    ended STATUS STOPPED EXCEEDED PEAK SECONDS
                      it ended, with this status of `os.waitpid`; whether it was stopped before, or killed for exceeding
                      MEMORY; the memory of its largest process in KiB; its CPU time
    left NAME         this process was stopped after the program's end
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress

MEMORY_INTERVAL = 0.5
"""Seconds between measurements of memory."""
SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.02, 0.5
"""Seconds between lists of descendants while their end is awaited: those that are no children end without an event."""
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that the supervisor ignores: the driver sends requests, and its death ends CONTROL."""
GROUP_ONLY = not sys.platform.startswith("linux")
SET_DEATH_SIGNAL, SET_SUBREAPER = 1, 36
"""Options of prctl(2): `PR_SET_PDEATHSIG` and `PR_SET_CHILD_SUBREAPER`."""


def set_process_option(option: int, value: int) -> None:
    """Call prctl(2), if the system has it."""
    with suppress(ImportError, OSError, AttributeError):  # not Linux, or a Python without ctypes
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def list_descendants(root: int) -> list[int]:
    """Return the numbers of the processes below a process, without those that have ended. Linux only."""
    children: dict[int, list[int]] = {}
    ended = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except (OSError, ValueError):  # it has just ended
                continue
            children.setdefault(int(parent), []).append(int(name))
            if state in (b"Z", b"X"):
                ended.add(int(name))
    below, level = [], [root]
    while level:
        level = [child for parent in level for child in children.get(parent, ())]
        below += level
    return [number for number in below if number not in ended]


def name_process(number: int) -> str:
    """Return the command of a process, without its arguments."""
    try:
        with open(f"/proc/{number}/comm", "rb") as file:
            return file.read().decode(errors="replace").strip()
    except OSError:
        return str(number)


def measure_memory(numbers: list[int], limit: int) -> int:
    """Return the memory of processes in bytes.

    Resident pages are summed up first, which counts shared pages several times; if that is above the limit, the
    proportional share of each page is used, which takes longer to read.
    """
    resident = sum(_read_field(number, "status", b"VmRSS:") for number in numbers)
    if resident <= limit:
        return resident
    return sum(_read_field(number, "smaps_rollup", b"Pss:") for number in numbers)


def _read_field(number: int, file: str, field: bytes) -> int:
    try:
        with open(f"/proc/{number}/{file}", "rb") as opened:
            return next((int(line.split()[1]) * 1024 for line in opened if line.startswith(field)), 0)
    except (OSError, ValueError, IndexError):
        return 0


class Supervisor:
    """A program and what is known about its end.

    Args:
        control: the descriptor from which requests are read.
        status: the descriptor to which events are written.
        driver: the number of the process that started this one.
        memory: the most memory of all processes in bytes; 0 for no limit.
        grace: seconds between SIGTERM and SIGKILL after the death of the driver.
        linger: seconds for processes that remain after the end of the program.
    """

    def __init__(self, control: int, status: int, driver: int, memory: int, grace: float, linger: float):
        self.control, self.status, self.driver = control, status, driver
        self.memory, self.grace, self.linger = memory, grace, linger
        self.program = 0
        self.has_ended = False
        self.is_orphaned = False
        self.was_stopped = False
        self.exceeded_memory = False
        self.interval = SHORTEST_INTERVAL
        self.kill_at = float("inf")
        self.terminate_at = float("inf")
        self.requests = b""

    def report(self, *words: object) -> None:
        """Write an event."""
        try:
            os.write(self.status, " ".join(map(str, words)).encode() + b"\n")
        except OSError:  # the driver has died
            self.is_orphaned = True

    def start(self, command: list[str], cpus: set[int]) -> bool:
        """Start the program in a session of its own. Return whether that succeeded."""
        reading, writing = os.pipe()  # closed by a successful exec
        parent = os.getpid()
        self.program = os.fork()
        if self.program == 0:
            try:
                os.setsid()
                set_process_option(SET_DEATH_SIGNAL, signal.SIGKILL)
                if os.getppid() != parent:
                    os._exit(1)
                for number in (*IGNORED, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
                    signal.signal(number, signal.SIG_DFL)
                signal.set_wakeup_fd(-1)
                if cpus:
                    os.sched_setaffinity(0, cpus)
                os.execvp(command[0], command)
            except OSError as error:
                os.write(writing, str(error.errno).encode())
            finally:
                os._exit(127)
        os.close(writing)
        error = os.read(reading, 16)
        os.close(reading)
        self.report(*(("failed", error.decode()) if error else ("started", self.program)))
        return not error

    def run(self, wakeup: int) -> None:
        """Wait until the program and all its descendants have ended, and obey requests meanwhile."""
        poller = select.poll()
        for descriptor in (self.control, wakeup):
            poller.register(descriptor, select.POLLIN)
        while True:
            self.reap(wakeup)
            if self.is_orphaned or os.getppid() != self.driver:
                self.stop(self.grace)
            if self.memory or self.has_ended or self.kill_at < float("inf"):
                remaining = self.list_processes()
                if self.has_ended and not remaining:
                    return
                self.watch(remaining)
            ready = dict(poller.poll(1000 * self.choose_timeout()))
            if self.control in ready and not self.read_requests():
                poller.unregister(self.control)
                self.is_orphaned = True

    def list_processes(self) -> list[int]:
        """Return the numbers of the program and its descendants that have not ended."""
        if not GROUP_ONLY:
            return list_descendants(os.getpid())
        try:
            os.killpg(self.program, 0)
        except OSError:
            return []
        return [self.program]

    def choose_timeout(self) -> float:
        """Return the seconds until something has to be done without an event."""
        if self.has_ended or self.kill_at < float("inf"):
            self.interval = min(1.5 * self.interval, LONGEST_INTERVAL)
            now = time.monotonic()
            due = (end - now for end in (self.terminate_at, self.kill_at) if end > now)
            return min(self.interval, *due)
        return MEMORY_INTERVAL if self.memory else 1.0

    def read_requests(self) -> bool:
        """Obey requests. Return whether the driver still lives."""
        data = os.read(self.control, 4096)
        self.requests += data
        *lines, self.requests = self.requests.split(b"\n")
        for line in lines:
            self.stop(float(line.split()[1]))
        return bool(data)

    def stop(self, grace: float) -> None:
        """Send SIGTERM to all processes, and SIGKILL after `grace` seconds. Repeated, it can only shorten the time."""
        if not self.has_ended:
            self.was_stopped = True
        if self.kill_at == float("inf"):
            self.send(signal.SIGTERM, self.list_processes())
        self.kill_at = min(self.kill_at, time.monotonic() + grace)

    def watch(self, remaining: list[int]) -> None:
        """Stop processes whose time is over, or which use too much memory."""
        now = time.monotonic()
        if self.memory and not self.has_ended and measure_memory(remaining, self.memory) > self.memory:
            self.exceeded_memory = True
            self.kill_at = now
        if now >= self.terminate_at and not self.was_stopped:
            self.terminate_at = float("inf")
            for number in remaining:
                self.report("left", name_process(number))
            self.stop(min(self.linger, self.grace))
        if now >= self.kill_at:
            self.send(signal.SIGKILL, remaining)

    def send(self, number: int, processes: list[int]) -> None:
        """Send a signal to the program's group and to processes outside of it."""
        # At once to the group while the program has not ended: later, the group's number may be that of another.
        if GROUP_ONLY or not self.has_ended:
            with suppress(OSError):  # it has just ended
                os.killpg(self.program, number)
        for process in processes:
            with suppress(OSError):
                if self.has_ended or os.getpgid(process) != self.program:
                    os.kill(process, number)

    def reap(self, wakeup: int) -> None:
        """Collect the ended children: the program, and the orphans among its descendants."""
        with suppress(BlockingIOError):
            os.read(wakeup, 4096)
        while True:
            try:
                number, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if number == 0:
                return
            if number == self.program:
                self.has_ended = True
                self.terminate_at = time.monotonic() + self.linger
                memory = usage.ru_maxrss // (1024 if sys.platform == "darwin" else 1)
                seconds = usage.ru_utime + usage.ru_stime
                self.report("ended", status, int(self.was_stopped), int(self.exceeded_memory), memory, seconds)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def main(arguments: list[str]) -> int:
    """Run the command in the arguments, which the module's docstring names."""
    control, status, driver, memory = map(int, arguments[:4])
    for descriptor in (control, status, *_numbers(arguments[7])):  # the program gets none of them
        os.set_inheritable(descriptor, False)
    set_process_option(SET_SUBREAPER, 1)
    reading, writing = os.pipe()
    for descriptor in (reading, writing):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the driver's thread may block signals
    supervisor = Supervisor(control, status, driver, memory, float(arguments[4]), float(arguments[5]))
    started = supervisor.start(arguments[8:], set(_numbers(arguments[6])))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):  # the program's pipes, whose end the driver waits for
        os.dup2(nowhere, descriptor)
    if started:
        supervisor.run(reading)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
