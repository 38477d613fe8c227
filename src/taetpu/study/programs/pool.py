"""Running the programs of several runs at once: by default in a thread for each slot of this machine."""

import queue
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from taetpu.core.errors import Failed
from taetpu.core.signals import record_signal
from taetpu.programs.process import Process
from taetpu.spec.programs.study import ProgramRun, ProgramStudy
from taetpu.store.errors import ClaimHeld
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder
from taetpu.study.outcome import Failure
from taetpu.study.programs.attempt import FLUSH_SECONDS, Ended, Slot, run_attempt
from taetpu.study.programs.events import Events
from taetpu.study.programs.machine import machine_slots
from taetpu.study.programs.run_files import RunFiles

TICK = 0.2
"""Seconds between two checks for signals."""


class ProgramFailed(Failed):
    """A program ended without a result."""


Message = tuple[Any, ...]
"""What happened to a run: (`started`, run, slot, words, folder), (`ended`, run, `Ended`) or (`error`, run, error)."""


@dataclass
class Pool(ABC):
    """Runs programs, several at once.

    Attributes:
        study: the study.
        folder: its folder.
        events: receives what happens.
        at_once: the number of programs that run at once.
        tick: called every `FLUSH_SECONDS` seconds with the records of the runs that are running or ended since the
            last call.
        ending: set when no further program may start.
    """

    study: ProgramStudy
    folder: StudyFolder
    events: Events
    at_once: int = 1
    tick: Callable[[Sequence[RunFolder]], None] = lambda runs: None
    running: dict[str, ProgramRun] = field(default_factory=dict)
    recent: list[ProgramRun] = field(default_factory=list)
    ending: threading.Event = field(default_factory=threading.Event)
    held: set[str] = field(default_factory=set)

    @abstractmethod
    def begin(self, runs: Sequence[ProgramRun]) -> None:
        """Start the programs of runs, or let them start later."""

    @abstractmethod
    def is_busy(self) -> bool:
        """Return whether programs run, are left to start, or have messages."""

    @abstractmethod
    def receive(self) -> Iterator[Message]:
        """Yield new messages, after waiting for at most `TICK` seconds."""

    @abstractmethod
    def stop(self) -> None:
        """Stop all programs: with SIGTERM, and after their grace period with SIGKILL."""

    def run(self, runs: Sequence[ProgramRun]) -> list[Failure]:
        """Run the programs of runs. Return the runs that have no result, with the reason.

        `held` has the IDs of runs that other processes are running afterwards.

        Raises:
            UserError: If a program cannot be started.
            KeyboardInterrupt: After Ctrl-C or SIGTERM. The programs were stopped.
        """
        self.held.clear()
        self.begin(runs)
        failed, error, ticked = list[Failure](), None, time.monotonic()
        with record_signal(signal.SIGTERM) as terminated:
            try:
                while self.is_busy():
                    if terminated() and not self.ending.is_set():
                        raise KeyboardInterrupt
                    if time.monotonic() - ticked >= FLUSH_SECONDS:
                        runs = [*self.running.values(), *self.recent]
                        self.recent.clear()
                        self.tick([self.folder.run(run.arm, run.seed, run.id) for run in runs])
                        ticked = time.monotonic()
                    for message in self.receive():
                        error = self._handle(failed, *message) or error
            except KeyboardInterrupt:
                self.stop()
                raise
        if error is not None:
            raise error
        return failed

    def _handle(self, failed: list[Failure], kind: str, run: ProgramRun, *about: Any) -> BaseException | None:
        """Handle a message. Return the error that ends the study."""
        if kind == "started":
            self.running[run.id] = run
            self.events.on_start(run, *about)
            return None
        self.running.pop(run.id, None)
        self.recent.append(run)
        if kind == "error":
            return about[0]
        ended: Ended = about[0]
        if ended.outcome:
            self.events.on_end(run, ended)
        elif not ended.stopped:
            failed.append(Failure((run,), ProgramFailed(f"{run.title}: {ended.problem or ended.how}")))
            self.events.on_failed(run, ended)
        return None


@dataclass
class MachinePool(Pool):
    """Runs programs in slots of this machine, with a thread for each.

    Attributes:
        slots: the parts of the machine.
        todo: the runs whose programs have not started.
    """

    slots: Sequence[Slot] = ()
    todo: deque[ProgramRun] = field(default_factory=deque)
    threads: list[threading.Thread] = field(default_factory=list)
    processes: dict[str, Process] = field(default_factory=dict)
    messages: "queue.SimpleQueue[Message]" = field(default_factory=queue.SimpleQueue)

    def begin(self, runs: Sequence[ProgramRun]) -> None:
        """Start a thread for each slot."""
        self.todo = deque(runs)
        slots = self.slots[: len(runs)]
        self.threads = [threading.Thread(target=self._work, args=(slot,), daemon=True) for slot in slots]
        for thread in self.threads:
            thread.start()

    def is_busy(self) -> bool:
        """Return whether a thread runs, or has left a message."""
        return any(thread.is_alive() for thread in self.threads) or not self.messages.empty()

    def receive(self) -> Iterator[Message]:
        """Yield the next message of a thread."""
        with suppress(queue.Empty):
            yield self.messages.get(timeout=TICK)

    def _work(self, slot: Slot) -> None:
        """Run programs in a slot until none is left."""
        while not self.ending.is_set():
            try:
                run = self.todo.popleft()
            except IndexError:
                return
            try:
                self._attempt(run, slot)
            except ClaimHeld:
                self.held.add(run.id)
            except BaseException as error:
                self.ending.set()
                self.messages.put(("error", run, error))

    def _attempt(self, run: ProgramRun, slot: Slot) -> None:
        record = self.folder.run(run.arm, run.seed, run.id)
        with self.folder.claim_pack(run.id):
            if record.status() == "done":  # another process has finished it
                return
            files = RunFiles(self.folder, record)

            def started(process: Process, words: Sequence[str]) -> None:
                self.processes[run.id] = process
                if self.ending.is_set():
                    process.stop()
                self.messages.put(("started", run, slot, words, record.where))

            try:
                ended = run_attempt(self.study, run, files, slot, started)
            finally:
                self.processes.pop(run.id, None)
            self.messages.put(("ended", run, ended))

    def stop(self) -> None:
        """Stop all programs: with SIGTERM, and after their grace period, or a second Ctrl-C, with SIGKILL."""
        self.ending.set()
        grace: float | None = None
        while any(thread.is_alive() for thread in self.threads):
            try:
                for process in list(self.processes.values()):
                    process.stop(grace)
                for thread in self.threads:
                    thread.join(TICK)
            except KeyboardInterrupt:
                grace = 0


def machine_pool(study: ProgramStudy, folder: StudyFolder, runs: int, events: Events) -> Pool:
    """Return a pool of this machine for a number of runs. Raises `UserError` if it has not what a run needs."""
    slots = machine_slots(study.program.each, runs)
    return MachinePool(study, folder, events, len(slots), slots=slots)
