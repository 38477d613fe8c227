"""Proof that reused runs are what they say: some are trained again, and must come out the same."""

from collections.abc import Sequence
from dataclasses import dataclass

from taetpu.core.errors import Failed
from taetpu.spec.design import RunSpec, Study
from taetpu.store.study import StudyFolder
from taetpu.study.reuse import described, disagreement
from taetpu.study.trainer import Packs
from taetpu.train.plan import Packing, plan_packs
from taetpu.train.watch import Watcher

AUDIT = "audit"  # the folder of runs that are trained again, in place of a study's below the study's own


@dataclass(frozen=True)
class Audit:
    """Trains runs a second time, beside the study's own."""

    study: Study
    folder: StudyFolder
    watcher: Watcher
    packing: Packing

    def prove(self, runs: Sequence[RunSpec]) -> None:
        """Train runs again and compare; what was found is stored with the study.

        Raises:
            Failed: a run came out otherwise than where it was reused from.
        """
        if not runs:
            return
        again = StudyFolder(self.folder.store, self.folder.name + "-" + AUDIT)
        trainer = Packs(self.study.sources, again, self.watcher, {run.id: run for run in runs})
        for run in runs:
            again.run(run.arm, run.seed, run.id).start(described(run))
        for plan in plan_packs(runs, [self.study.sources.of(run.config) for run in runs], packing=self.packing):
            self.watcher.pack(1, 1, trainer.members(plan))
            if (error := trainer.train(plan)) is not None:
                raise error
        problems = [self.problem(run, again) for run in runs]
        wrong = [problem for problem in problems if problem]
        self.folder.write_audit({"runs": [f"{run.arm}/{run.seed}" for run in runs], "wrong": wrong})
        if wrong:
            where = again.where
            raise Failed(f"{len(wrong)} of {len(runs)} reused runs came out otherwise ({where}):\n  " + "\n  ".join(wrong))

    def problem(self, run: RunSpec, again: StudyFolder) -> str | None:
        names = run.arm, run.seed, run.id
        return disagreement(run, self.folder.run(*names), again.run(*names), self.study.measure.primary)
