"""Training packs side by side on a CPU: each in a worker process with cores of its own.

The driver holds the study's claim, starts the packs, longest first, and reports their events. Workers hold the claims
of their packs, so that a pack of a driver that was killed is not trained twice. Results depend on the plan of a pack
alone, not on what trains beside it.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path

import jax

from taetpu.core.config import iter_components
from taetpu.core.errors import Failed
from taetpu.core.plugins import loaded_files
from taetpu.core.signals import record_signal
from taetpu.spec.resolved_study import Sources
from taetpu.study.outcome import Failure
from taetpu.study.pack_store import PackStore
from taetpu.study.pack_training import run_steps, stored_sample
from taetpu.study.pack_worker import Ended, Event, Setup, with_runs
from taetpu.train.beside import core_seconds, packs_at_once
from taetpu.train.callbacks import Callback
from taetpu.train.pack_plan import Pack
from taetpu.train.reload_check import NotReproduced

POLL_SECONDS = 0.5
GRACE_SECONDS = 20.0
"""Seconds that interrupted workers have to store what they have measured. Then they are killed, which loses it."""
IDLE = "idle"
"""The name under which the study's folder has the time that workers waited while others trained the last packs."""
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


@dataclass
class Worker:
    """A process that trains packs on cores of its own, and the pack that it trains now.

    Attributes:
        idle_since: when the last pack ended, on the monotonic clock.
    """

    process: subprocess.Popen[bytes]
    pipe: Connection
    output: Path
    slots: frozenset[int]
    pack: Pack | None = None
    idle_since: float = 0.0

    @property
    def idle_seconds(self) -> float:
        """The seconds since the end of the last pack; 0 while a pack is trained."""
        return time.monotonic() - self.idle_since if self.pack is None and self.idle_since else 0.0

    def end_pack(self) -> None:
        """Note that the pack has ended."""
        self.pack, self.idle_since = None, time.monotonic()

    def died(self) -> WorkerDied:
        """Return the error of a process that ended."""
        status = self.process.wait()
        tail = self.output.read_text(errors="replace")[-TAIL:].strip()
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"
        return WorkerDied(f"the process of the pack ended with {how}" + (f":\n{tail}" if tail else ""))


@dataclass
class Workers:
    """The worker processes of a study. Each device of this process is a slot, and a worker occupies as many as it uses.

    Attributes:
        setup: what the workers need to know of the study.
        slots: the number of slots.
        outputs: a folder for what the workers print.
    """

    setup: Setup
    slots: int
    outputs: Path
    all: list[Worker] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)
    idle_seconds: float = 0.0
    """The seconds that idle workers waited until they trained another pack or ended."""

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
        with suppress(OSError):  # the worker has died, which its pipe tells
            worker.pipe.send((pack.id, time.monotonic()))
        return True

    def spawn(self, slots: frozenset[int]) -> Worker:
        """Start a worker with the given slots, which are cores if there is one for each slot."""
        ours, theirs = Pipe()
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        pinned = ",".join(str(cores[slot]) for slot in sorted(slots)) if len(cores) == self.slots else ""
        flags = DEVICES.sub("", os.environ.get("XLA_FLAGS", ""))
        flags = f"{flags} --xla_force_host_platform_device_count={len(slots)}".strip()
        descriptor, path = theirs.fileno(), self.outputs / str(next(self.numbers))
        with path.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", ENTRY, str(descriptor), str(os.getpid()), pinned],
                env=(ARENA if len(slots) == 1 else {}) | os.environ | {"XLA_FLAGS": flags}, pass_fds=(descriptor,),
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        theirs.close()
        worker = Worker(process, ours, path, slots)
        self.all.append(worker)
        with suppress(OSError):
            ours.send(self.setup)
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
        """End an idle or dead worker."""
        self.idle_seconds += worker.idle_seconds
        worker.pipe.close()
        worker.process.wait()
        self.all.remove(worker)

    def close(self) -> None:
        """End all workers. Those that train store what they have measured; see `GRACE_SECONDS`."""
        for worker in self.busy:
            worker.process.terminate()
        for worker in self.all:
            if worker.pack is None:
                worker.pipe.close()
        until = time.monotonic() + GRACE_SECONDS
        try:
            for worker in self.all:
                with suppress(subprocess.TimeoutExpired):
                    worker.process.wait(max(0.0, until - time.monotonic()))
        finally:  # also after a second Ctrl-C
            for worker in self.all:
                worker.process.kill()
                worker.process.wait()


