"""A process that trains packs of a study, one after another, for the driver in `study.side_by_side`.

It is started as a script with the cores on which it may run, and reads and writes pickled messages on a pipe. It reads
configs from the study's folder and prepares the data itself. It ends when the driver closes the pipe or dies.
"""

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taetpu.core.jax_setup import collect_garbage_less_often, prepare_jax
from taetpu.programs.supervisor import SET_DEATH_SIGNAL, set_process_option

if TYPE_CHECKING:
    from taetpu.spec.eval_sample import Sample
    from taetpu.spec.resolved_study import RunKey, Sources
    from taetpu.store.study import StudyFolder
    from taetpu.study.pack_training import StudyTrainer
    from taetpu.train.pack_plan import Pack

EVENTS = (
    "on_resume", "on_steps", "on_usage", "on_evaluate", "on_stop", "on_sample", "on_save", "on_damage",
)  # fmt: skip
"""The events that a worker passes on to the driver. The driver itself reports the start and the end of packs."""


@dataclass(frozen=True)
class Setup:
    """What a worker needs to know of a study.

    Attributes:
        root: the folder or address of the store.
        name: the study's name.
        sources: the tasks of the study, not prepared yet.
        plugins: the study's plug-in files.
        sample: the sample of the validation split.
        imports: the driver's `sys.path`.
    """

    root: str
    name: str
    sources: "Sources"
    plugins: tuple[Path, ...]
    sample: "Sample"
    imports: tuple[str, ...]


@dataclass(frozen=True)
class Key:
    """A run, as it is named in a message."""

    key: "RunKey"


@dataclass(frozen=True)
class Event:
    """A training event: the name of a method of `Callback` with its arguments. Runs are replaced by their keys."""

    name: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Ended:
    """The end of a pack.

    Attributes:
        error: what stopped the training; None if the pack was trained, or if it had been before.
        trace: the traceback of the error as text.
        out_of_memory: whether the error means that the memory did not suffice.
        ends_study: whether the study must end, since the error was raised and not returned.
    """

    error: Exception | None = None
    trace: str = ""
    out_of_memory: bool = False
    ends_study: bool = False


def main() -> None:
    """Run on the given cores, read the setup and the IDs of packs, and train each pack."""
    driver, pinned = int(sys.argv[2]), sys.argv[3]
    if cores := [int(core) for core in pinned.split(",") if core]:
        os.sched_setaffinity(0, cores)
    set_process_option(SET_DEATH_SIGNAL, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the driver decides
    pipe = Connection(int(sys.argv[1]))
    threading.Thread(target=_end_with, args=(driver,), daemon=True).start()
    collect_garbage_less_often()
    prepare_jax(cpu=True)
    import_module("taetpu.study.pack_training")  # takes seconds, in which the driver checks the study
    with suppress(EOFError):  # the driver has no packs for this process
        setup = pipe.recv()
        sys.path[:] = setup.imports
        from taetpu.core.plugins import load_plugins

        load_plugins(setup.plugins)
        _train_packs(pipe, setup)


def _end_with(driver: int) -> None:
    """End this process soon after the driver's death, on systems that send no signal at it."""
    while os.getppid() == driver:
        threading.Event().wait(1)
    os._exit(1)


def _train_packs(pipe: Connection, setup: Setup) -> None:
    """Train the packs that the driver names. Raises `EOFError` when it closes the pipe."""
    from taetpu.store.backend import open_store
    from taetpu.store.study import StudyFolder
    from taetpu.study.pack_store import PackStore, stored_plans
    from taetpu.study.pack_training import StudyTrainer

    sent = threading.Lock()

    def send(message: Event | Ended) -> None:
        with sent:
            pipe.send(message)

    folder = StudyFolder(open_store(setup.root), setup.name)
    store = PackStore(folder)
    trainer = StudyTrainer(folder, setup.sources, forwarding(send), setup.sample, alone=False)
    while True:
        pack_id, assigned = pipe.recv()
        try:
            plan = next(plan for plan in stored_plans(folder) if plan.id == pack_id)
            ended = train_claimed(folder, trainer, store.load_pack(plan), assigned)
        except KeyboardInterrupt:  # after SIGTERM, when everything is stored
            return
        send(ended if ended.error is None else replace(ended, error=sendable(ended.error), trace=traced(ended.error)))


def train_claimed(folder: "StudyFolder", trainer: "StudyTrainer", pack: "Pack", assigned: float) -> Ended:
    """Train a pack under its claim. It was assigned at the time `assigned` of the monotonic clock."""
    from taetpu.train.memory import out_of_memory

    try:
        with folder.claim_pack(pack.id):
            waited = max(0.0, time.monotonic() - assigned)
            error, ends_study = trainer.train(pack, waited) if pack.unfinished else None, False
    except Exception as raised:
        error, ends_study = raised, True
    return Ended(error, out_of_memory=error is not None and out_of_memory(error), ends_study=ends_study)


def traced(error: Exception) -> str:
    """Return the traceback of an error as text."""
    return "".join(traceback.format_exception(error))


def sendable(error: Exception) -> Exception:
    """Return the error, or one with the same message if it cannot be pickled. A plug-in's error is explained."""
    import pickle

    from taetpu.core.errors import UserError
    from taetpu.core.plugins import explain_plugin_error

    if not isinstance(error, UserError) and (explained := explain_plugin_error(error)):
        return explained
    try:
        copy = pickle.loads(pickle.dumps(error))
        return copy if str(copy) == str(error) else RuntimeError(f"{type(error).__name__}: {error}")
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def forwarding(send: Callable[[Event], None]) -> Any:
    """Return a callback that sends the events in `EVENTS`."""
    from taetpu.train.callbacks import Callback

    def forward(name: str, *arguments: Any) -> None:
        send(Event(name, tuple(_as_keys(argument) for argument in arguments)))

    callback = Callback()
    for name in EVENTS:
        setattr(callback, name, partial(forward, name))
    return callback


def _as_keys(argument: Any) -> Any:
    from taetpu.train.pack_plan import Run

    if isinstance(argument, Run):
        return Key(argument.key)
    if isinstance(argument, list) and any(isinstance(value, Run) for value in argument):
        return [_as_keys(value) for value in argument]
    return argument


def with_runs(arguments: Iterable[Any], runs: Sequence[Any]) -> list[Any]:
    """Return the arguments of an event, with the given runs in place of their keys."""
    by_key = {run.key: run for run in runs}

    def replaced(argument: Any) -> Any:
        if isinstance(argument, Key):
            return by_key[argument.key]
        return [replaced(value) for value in argument] if isinstance(argument, list) else argument

    return [replaced(argument) for argument in arguments]
