"""Replication: a sample of the reused runs is trained again, and must give the same results."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from taetpu.spec.resolved_study import Study
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.pack_store import PackStore
from taetpu.study.trainer import StudyTrainer, run_steps, stored_sample
from taetpu.train.callbacks import Callback
from taetpu.train.layout import Packing
from taetpu.train.pack_plan import Run, plan_packs

REPLICAS = "audit"
"""The folder in a study's folder in which runs are trained again."""
TOLERANCE = 1e-4
"""The largest difference of a primary metric, relative above 1: other packs and machines round differently."""


@dataclass(frozen=True)
class Replication:
    """Trains reused runs again, beside the study's own runs, and compares."""

    study: Study
    folder: StudyFolder
    callback: Callback
    packing: Packing

    def check(self, sample: Sequence[Run], reused: Sequence[Run]) -> list[str]:
        """Train a sample of the reused runs again, apart from those that were replicated before, and compare.

        If one disagrees, no reused run is trusted: the replicas take the place of the sample, and the other reused runs
        are deleted, so that the next `taetpu run` trains them.

        Returns:
            The problem of each run that disagrees.
        """
        known = (self.folder.read_audit() or {"proved": []})["proved"]
        todo = [run for run in sample if [run.arm, run.seed] not in known]
        if not todo:
            return []
        scratch = StudyFolder(open_store(self.folder.where), REPLICAS)
        replicas = [Run.at(run, scratch) for run in todo]
        self.train(replicas, scratch)
        compared = zip(todo, replicas, strict=True)
        found = [find_disagreement(run, replica, self.study.measure.primary) for run, replica in compared]
        wrong = [problem for problem in found if problem]
        if wrong:
            for run in reused:
                run.folder.store.delete(run.folder.key)
            for run, replica in zip(todo, replicas, strict=True):
                run.folder.copy_from(replica.folder, run.record())
        else:
            known = [*known, *([run.arm, run.seed] for run in todo)]
        self.folder.write_audit({"proved": [] if wrong else known, "wrong": wrong})
        scratch.store.delete(REPLICAS)
        return wrong

    def train(self, replicas: Sequence[Run], scratch: StudyFolder) -> None:
        """Train replicas into their folders. Raises what a pack raises."""
        sources, packs = self.study.sources, PackStore(scratch, replicas)
        trainer = StudyTrainer(scratch, sources, self.callback, stored_sample(self.folder))
        left = packs.start_unplanned()
        self.callback.on_replicate(left)
        self.callback.on_train_begin(sum(run_steps(run, sources) for run in left))
        plans = plan_packs(left, [sources.prepare(run.config) for run in left], packing=self.packing)
        for number, plan in enumerate(plans, 1):
            pack = packs.load_pack(plan)
            self.callback.on_pack_begin(number, len(plans), pack.runs)
            if (error := trainer.train(pack)) is not None:
                raise error


def find_disagreement(run: Run, replica: Run, metric: str) -> str | None:
    """Return how a replica disagrees with the reused run, or None."""
    old, new = _finished_result(run), _finished_result(replica)
    if old["outcome"] != new["outcome"]:
        return f"{run.arm} on seed {run.seed} {old['outcome']} there, and {new['outcome']} here"
    a, b = old["metrics"].get(metric), new["metrics"].get(metric)
    same = a == b if a is None or b is None else abs(a - b) <= TOLERANCE * max(1.0, abs(a))
    return None if same else f"{run.arm} on seed {run.seed} has {metric} {_number(a)} there, and {_number(b)} here"


def _finished_result(run: Run) -> dict[str, Any]:
    result = run.folder.result()
    assert result is not None  # it was copied, or has just been trained
    return result


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"
