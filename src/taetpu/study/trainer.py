"""Training what is missing of a study, pack by pack."""

import math
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from taetpu.core.distributed import PeerFailed, Separated
from taetpu.core.errors import UserError
from taetpu.core.flags import flags
from taetpu.spec.evaluation import Sample
from taetpu.spec.resolved_study import RunSpec, Sources, Study
from taetpu.store.names import ClaimHeld
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder
from taetpu.study.forecast import forecast
from taetpu.study.pack_store import begun, halve, killed_for_memory, members, planned, unfinished
from taetpu.train.callbacks import Callback
from taetpu.train.evaluator import Evaluator
from taetpu.train.forecast import Forecast
from taetpu.train.layout import Group, Packing, Work
from taetpu.train.memory import out_of_memory
from taetpu.train.pack_plan import PackPlan
from taetpu.train.profile import OFF, Tracing
from taetpu.train.program_cache import ProgramCache
from taetpu.train.readback import NotReproduced
from taetpu.train.results import ResultWriter, environment
from taetpu.train.step_time import remember_step
from taetpu.train.trainer import PackTrainer


@dataclass(frozen=True)
class Failure:
    """A pack that raised."""

    runs: tuple[RunSpec, ...]
    error: Exception


class Crew(Protocol):
    """Who trains the packs of a study: this process, or several on one or more machines."""

    @property
    def tracks(self) -> bool:
        """Whether this process hands runs to the study's trackers while they train."""
        ...

    def claimed(self) -> AbstractContextManager[None]:
        """Hold the study's claim: whoever holds it plans packs, analyses and reports."""
        ...

    def train(self, study: Study, callback: Callback, packing: Packing, profile: int) -> list[Failure]:
        """Train every run of a study that has no result; called and left with the study's claim held."""
        ...