def fits_beside(queue: Sequence[Pack]) -> bool:
    """Return whether at least two of the packs can be trained at once, in processes that know all of their kinds."""
    kinds = [type(component) for pack in queue for component in iter_components(pack.config)]
    known = all(kind.plugin or kind.__module__.startswith("taetpu.") for kind in kinds)
    narrowest = sorted(pack.plan.layout.devices for pack in queue)[:2]
    return known and packs_at_once(narrowest) > 1


def train_beside(packs: PackStore, sources: Sources, callback: Callback, queue: Sequence[Pack]) -> list[Failure]:
    """Train packs, as many at once as have devices of their own. A pack that runs out of memory is halved.

    Args:
        packs: the stored packs. The caller holds the study's claim.
        sources: the tasks of the study.
        callback: receives the events. `on_switch` names the pack before events of another pack.
        queue: the packs to train.

    Raises:
        UserError: if a worker raises it. The other workers store what they have measured and end.
    """
    folder = packs.folder
    root = folder.where.removesuffix(f"/{folder.name}")
    setup = Setup(root, folder.name, sources.unread(), loaded_files(), stored_sample(folder), tuple(sys.path))
    callback.on_train_begin(sum(run_steps(run, sources) for pack in queue for run in pack.runs))

    def seconds(pack: Pack) -> float:
        work = pack.plan.work(pack.runs, sources.prepare(pack.config))
        return core_seconds(work) * pack.plan.width / pack.plan.layout.devices

    left = sorted(queue, key=seconds, reverse=True)
    events, failed = Switch(callback), list[Failure]()
    number, total = 0, len(left)
    with (
        tempfile.TemporaryDirectory(prefix="taetpu-workers-") as outputs,
        closing(Workers(setup, jax.device_count(), Path(outputs))) as workers,
        record_signal(signal.SIGTERM) as ending,
    ):
        try:
            while left or workers.busy:
                while left and workers.start(left[0]):
                    number, pack = number + 1, left.pop(0)
                    events.begin(number, total, pack)
                for worker, message in workers.messages():
                    pack = worker.pack
                    assert pack is not None, "only busy workers are waited for"
                    if isinstance(message, Event):
                        events.forward(pack, message)
                        continue
                    worker.end_pack()
                    if halves := _ended(packs, pack, message, events, failed):
                        left, total = [*halves, *left], total + len(halves)
                if ending():
                    raise KeyboardInterrupt
        finally:
            folder.add_wait(IDLE, workers.idle_seconds + sum(worker.idle_seconds for worker in workers.all))
    return failed


def _ended(packs: PackStore, pack: Pack, ended: Ended, events: "Switch", failed: list[Failure]) -> list[Pack]:
    """Report the end of a pack. Return the packs that take its place if the memory did not suffice."""
    error, callback = ended.error, events.to(pack)
    if error is None:
        callback.on_pack_end(pack.runs)
        return []
    if ended.trace:
        error.__cause__ = RemoteTrace(ended.trace)
    if ended.ends_study:
        raise error
    if ended.out_of_memory and pack.plan.width > 1:
        halves = packs.halve(pack)
        callback.on_pack_split(pack.runs, [half.plan for half in halves], error)
        return halves
    bad = tuple(run for run in pack.runs if run.id in error.runs) if isinstance(error, NotReproduced) else pack.runs
    failed.append(Failure(bad, error))
    callback.on_pack_failed(bad, error)
    return []


class RemoteTrace(Exception):
    """The traceback of an error in a worker, shown above the error."""


@dataclass
class Switch:
    """Passes the events of several packs to one callback, which it tells of each change of pack."""

    callback: Callback
    current: Pack | None = None

    def begin(self, number: int, total: int, pack: Pack) -> None:
        """Report the start of a pack."""
        self.current = pack
        self.callback.on_pack_begin(number, total, pack.runs)

    def to(self, pack: Pack) -> Callback:
        """Return the callback for the events of a pack."""
        if pack is not self.current:
            self.current = pack
            self.callback.on_switch(pack.runs)
        return self.callback

    def forward(self, pack: Pack, event: Event) -> None:
        """Report an event of a pack."""
        method: Callable[..., None] = getattr(self.to(pack), event.name)
        method(*with_runs(event.arguments, pack.runs))
