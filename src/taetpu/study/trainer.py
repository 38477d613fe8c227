"""Training the packs of a study, one after another."""

import math
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from taetpu.core.errors import StudyFailed, UserError
from taetpu.core.flags import program_flags
from taetpu.data.batches import Source
from taetpu.spec.evaluation import Sample
from taetpu.spec.resolved_study import RunSpec, Sources
from taetpu.store.names import ClaimHeld
from taetpu.store.study import StudyFolder
from taetpu.study.forecast import forecast
from taetpu.study.pack_store import PackStore, killed_for_memory, marked_as_training
from taetpu.train.callbacks import Callback, Forecast
from taetpu.train.evaluator import Evaluator
from taetpu.train.layout import Packing
from taetpu.train.memory import out_of_memory
from taetpu.train.pack_plan import Pack, Run
from taetpu.train.profile import Profile
from taetpu.train.program import ProgramCache
from taetpu.train.readback import NotReproduced
from taetpu.train.results import ResultWriter, environment
from taetpu.train.step_time import remember_step
from taetpu.train.trainer import PackTrainer


@dataclass(frozen=True)
class Failure:
    """An error that a pack raised, with the runs that it affects."""

    runs: tuple[Run, ...]
    error: Exception


def missing_packs(packs: PackStore, callback: Callback, packing: Packing) -> list[Pack]:
    """Return the packs to train. Report each pack whose stored plan does not respect `packing`.

    All runs of a pack are trained, including those that the study file no longer names.
    """
    queue = packs.missing_packs(clean=True)
    for pack in queue:
        if not pack.plan.respects(packing):
            callback.on_plan_reused(pack.plan)
    return queue


def train_packs(
    packs: PackStore,
    sources: Sources,
    callback: Callback,
    queue: Sequence[Pack],
    profile: int = 0,
    change_plan: Callable[[], AbstractContextManager[None]] | None = None,
    held: set[str] | None = None,
) -> list[Failure]:
    """Train packs one after another. A pack that runs out of memory is halved.

    Args:
        profile: the number of steps to trace in each pack.
        change_plan: acquires the study's claim, or None if this process holds it already. If it is given, other
            processes train packs too, and only the pack that ran out of memory is halved. If it is None, the packs in
            the queue that share its program are halved as well.
        held: receives the IDs of the packs that are skipped because other processes train them.

    Raises:
        ClaimHeld: if another process trains a pack and `held` is None.
    """
    queue, folder = list(queue), packs.folder
    trainer = StudyTrainer(folder, sources, callback, stored_sample(folder), profile)
    callback.on_forecast(trainer.forecast(queue))
    callback.on_train_begin(sum(run_steps(run, sources) for pack in queue for run in pack.runs))
    failed, number = [], 0
    while queue:
        number, pack, queue = number + 1, queue[0], queue[1:]
        runs = pack.runs
        try:
            with folder.claim_pack(pack.id):
                if not pack.unfinished:  # another process has finished it
                    continue
                callback.on_pack_begin(number, number + len(queue), runs)
                error = trainer.train(pack)
        except ClaimHeld as other:
            if held is None:
                problem = f"pack {pack.id} is trained by another process: {other.problem}"
                raise ClaimHeld(problem, file=other.file, remedy=other.remedy) from None
            held.add(pack.id)
            continue
        if error is not None and out_of_memory(error) and pack.plan.width > 1:
            same = [other for other in queue if other.program_key == pack.program_key]
            alike = [] if change_plan else [other for other in same if is_free(folder, other.id)]
            with change_plan() if change_plan else nullcontext():
                halves = packs.halve([pack, *alike])
            callback.on_pack_split(runs, [half.plan for half in halves], error)
            queue = [*halves, *(other for other in queue if other not in alike)]
        elif error is not None:
            bad = tuple(run for run in runs if run.id in error.runs) if isinstance(error, NotReproduced) else runs
            failed.append(Failure(bad, error))
            callback.on_pack_failed(bad, error)
        else:
            callback.on_pack_end(runs)
    return failed


def is_free(folder: StudyFolder, pack_id: str) -> bool:
    """Return whether no process trains a pack."""
    try:
        with folder.claim_pack(pack_id):
            return True
    except ClaimHeld:
        return False


@dataclass
class StudyTrainer:
    """Trains packs of a study.

    Packs with the same structure and layout share a program. Only the last program is kept in memory.
    """

    folder: StudyFolder
    sources: Sources
    callback: Callback
    sample: Sample
    profile: int = 0
    programs: ProgramCache = field(default_factory=ProgramCache)

    def train(self, pack: Pack) -> Exception | None:
        """Train a pack to its end. Return its error, or None if it succeeded.

        An error is returned so that the study can continue with other packs. Only `UserError` and `StudyFailed` are
        raised, since they end the study.
        """
        if pack.plan.width > 1 and killed_for_memory(self.folder, pack):
            return MemoryError("the process that began this pack was killed out of memory")
        began, source = time.monotonic(), self.sources.prepare(pack.config)
        profile = Profile(self.folder, pack.id, self.profile) if self.profile else None
        try:
            self.check_flags(pack)
            with marked_as_training(self.folder, pack):
                program = self.programs.get(pack, source)
                writer, evaluator = (
                    ResultWriter(pack, program, environment()), Evaluator(program, pack.runs, self.sample)
                )  # fmt: skip
                PackTrainer(pack, program, self.folder, writer, evaluator, self.callback, profile).run()
        except (UserError, StudyFailed):
            raise
        except NotReproduced as error:
            return error
        except Exception as error:
            self.programs.clear()
            traceback.clear_frames(error.__traceback__)  # the frames hold the pack's arrays
            return error
        if profile:
            self.callback.on_profile(profile.where, profile.summary, profile.problem)
        self.folder.delete_pack(pack.id)
        seconds = round(time.monotonic() - began, 3)
        self.folder.write_pack_time(pack.id, {"seconds": seconds, "runs": len(pack.runs)})
        self.remember_step_time(pack, source)
        return None

    def remember_step_time(self, pack: Pack, source: Source) -> None:
        """Cache the measured time of a step. Forecasts of later studies on this machine use it."""
        timed = pack.runs[0].folder.times().get("step_seconds")
        if timed is not None and len(timed.value) and math.isfinite(timed.value[-1]):
            seconds = float(timed.value[-1]) * pack.plan.width
            remember_step(pack.plan.work(pack.runs, source), pack.plan.layout, seconds)

    def check_flags(self, pack: Pack) -> None:
        """Store the XLA flags of a new pack. Report a resumed pack that was started with different flags."""
        before, now = self.folder.read_pack_flags(pack.id), program_flags()
        if not self.folder.pack(pack.id).steps():
            self.folder.write_pack_flags(pack.id, now)
        elif before is not None and before != now:
            self.callback.on_xla_flags_changed(pack.plan, before, now)

    def forecast(self, queue: Sequence[Pack]) -> Forecast | None:
        """Return the predicted duration of the packs, or None if it cannot be predicted on this device."""
        if not queue:
            return None
        started = [(pack.plan, pack.runs, max(self.folder.pack(pack.id).steps(), default=0)) for pack in queue]
        return forecast(started, self.sources, self.sample)


def stored_sample(folder: StudyFolder) -> Sample:
    """Return the sample of the validation split that was recorded when the study was frozen."""
    return Sample.from_data(folder.read_study()["evaluation"])


def run_steps(run: RunSpec, sources: Sources) -> int:
    """Return the number of optimizer steps of a run."""
    return run.config.train.total_steps(sources.prepare(run.config).num_windows)
