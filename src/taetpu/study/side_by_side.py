"""Training packs side by side: in worker processes on separate cores, or in threads on separate accelerators.

The driver holds the study's claim, starts the packs, longest first, and reports their events. Workers hold the claims
of their packs, so that a pack of a driver that was killed is not trained twice. Results depend on the plan of a pack
alone, not on what trains beside it.
"""

import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib import import_module

import jax

from taetpu.core.config import iter_components
from taetpu.core.plugins import loaded_files
from taetpu.core.signals import record_signal
from taetpu.spec.resolved_study import RunSpec, Sources
from taetpu.study.device_threads import DeviceThreads
from taetpu.study.outcome import Failure
from taetpu.study.pack_store import PackStore
from taetpu.study.pack_training import run_steps, stored_sample
from taetpu.study.pack_worker import Ended, Event, Setup, with_runs
from taetpu.study.workers import Workers
from taetpu.train.beside import core_seconds, layouts_beside, may_share, packs_at_once
from taetpu.train.callbacks import Callback
from taetpu.train.layout import Packing, Workload, group_runs
from taetpu.train.pack_plan import Pack
from taetpu.train.reload_check import NotReproduced

AFTER_TRAINING = "scipy.stats", "taetpu.report.build"
"""Modules of the analysis and the report, which take a second to import."""
IDLE = "idle"
"""The name under which the study's folder has the time that workers waited while others trained the last packs."""


def in_threads() -> bool:
    """Return whether packs side by side train in threads of this process, which are for accelerators."""
    return jax.default_backend() != "cpu"


def fits_beside(queue: Sequence[Pack]) -> bool:
    """Return whether at least two of the packs can be trained at once, in processes that know all of their kinds."""
    kinds = [type(component) for pack in queue for component in iter_components(pack.config)]
    known = in_threads() or all(kind.plugin or kind.is_built_in() for kind in kinds)
    narrowest = sorted(pack.plan.layout.devices for pack in queue)[:2]
    return known and packs_at_once(narrowest) > 1


def expected_workers(runs: Sequence[RunSpec], sources: Sources, packing: Packing) -> int:
    """Return how many workers on one device each will train the runs, before their packs are planned; 0 if unknown."""
    works = [Workload(group, sources.prepare(group.runs[0].config), "float32") for group in group_runs(runs)]
    if len(works) < 2 or not may_share(works):
        return 0
    choose = layouts_beside(works, packing)
    return min(jax.device_count(), len(works)) if all(choose(work)[0].devices == 1 for work in works) else 0


def train_beside(
    packs: PackStore, sources: Sources, callback: Callback, queue: Sequence[Pack], workers: Workers | DeviceThreads
) -> list[Failure]:
    """Train packs, as many at once as have devices of their own. A pack that runs out of memory is halved.

    Args:
        packs: the stored packs. The caller holds the study's claim.
        sources: the tasks of the study.
        callback: receives the events. `on_switch` names the pack before events of another pack.
        queue: the packs to train.
        workers: trains the packs, and is closed afterwards.

    Raises:
        UserError: if a worker raises it. The other workers store what they have measured and end.
    """
    folder = packs.folder
    if isinstance(workers, Workers):
        root = folder.where.removesuffix(f"/{folder.name}")
        sample = stored_sample(folder)
        workers.begin(Setup(root, folder.name, sources.unread(), loaded_files(), sample, tuple(sys.path)))
    callback.on_train_begin(sum(run_steps(run, sources) for pack in queue for run in pack.runs))

    def seconds(pack: Pack) -> float:
        work = pack.plan.work(pack.runs, sources.prepare(pack.config))
        return core_seconds(work) * pack.plan.width / pack.plan.layout.devices

    left = sorted(queue, key=seconds, reverse=True)
    events, failed = Switch(callback), list[Failure]()
    number, total, prepared = 0, len(left), False
    with closing(workers), record_signal(signal.SIGTERM) as ending:
        try:
            while left or workers.busy:
                while left and workers.start(left[0]):
                    number, pack = number + 1, left.pop(0)
                    events.begin(number, total, pack)
                if not prepared and not left and len(workers.busy) < len(workers.all):
                    prepared = True
                    _prepare_report()
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


def _prepare_report() -> None:
    """Do what the report needs and no run decides, while a core is idle: imports, and the scripts of its charts.

    Each takes a second, the scripts only once on a machine, and while vl-convert bundles them, threads of this process
    stand still. If something fails, it fails again in the report, after the packs are trained.
    """
    for module in AFTER_TRAINING:
        with suppress(ImportError):
            import_module(module)
    if in_threads():
        return
    with suppress(Exception):
        import_module("taetpu.report.chart_files").vega_bundle()


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