@dataclass(frozen=True)
class Alone:
    """This process trains all packs."""

    folder: StudyFolder
    tracks: bool = True

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Hold the study's claim.

        Raises:
            ClaimHeld: other processes train packs of the study.
        """
        with self.folder.claim():
            refuse_workers(self.folder)
            yield

    def train(self, study: Study, callback: Callback, packing: Packing, profile: int) -> list[Failure]:
        """See `Crew`."""
        queue = missing_packs(study, self.folder, callback, packing)
        return train_packs(study, self.folder, callback, queue, profile)


def missing_packs(study: Study, folder: StudyFolder, callback: Callback, packing: Packing) -> list[PackPlan]:
    """Plan every run that has no result; return the packs to train, those planned earlier first and as planned then.

    A pack is trained whole, also when the study no longer names some of its runs.
    """
    wanted = {run.id for run in study.runs()}
    queue = list[PackPlan]()
    for plan in planned(study, folder, packing):
        missing = unfinished(folder, plan)
        if not missing:
            folder.delete_pack(plan.id)  # an earlier process may have been killed just before it did this
        elif {run_id for _, _, run_id in missing} & wanted:
            queue.append(plan)
            if not plan.respects(packing):
                callback.on_plan_reused(plan)
    return queue


def train_packs(
    study: Study,
    folder: StudyFolder,
    callback: Callback,
    queue: Sequence[PackPlan],
    profile: int = 0,
    change_plan: Callable[[], AbstractContextManager[None]] | None = None,
    held: set[str] | None = None,
) -> list[Failure]:
    """Train packs one after another. One that needs more memory than there is is halved.

    Args:
        profile: steps of each pack that are traced.
        change_plan: claims the study, where this process does not hold it. Then other processes train packs too, so
            that only the pack itself is halved; otherwise those to come that share its program are as well.
        held: receives the IDs of packs that other processes train, which are skipped.

    Raises:
        ClaimHeld: another process trains a pack, and `held` is None.
    """
    wanted = {run.id: run for run in study.runs()}
    queue = list(queue)
    trainer = Packs(study.sources, folder, callback, wanted, stored_sample(folder), profile)
    callback.on_forecast(expectation(queue, trainer, folder))
    callback.on_train_begin(sum(run_steps(run, study.sources) for plan in queue for run in trainer.members(plan)))
    failed, number = [], 0
    while queue:
        number, plan, queue = number + 1, queue[0], queue[1:]
        runs = trainer.members(plan)
        try:
            with folder.claim_pack(plan.id):
                if not unfinished(folder, plan):  # another process was faster
                    continue
                callback.on_pack_begin(number, number + len(queue), runs)
                error = trainer.train(plan)
        except ClaimHeld as other:
            if held is None:
                problem = f"pack {plan.id} is trained by another process: {other.problem}"
                raise ClaimHeld(problem, file=other.file, remedy=other.remedy) from None
            held.add(plan.id)
            continue
        if error is not None and out_of_memory(error) and plan.width > 1:
            same = [other for other in queue if trainer.program_key(other) == trainer.program_key(plan)]
            alike = [] if change_plan else [other for other in same if is_free(folder, other)]
            with change_plan() if change_plan else nullcontext():
                halves = halve(folder, [plan, *alike])
            callback.on_pack_split(runs, halves, error)
            queue = [*halves, *(other for other in queue if other not in alike)]
        elif error is not None:
            runs = [run for run in runs if run.id in error.runs] if isinstance(error, NotReproduced) else runs
            failed.append(Failure(tuple(runs), error))
            callback.on_pack_failed(runs, error)
        else:
            callback.on_pack_end(runs)
    return failed


def refuse_workers(folder: StudyFolder) -> None:
    """Raise `ClaimHeld` where shards of a study are trained by other processes."""
    for pack in folder.claimed_packs():
        try:
            with folder.claim_pack(pack):
                pass
        except ClaimHeld as other:
            problem = f"another process trains pack {pack}: {other.problem}"
            remedy = "Wait for it or stop it; or train beside it with --shard I/N."
            raise ClaimHeld(problem, file=other.file, remedy=remedy) from None


def is_free(folder: StudyFolder, plan: PackPlan) -> bool:
    """Return whether no process trains a pack."""
    try:
        with folder.claim_pack(plan.id):
            return True
    except ClaimHeld:
        return False


@dataclass
class Packs:
    """Trains packs of a study. Packs of one structure and layout share a program; only the last is kept in memory."""

    sources: Sources
    folder: StudyFolder
    callback: Callback
    wanted: dict[str, RunSpec]
    sample: Sample
    profile: int = 0
    programs: ProgramCache = field(default_factory=ProgramCache)

    def members(self, plan: PackPlan) -> list[RunSpec]:
        return members(self.folder, plan, self.wanted)

    def train(self, plan: PackPlan) -> Exception | None:
        """Train a pack to its end; gives what it raised, since one pack's failure must not cost the others."""
        if plan.width > 1 and killed_for_memory(self.folder, plan):
            return MemoryError("the process that began this pack was killed for want of memory")
        runs, began = self.members(plan), time.monotonic()
        folders = [self.folder.run(*names) for names in plan.runs]
        profile = Tracing(self.folder, plan.id, self.profile) if self.profile else OFF
        try:
            self.note_flags(plan)
            with begun(self.folder, plan):
                program = self.programs.get(plan, runs[0].config, self.sources.prepare(runs[0].config))
                writer = ResultWriter(plan, program, runs, folders, self.folder.store, environment())
                evaluator = Evaluator(program, runs, self.sample)
                PackTrainer(plan, program, runs, self.folder, writer, evaluator, self.callback, profile).run()
        except (UserError, PeerFailed, Separated):
            raise
        except NotReproduced as error:
            return error
        except Exception as error:
            self.programs.clear()
            traceback.clear_frames(error.__traceback__)  # they hold the pack's arrays
            return error
        if isinstance(profile, Tracing):
            self.callback.on_profile(profile.where, profile.summary, profile.problem)
        self.folder.delete_pack(plan.id)
        record_time(self.folder, plan, time.monotonic() - began)
        self.remember_pace(plan, runs, folders[0])
        return None

    def remember_pace(self, plan: PackPlan, runs: Sequence[RunSpec], first: RunFolder) -> None:
        """Keep what a step of a pack took, for the time of later studies on this machine."""
        timed = first.times().get("step_seconds")
        if timed is not None and len(timed.value) and math.isfinite(timed.value[-1]):
            work = Work(Group(frozenset(plan.live), tuple(runs)), self.sources.prepare(runs[0].config), plan.precision,
                        plan.compute)  # fmt: skip
            remember_step(work, plan.layout, float(timed.value[-1]) * plan.width)

    def note_flags(self, plan: PackPlan) -> None:
        """Note what flags a pack is begun with; tell of one that was begun with others."""
        before, now = self.folder.read_pack_flags(plan.id), flags()
        if not self.folder.pack(plan.id).steps():
            self.folder.write_pack_flags(plan.id, now)
        elif before is not None and before != now:
            self.callback.on_xla_flags_changed(plan, before, now)

    def program_key(self, plan: PackPlan) -> str:
        """Equal for packs that share a program."""
        return plan.program_key(self.members(plan)[0].config)


def expectation(queue: Sequence[PackPlan], trainer: Packs, folder: StudyFolder) -> Forecast | None:
    """How long the packs of a queue will take; None where nothing is known of this device."""
    if not queue:
        return None
    packs = [(plan, trainer.members(plan), max(folder.pack(plan.id).steps(), default=0)) for plan in queue]
    return forecast(packs, trainer.sources, trainer.sample)


def stored_sample(folder: StudyFolder) -> Sample:
    """The sample of the validation split that a study was frozen with."""
    return Sample.from_data(folder.read_study()["evaluation"])


def run_steps(run: RunSpec, sources: Sources) -> int:
    """Optimizer steps of a run."""
    return run.config.train.total_steps(sources.prepare(run.config).num_windows)


def record_time(folder: StudyFolder, plan: PackPlan, seconds: float) -> None:
    """Note how long a pack took in this process, apart from the results."""
    folder.write_pack_time(plan.id, {"seconds": round(seconds, 3), "runs": len(plan.runs)})
