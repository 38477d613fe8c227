"""Proof that reused runs are what they say: some are trained again, and must come out the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from taetpu.spec.resolved_study import RunSpec, Study
from taetpu.store.backend import open_store
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder
from taetpu.study.reuse import described
from taetpu.study.trainer import Packs, run_steps, stored_sample
from taetpu.train.callbacks import Callback
from taetpu.train.layout import Packing
from taetpu.train.pack_plan import plan_packs

AUDIT = "audit"  # the folder within a study's where runs are trained again

AGREES = 1e-4
"""How far the primary metric of a run that is trained again may lie from the first: other packs and machines round
otherwise."""


@dataclass(frozen=True)
class Audit:
    """Trains runs a second time, beside the study's own."""

    study: Study
    folder: StudyFolder
    callback: Callback
    packing: Packing

    def prove(self, sampled: Sequence[RunSpec], reused: Sequence[RunSpec]) -> list[str]:
        """Train a sample of the reused runs again and compare. A run that was proved before is not trained again.

        If one came out otherwise, nothing that was reused is trusted: what was trained again takes its place, and the
        other reused runs are deleted, so that the study's next run trains them.

        Returns:
            what is wrong with each that came out otherwise.
        """
        known = (self.folder.read_audit() or {"proved": []})["proved"]
        todo = [run for run in sampled if [run.arm, run.seed] not in known]
        if not todo:
            return []
        again = self.train(todo)
        found = {run.id: disagreement(run, self.own(run), at(again, run), self.primary) for run in todo}
        wrong = [problem for problem in found.values() if problem]
        if wrong:
            self.replace(todo, reused, again)
        else:
            known = [*known, *([run.arm, run.seed] for run in todo)]
        self.folder.write_audit({"proved": [] if wrong else known, "wrong": wrong})
        again.store.delete(AUDIT)
        return wrong

    @property
    def primary(self) -> str:
        return self.study.measure.primary

    def own(self, run: RunSpec) -> RunFolder:
        return at(self.folder, run)

    def train(self, runs: Sequence[RunSpec]) -> StudyFolder:
        """Train runs into a folder of their own, from where an earlier process left off."""
        again = StudyFolder(open_store(self.folder.where), AUDIT)
        wanted, sample = {run.id: run for run in runs}, stored_sample(self.folder)
        trainer = Packs(self.study.sources, again, self.callback, wanted, sample)
        for run in runs:
            if at(again, run).status() == "absent":
                at(again, run).start(described(run))
        left = [run for run in runs if at(again, run).status() != "done"]
        plans = plan_packs(left, [self.study.sources.prepare(run.config) for run in left], packing=self.packing)
        self.callback.on_replicate(left)
        self.callback.on_train_begin(sum(run_steps(run, self.study.sources) for run in left))
        for number, plan in enumerate(plans, 1):
            self.callback.on_pack_begin(number, len(plans), trainer.members(plan))
            if (error := trainer.train(plan)) is not None:
                raise error
        return again

    def replace(self, trained: Sequence[RunSpec], reused: Sequence[RunSpec], again: StudyFolder) -> None:
        """Trust nothing that was reused, but what was trained again."""
        for run in reused:
            self.folder.store.delete(self.own(run).key)
        for run in trained:
            self.own(run).copy_from(at(again, run), described(run))


def at(folder: StudyFolder, run: RunSpec) -> RunFolder:
    return folder.run(run.arm, run.seed, run.id)


def disagreement(run: RunSpec, first: RunFolder, again: RunFolder, metric: str) -> str | None:
    """What is wrong with a reused run, after it was trained again; None where both agree."""
    old, new = _came_to(first), _came_to(again)
    if old["outcome"] != new["outcome"]:
        return f"{run.arm} on seed {run.seed} {old['outcome']} there, and {new['outcome']} here"
    a, b = old["metrics"].get(metric), new["metrics"].get(metric)
    same = a == b if a is None or b is None else abs(a - b) <= AGREES * max(1.0, abs(a))
    return None if same else f"{run.arm} on seed {run.seed} has {metric} {_number(a)} there, and {_number(b)} here"


def _came_to(run: RunFolder) -> dict[str, Any]:
    result = run.result()
    assert result is not None  # it was taken over, or has just been trained
    return result


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"
