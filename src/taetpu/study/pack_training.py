"""Training the packs of a study, one after another."""

import math
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from functools import partial

from taetpu.core.errors import StudyFailed, UserError
from taetpu.spec.eval_sample import Sample
from taetpu.spec.resolved_study import RunSpec, Sources
from taetpu.store.errors import ClaimHeld
from taetpu.store.pack_times import Parts
from taetpu.store.study import StudyFolder
from taetpu.study.outcome import Failure
from taetpu.study.pack_store import PackStore
from taetpu.train.callbacks import Callback
from taetpu.train.evaluator import Evaluator
from taetpu.train.layout import Packing
from taetpu.train.memory import out_of_memory
from taetpu.train.pack_clock import PackClock
from taetpu.train.pack_plan import Pack
from taetpu.train.profile import Profile
from taetpu.train.program_cache import ProgramCache, compiles_ahead
from taetpu.train.reload_check import NotReproduced
from taetpu.train.result_writer import ResultWriter, environment
from taetpu.train.step_time import remember_step
from taetpu.train.trainer import PackTrainer


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
    change_plan: Callable[[], AbstractContextManager[None]] = nullcontext,
    held: set[str] | None = None,
    sample: Sample | None = None,
) -> list[Failure]:
    """Train packs one after another. A pack that runs out of memory is halved.

    Args:
        profile: the number of steps to trace in each pack.
        change_plan: acquires the study's claim; by default, this process holds it already.
        held: receives the IDs of the packs that are skipped because other processes train them.
        sample: the sample of the validation split; by default, the sample that the study's folder records.

    Raises:
        ClaimHeld: if another process trains a pack and `held` is None.
    """
    queue, folder = list(queue), packs.folder
    trainer = StudyTrainer(folder, sources, callback, sample or stored_sample(folder), profile)
    callback.on_train_begin(sum(run_steps(run, sources) for pack in queue for run in pack.runs))
    failed, number = [], 0
    with closing(trainer.programs):
        while queue:
            number, pack, queue = number + 1, queue[0], queue[1:]
            runs = pack.runs
            try:
                with folder.claim_pack(pack.id):
                    if not pack.unfinished:  # another process has finished it
                        continue
                    callback.on_pack_begin(number, number + len(queue), runs)
                    error = trainer.train(pack, following=queue)
            except ClaimHeld as other:
                if held is None:
                    problem = f"pack {pack.id} is being trained by another process: {other.problem}"
                    raise ClaimHeld(problem, file=other.file, remedy=other.remedy) from None
                held.add(pack.id)
                continue
            if error is not None and out_of_memory(error) and pack.plan.width > 1:
                with change_plan():
                    halves = packs.halve(pack)
                callback.on_pack_split(runs, [half.plan for half in halves], error)
                queue = [*halves, *queue]
            elif error is not None:
                bad = tuple(run for run in runs if run.id in error.runs) if isinstance(error, NotReproduced) else runs
                failed.append(Failure(bad, error))
                callback.on_pack_failed(bad, error)
            else:
                callback.on_pack_end(runs)
    return failed


@dataclass
class StudyTrainer:
    """Trains packs of a study.

    Packs with the same structure and layout share a program. The last program is kept in memory, and one that
    is compiled ahead.

    Attributes:
        profile: the number of steps to trace in each pack.
        alone: whether no other pack trains at the same time; see `PackTrainer`.
        ahead: whether the program of a following pack is compiled while a pack trains.
        stop: returns whether to store everything and stop; see `PackTrainer`.
    """

    folder: StudyFolder
    sources: Sources
    callback: Callback
    sample: Sample
    profile: int = 0
    alone: bool = True
    programs: ProgramCache = field(default_factory=ProgramCache)
    ahead: bool = field(default_factory=compiles_ahead)
    stop: Callable[[], bool] = lambda: False

    def train(self, pack: Pack, waited: float = 0.0, following: Sequence[Pack] = ()) -> Exception | None:
        """Train a pack to its end. Return the error that stopped the training, or None if the pack was trained.

        The error is returned instead of raised, so that the study can continue with other packs. Only `UserError` and
        `StudyFailed` are raised, because they end the study.

        Args:
            pack: the pack. The caller holds its claim.
            waited: the seconds that passed since the pack was assigned to this process.
            following: the packs that this process trains next.
        """
        with pack_clock(self.folder, pack, waited) as clock:
            return self.train_timed(pack, clock, following)

    def compile_ahead(self, pack: Pack, following: Sequence[Pack]) -> None:
        """Start to compile the next program that differs from that of `pack`, which is being trained."""
        if self.ahead and not self.profile:  # the profile lists all compilations as those of its pack
            other = next((each for each in following if each.program_key != pack.program_key), None)
            if other is not None:
                self.programs.compile_ahead(other, self.sources.prepare(other.config), self.sample)

    def train_timed(self, pack: Pack, clock: PackClock, following: Sequence[Pack]) -> Exception | None:
        """Train a pack as `train` does, while `clock` measures its time."""
        source = self.sources.prepare(pack.config)
        profile = Profile(self.folder, pack.id, self.profile) if self.profile else None
        try:
            with clock.spend("compiled"):
                program = self.programs.get(pack, source)
            starts = [self.sources.start(run.config, run.seed) for run in pack.runs]
            writer = ResultWriter(pack, program, environment(), starts)
            evaluator = Evaluator(program, pack.runs, self.sample, self.sources.items(pack.config))
            trainer = PackTrainer(
                pack, program, self.folder, writer, evaluator, self.callback, profile, starts, self.alone,
                clock, partial(self.compile_ahead, pack, following), self.stop,
            )  # fmt: skip
            trainer.run()
        except (UserError, StudyFailed):
            raise
        except Exception as error:
            self.programs.clear()
            traceback.clear_frames(error.__traceback__)  # the traceback's frames hold the pack's arrays
            return error
        if profile:
            self.callback.on_profile(profile.where, profile.summary, profile.problem)
        with clock.spend("written"):
            self.folder.delete_pack(pack.id)
        if self.alone and math.isfinite(trainer.step_seconds):
            remember_step(pack.plan, pack.config, trainer.step_seconds * pack.plan.width)
        return None


def pack_clock(folder: StudyFolder, pack: Pack, waited: float) -> PackClock:
    """Return the clock of a pack, which continues with the parts that earlier processes stored.

    Args:
        folder: the study's folder, where the clock stores the parts.
        pack: the pack.
        waited: see `StudyTrainer.train`.
    """
    earlier = folder.read_pack_time(pack.id).get("parts", {})
    arms = dict(Counter(run.arm for run in pack.runs))

    def write(parts: Parts) -> None:
        rounded: Parts = {part: round(seconds, 3) for part, seconds in parts.items()}
        seconds = round(sum(rounded.values()), 3)
        folder.write_pack_time(pack.id, {"seconds": seconds, "runs": len(pack.runs), "arms": arms, "parts": rounded})

    return PackClock(write, earlier, waited)


def stored_sample(folder: StudyFolder) -> Sample:
    """Return the sample of the validation split that was recorded when the study was frozen."""
    return Sample(**folder.read_study()["evaluation"])


def run_steps(run: RunSpec, sources: Sources) -> int:
    """Return the number of optimizer steps of a run."""
    return run.config.train.total_steps(sources.prepare(run.config).num_windows)
