"""Threads that train packs side by side, each on separate accelerators, or several on one (`packs_per_device`).

An accelerator computes while its thread waits, so that one interpreter suffices for several. Unlike processes, threads
share the accelerators that this process has opened.
"""

import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import jax

from taetpu.spec.resolved_study import Sources
from taetpu.store.study import StudyFolder
from taetpu.study.pack_training import StudyTrainer, stored_sample
from taetpu.study.pack_worker import Ended, Event, forwarding, train_claimed
from taetpu.study.workers import POLL_SECONDS, Place
from taetpu.train.beside import packs_per_device
from taetpu.train.device_capabilities import Device
from taetpu.train.pack_plan import Pack
from taetpu.train.program_cache import ProgramCache


@dataclass(eq=False)
class DeviceThread(Place):
    """Devices whose packs train in a thread, one after another."""

    devices: tuple[Device, ...]
    programs: ProgramCache
    thread: threading.Thread | None = None


@dataclass
class DeviceThreads:
    """The threads of a study. They are used as `study.workers.Workers` are.

    Attributes:
        folder: the study's folder.
        sources: the prepared tasks of the study.
    """

    folder: StudyFolder
    sources: Sources
    all: list[DeviceThread] = field(default_factory=list)
    events: "queue.SimpleQueue[tuple[DeviceThread, Event | Ended]]" = field(default_factory=queue.SimpleQueue)
    stopped: threading.Event = field(default_factory=threading.Event)
    idle_seconds: float = 0.0

    @property
    def busy(self) -> list[DeviceThread]:
        """The threads that train a pack."""
        return [each for each in self.all if each.pack is not None]

    def start(self, pack: Pack) -> bool:
        """Start a pack if enough devices are free. Devices that trained the last pack train the next, if they can."""
        needed, most = pack.plan.layout.devices, packs_per_device()
        load = Counter[Device]()
        # Packs on several devices share none, because their collectives could wait for each other.
        for each in self.busy:
            load.update(dict.fromkeys(each.devices, most if len(each.devices) > 1 else 1))
        room = most if needed > 1 else 1
        free = sorted((device for device in jax.devices() if load[device] + room <= most), key=load.__getitem__)
        if len(free) < needed:
            return False
        idle = [each for each in self.all if each.pack is None]
        fitting = (each for each in idle if len(each.devices) == needed)
        emptiest = (each for each in fitting if all(load[device] == load[free[0]] for device in each.devices))
        place = next(emptiest, None) or self.open(tuple(free[:needed]), idle)
        self.idle_seconds += place.idle_seconds
        place.pack = pack
        place.thread = threading.Thread(target=self._train, args=(place, pack, time.monotonic()), daemon=True)
        place.thread.start()
        return True

    def open(self, devices: tuple[Device, ...], idle: list[DeviceThread]) -> DeviceThread:
        """Return a thread on the given devices, which replaces the idle threads, so that their programs are freed."""
        for each in idle:
            self.idle_seconds += each.idle_seconds
            self.all.remove(each)
        self.all.append(place := DeviceThread(devices, ProgramCache(devices)))
        return place

    def _send(self, place: DeviceThread, message: Event | Ended) -> None:
        self.events.put((place, message))

    def _train(self, place: DeviceThread, pack: Pack, assigned: float) -> None:
        trainer = StudyTrainer(
            self.folder, self.sources, forwarding(partial(self._send, place)), stored_sample(self.folder), alone=False,
            programs=place.programs, ahead=False, stop=self.stopped.is_set,
        )  # fmt: skip
        with jax.default_device(place.devices[0]), suppress(KeyboardInterrupt):  # raised when everything is stored
            self._send(place, train_claimed(self.folder, trainer, pack, assigned))

    def messages(self) -> Iterator[tuple[DeviceThread, Event | Ended]]:
        """Wait up to `POLL_SECONDS` for messages, and yield them."""
        with suppress(queue.Empty):
            yield self.events.get(timeout=POLL_SECONDS)
            while True:
                yield self.events.get_nowait()

    def close(self) -> None:
        """End all threads. Those that train store what they have measured."""
        self.stopped.set()
        for each in self.busy:
            assert each.thread is not None, "a busy thread was started"
            each.thread.join()
