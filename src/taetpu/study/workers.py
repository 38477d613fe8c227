"""The worker processes of a study, which train packs side by side on the cores of a CPU.

They start while the driver still checks the study, because their imports take as long as a short pack's training.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing.connection import Connection, Pipe, wait
from typing import IO

import jax

from taetpu.core.errors import Failed
from taetpu.study.pack_worker import Ended, Event, Setup
from taetpu.train.pack_plan import Pack

POLL_SECONDS = 0.5
GRACE_SECONDS = 20.0
"""Seconds that interrupted workers have to store what they have measured. Then they are killed, which loses it."""
ENTRY = "from taetpu.study.pack_worker import main; main()"  # run with -m, its messages would be those of __main__
TAIL = 2000  # characters of a dead worker's output in a message
ARENA = {
    "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1", "MALLOC_TOP_PAD_": str(2**26),
}  # fmt: skip
"""Variables with which glibc keeps the memory that each dispatch frees, for workers whose computations have one thread:
at dim 128 and 256, their steps take a tenth to a sixth less time, and no more memory (docs/log.md)."""
DEVICES = re.compile(r"--xla_force_host_platform_device_count=\d+")


class WorkerDied(Failed):
    """The process that trained a pack ended without a result. The message contains the end of its output."""


@dataclass(eq=False)
class Place:
    """What trains one pack after another.

    Attributes:
        pack: the pack that is trained now, if any.
        idle_since: when the last pack ended, on the monotonic clock.
    """

    pack: Pack | None = field(default=None, kw_only=True)
    idle_since: float = field(default=0.0, kw_only=True)

    @property
    def idle_seconds(self) -> float:
        """The seconds since the end of the last pack; 0 while a pack is trained."""
        return time.monotonic() - self.idle_since if self.pack is None and self.idle_since else 0.0

    def end_pack(self) -> None:
        """Note that the pack has ended."""
        self.pack, self.idle_since = None, time.monotonic()


@dataclass(eq=False)
class Worker(Place):
    """A process that trains packs on some of the cores.

    Attributes:
        output: what the process prints.
    """

    process: subprocess.Popen[bytes]
    pipe: Connection
    output: IO[bytes]
    slots: frozenset[int]

    def send(self, message: Setup | tuple[str, float]) -> None:
        """Send a message to the process. If the process has died, its pipe will tell."""
        with suppress(OSError):
            self.pipe.send(message)

    def died(self) -> WorkerDied:
        """Return the error of a process that ended."""
        status = self.process.wait()
        self.output.seek(0)
        tail = self.output.read().decode(errors="replace")[-TAIL:].strip()
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"
        return WorkerDied(f"the process of the pack ended with {how}" + (f":\n{tail}" if tail else ""))


@dataclass
class Workers:
    """The worker processes of a study. Each device of this process is a slot, and a worker occupies as many as it uses.

    Attributes:
        setup: what the workers need to know of the study; None until `begin`.
    """

    setup: Setup | None = None
    all: list[Worker] = field(default_factory=list)
    idle_seconds: float = 0.0
    """The seconds that idle workers waited until they trained another pack or ended."""

    @cached_property
    def slots(self) -> int:
        """The number of slots."""
        return jax.device_count()

    def reserve(self, workers: int) -> None:
        """Start workers on one slot each, which load their modules until they get packs."""
        for slot in range(workers):
            self.spawn(frozenset({slot}))

    def begin(self, setup: Setup) -> None:
        """Tell the workers, also those that start later, what they need to know of the study."""
        self.setup = setup
        for worker in self.all:
            worker.send(setup)

    @property
    def busy(self) -> list[Worker]:
        """The workers that train a pack."""
        return [worker for worker in self.all if worker.pack is not None]

    def start(self, pack: Pack) -> bool:
        """Start a pack if enough slots are free. Idle workers on another number of slots make room."""
        needed = pack.plan.layout.devices
        taken = frozenset[int]().union(*(worker.slots for worker in self.busy))
        if self.slots - len(taken) < needed:
            return False
        idle = [worker for worker in self.all if worker.pack is None]
        worker = next((worker for worker in idle if len(worker.slots) == needed), None)
        if worker is not None:
            self.idle_seconds += worker.idle_seconds
        else:
            for other in idle:
                self.end(other)
            free = sorted(set(range(self.slots)) - taken)
            worker = self.spawn(frozenset(free[:needed]))
        worker.pack = pack
        worker.send((pack.id, time.monotonic()))
        return True

    def spawn(self, slots: frozenset[int]) -> Worker:
        """Start a worker with the given slots, which are cores if there is one for each slot."""
        ours, theirs = Pipe()
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        pinned = ",".join(str(cores[slot]) for slot in sorted(slots)) if len(cores) == self.slots else ""
        flags = DEVICES.sub("", os.environ.get("XLA_FLAGS", ""))
        flags = f"{flags} --xla_force_host_platform_device_count={len(slots)}".strip()
        output, descriptor = tempfile.TemporaryFile(), theirs.fileno()  # noqa: SIM115 closed with the worker
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", ENTRY, str(descriptor), str(os.getpid()), pinned],
            env=(ARENA if len(slots) == 1 else {}) | os.environ | {"XLA_FLAGS": flags}, pass_fds=(descriptor,),
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
        theirs.close()
        worker = Worker(process, ours, output, slots)
        self.all.append(worker)
        if self.setup is not None:
            worker.send(self.setup)
        return worker

    def messages(self) -> Iterator[tuple[Worker, Event | Ended]]:
        """Wait up to `POLL_SECONDS` for messages, and yield them. The death of a worker is the end of its pack."""
        by_pipe = {worker.pipe: worker for worker in self.busy}
        for pipe in wait(list(by_pipe), POLL_SECONDS):
            worker = by_pipe[pipe]  # type: ignore[index]
            try:
                yield worker, worker.pipe.recv()
            except (EOFError, OSError):
                error = worker.died()
                self.end(worker)
                # The kernel kills the largest process where memory runs out.
                yield worker, Ended(error, out_of_memory=worker.process.returncode == -signal.SIGKILL)

    def end(self, worker: Worker) -> None:
        """End an idle or dead worker. Everything is stored, so it is killed rather than waited for."""
        self.idle_seconds += worker.idle_seconds
        worker.pipe.close()
        worker.process.kill()
        worker.process.wait()
        worker.output.close()
        self.all.remove(worker)

    def close(self) -> None:
        """End all workers. Those that train store what they have measured; see `GRACE_SECONDS`."""
        busy = self.busy
        for worker in busy:
            worker.process.terminate()
        until = time.monotonic() + GRACE_SECONDS
        try:
            for worker in busy:
                with suppress(subprocess.TimeoutExpired):
                    worker.process.wait(max(0.0, until - time.monotonic()))
        finally:  # also after a second Ctrl-C
            for worker in list(self.all):
                self.end(worker)
            self.setup, self.idle_seconds = None, 0.0
