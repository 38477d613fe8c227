"""Running the programs of several runs at once: a thread for each slot of the machine, and events for this thread."""

import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
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
from taetpu.study.programs.run_files import RunFiles

TICK = 0.2
"""Seconds between two checks for signals."""


class ProgramFailed(Failed):
    """A program ended without a result."""


@dataclass
class Pool:
    """Runs programs in slots of this machine.

    Attributes:
        study: the study.
        folder: its folder.
        slots: the parts of the machine.
        events: receives what happens.
        tick: called every `FLUSH_SECONDS` seconds with the records of the runs that are running or ended since the
            last call.
    """

    study: ProgramStudy
    folder: StudyFolder
    slots: Sequence[Slot]
    events: Events
    tick: Callable[[Sequence[RunFolder]], None] = lambda runs: None
    todo: deque[ProgramRun] = field(default_factory=deque)
    running: dict[str, ProgramRun] = field(default_factory=dict)
    recent: list[ProgramRun] = field(default_factory=list)
    processes: dict[str, Process] = field(default_factory=dict)
    messages: "queue.SimpleQueue[tuple[Any, ...]]" = field(default_factory=queue.SimpleQueue)
    ending: threading.Event = field(default_factory=threading.Event)
    held: set[str] = field(default_factory=set)

    def run(self, runs: Sequence[ProgramRun]) -> list[Failure]:
        """Run the programs of runs. Return the runs that have no result, with the reason.

        `held` has the IDs of runs that other processes are running afterwards.

        Raises:
            UserError: If a program cannot be started.
            KeyboardInterrupt: After Ctrl-C or SIGTERM. The programs were stopped.
        """
        self.todo = deque(runs)
        self.held.clear()
        threads = [threading.Thread(target=self._work, args=(slot,), daemon=True) for slot in self.slots[: len(runs)]]
        for thread in threads:
            thread.start()
        failed, error, ticked = list[Failure](), None, time.monotonic()
        with record_signal(signal.SIGTERM) as terminated:
            try:
                while any(thread.is_alive() for thread in threads) or not self.messages.empty():
                    if terminated() and not self.ending.is_set():
                        raise KeyboardInterrupt
                    if time.monotonic() - ticked >= FLUSH_SECONDS:
                        runs = [*self.running.values(), *self.recent]
                        self.recent.clear()
                        self.tick([self.folder.run(run.arm, run.seed, run.id) for run in runs])
                        ticked = time.monotonic()
                    error = self._handle(failed) or error
            except KeyboardInterrupt:
                self._stop(threads)
                raise
        if error is not None:
            raise error
        return failed

    def _handle(self, failed: list[Failure]) -> BaseException | None:
        """Handle the next event of a thread. Return the error that ends the study."""
        try:
            kind, run, *about = self.messages.get(timeout=TICK)
        except queue.Empty:
            return None
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

    def _stop(self, threads: Sequence[threading.Thread]) -> None:
        """Stop all programs: with SIGTERM, and after their grace period, or a second Ctrl-C, with SIGKILL."""
        self.ending.set()
        grace: float | None = None
        while any(thread.is_alive() for thread in threads):
            try:
                for process in list(self.processes.values()):
                    process.stop(grace)
                for thread in threads:
                    thread.join(TICK)
            except KeyboardInterrupt:
                grace = 0
