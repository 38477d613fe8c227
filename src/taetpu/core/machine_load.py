"""How much other processes use the cores of this process, while it times something.

On Linux, the time for which the cores were busy (`/proc/stat`) is compared with the CPU time of this process.
Elsewhere, only the load average is known, which includes what this process did in the last minute.
"""

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")
BUSY = 0.05
"""Share of the cores that other processes use from which on the machine counts as busy."""
IDLE_FIELDS = (3, 4)
"""The places of idle time and of waiting for input and output in a line of `/proc/stat`. All others are busy, also the
time that a hypervisor gave to other machines."""
COUNTED = 8
"""Number of the fields that are counted. The time of guests, which follows, is included in that of users."""
PROBE_SECONDS = 0.5
"""Seconds of the observation before something is timed."""


def busy_seconds(stat: str, cores: set[int], ticks: int) -> float:
    """Return the seconds for which cores were busy since the machine started.

    Args:
        stat: the content of `/proc/stat`.
        cores: the numbers of the cores.
        ticks: the number of ticks per second.
    """
    total = 0
    for line in stat.splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdecimal() and int(name[3:]) in cores:
            total += sum(int(field) for i, field in enumerate(fields[:COUNTED]) if i not in IDLE_FIELDS)
    return total / ticks


class LoadMeter:
    """Observes which share of this process's cores other processes use."""

    def __init__(self) -> None:
        self.known = STAT.exists() and hasattr(os, "sched_getaffinity")
        self.cores = os.sched_getaffinity(0) if self.known else set(range(os.cpu_count() or 1))
        self.restart()

    def restart(self) -> None:
        """Begin an observation."""
        self.began = self._clocks()

    def others(self) -> float | None:
        """Return the share of the cores that other processes used since `restart`; None where it is not known."""
        if not self.known:
            return None
        passed, busy, ours = (now - then for now, then in zip(self._clocks(), self.began, strict=True))
        return max(0.0, busy - ours) / (passed * len(self.cores))

    def probe(self) -> float | None:
        """Return the share before anything is timed: observed while this process sleeps, or from the load average."""
        if self.known:
            self.restart()
            time.sleep(PROBE_SECONDS)
            return self.others()
        return os.getloadavg()[0] / len(self.cores) if hasattr(os, "getloadavg") else None

    def _clocks(self) -> tuple[float, float, float]:
        """Return the time, the time for which the cores were busy, and the CPU time of this process, in seconds."""
        if not self.known:
            return time.perf_counter(), 0.0, 0.0
        busy = busy_seconds(STAT.read_text(encoding="utf-8"), self.cores, os.sysconf("SC_CLK_TCK"))
        return time.perf_counter(), busy, time.process_time()
