"""Reusing finished runs of this and other studies, and verifying the reused runs.

A reused run is copied instead of being trained again. The ID of a run is a hash of everything that determines its
results: config, seed, data, plug-ins and schema. Runs with the same ID should therefore have the same results. A random
sample of the reused runs is trained again to verify this.
"""

import math
import random
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from taetpu.core.errors import UserError
from taetpu.core.identity import SCHEMA, recorded_identity
from taetpu.spec.resolved_study import Study
from taetpu.stats.load import read_config
from taetpu.store.backend import open_store
from taetpu.store.index import find_studies
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder
from taetpu.study.pack_store import PackStore
from taetpu.study.pack_training import stored_sample, train_packs
from taetpu.train.callbacks import Callback
from taetpu.train.layout import Packing
from taetpu.train.pack_plan import Run


class Reuse:
    """Copies finished runs into a study.

    Args:
        folder: the study's folder.
        roots: folders of studies, or roots that contain several studies.

    Raises:
        UserError: if a root contains no study, or no study whose run IDs use the current schema.
    """

    def __init__(self, folder: StudyFolder, roots: Sequence[str] = ()):
        self.folder = folder
        self.roots = [[study for study in find_reusable(root) if study.where != folder.where] for root in roots]

    @cached_property
    def elsewhere(self) -> dict[str, RunFolder]:
        """The finished runs of the other studies, by run ID."""
        return {run_id: run for studies in self.roots for run_id, run in finished_runs(studies).items()}

    def adopt(self, runs: Sequence[Run], reserved: Container[str] = ()) -> list[Run]:
        """Copy finished runs to the given runs that have no result but the same IDs.

        Args:
            runs: the runs of the study.
            reserved: IDs of runs that other processes may be training. These runs are skipped.

        Returns:
            The runs that were copied from other studies, in this call or in an earlier one.

        Raises:
            UserError: if a run of another study is damaged or its record does not match its ID.
        """
        missing = [run for run in runs if not run.done and run.id not in reserved]
        here = finished_runs([self.folder]) if missing else {}
        for run in missing:
            if run.id in here:
                run.folder.copy_from(here[run.id], run.record())
            elif (other := self.elsewhere.get(run.id)) is not None:
                check_reusable(run, other)
                run.folder.copy_from(other, run.record(), source=other.where)
        return [run for run in runs if run.folder.origin()]


def find_reusable(root: str) -> list[StudyFolder]:
    """Return the studies under a root that have run IDs of the current schema.

    Raises:
        UserError: if no study under the root uses the current schema.
    """
    schemas = {study: _schema(study) for study in find_studies(root, required=True)}
    current = [study for study, schema in schemas.items() if schema == SCHEMA]
    if not current:
        present = ", ".join(sorted({str(schema) for schema in schemas.values()}))
        problem = f"no run here can be reused: the run IDs use schema {present}, but this version uses schema {SCHEMA}"
        raise UserError(problem, file=root, remedy="Omit --reuse for this folder to train the runs again.")
    return current


def _schema(study: StudyFolder) -> Any:
    """Return the schema of a study's run IDs, or None if its `study.yaml` cannot be read."""
    try:
        return study.read_study().get("schema")
    except UserError:
        return None


def check_reusable(run: Run, other: RunFolder) -> None:
    """Raise `UserError` unless a finished run is intact and its record matches its ID."""
    from taetpu.stats.verify import find_contradictions  # late: it imports statsmodels, which few commands need

    remedy = "Move the run away, or omit --reuse. The run was changed after training."
    for problem in other.find_damage():
        raise UserError(problem, file=other.where, remedy=remedy)
    recorded, expected = read_config(other), run.record()
    changed = [part for part in ("seed", "plugins") if recorded.get(part) != expected[part]]
    if not changed and recorded_identity(recorded, run.data) != run.id:
        changed = ["config"]
    for part in changed:
        raise UserError(f"the {part} of this run does not match its ID {run.id[:8]}", file=other.where, remedy=remedy)
    for problem in find_contradictions(other, StudyFolder(other.store, other.study).read_study()["plan"]):
        raise UserError(problem, file=other.where, remedy=remedy)


def finished_runs(studies: Iterable[StudyFolder]) -> dict[str, RunFolder]:
    """Return the finished runs of the given studies, by their full ID.

    Raises:
        UserError: if the ID in a run's record does not match the name of its folder.
    """
    finished = dict[str, RunFolder]()
    for study in studies:
        for run in study.runs():
            if run.status() == "done":
                run_id = str(read_config(run).get("id", ""))
                if not run_id.startswith(run.id):
                    problem = f"this run is recorded as {run_id[:8]!r}, but its folder is named {run.id!r}"
                    raise UserError(problem, file=run.where, remedy="Move the run out of the study's folder.")
                finished.setdefault(run_id, run)
    return finished


def sample_runs(runs: Sequence[Run], share: float) -> list[Run]:
    """Draw a random fraction of the given runs. The same runs always give the same sample.

    Runs with the same ID count once. The size of the sample is rounded up.
    """
    ordered = sorted({run.id: run for run in runs}.values(), key=lambda run: run.id)
    count = math.ceil(share * len(ordered))
    return random.Random("".join(run.id for run in ordered)).sample(ordered, count)


# --- replication ------------------------------------------------------------------------------------------------------

REPLICAS = "audit"
"""Name of the folder within a study's folder for runs that are trained again."""
TOLERANCE = 1e-4
"""Maximum difference in the primary metric, or maximum relative difference for values above 1.

Results may differ by rounding errors, because other packs and machines round differently.
"""


@dataclass(frozen=True)
class Replication:
    """Trains reused runs again, in a separate folder, and compares the results."""

    study: Study
    folder: StudyFolder
    callback: Callback
    packing: Packing

    def check(self, sample: Sequence[Run], reused: Sequence[Run]) -> list[str]:
        """Train the sampled runs again and compare the results. Runs that were verified before are skipped.

        If the results of any run disagree, no reused run is trusted. The replicas then replace the sampled runs, and
        the other reused runs are deleted, so that the next `taetpu run` trains them.

        Args:
            sample: the runs to train again.
            reused: all reused runs.

        Returns:
            One message for each run whose results disagree.
        """
        known = (self.folder.read_audit() or {"proved": []})["proved"]
        todo = [run for run in sample if [run.arm, run.seed] not in known]
        if not todo:
            return []
        scratch = StudyFolder(open_store(self.folder.where), REPLICAS)
        replicas = [Run.at(run, scratch) for run in todo]
        self.train(replicas, scratch)
        compared = zip(todo, replicas, strict=True)
        disagreements = [find_disagreement(run, replica, self.study.measure.primary) for run, replica in compared]
        wrong = [problem for problem in disagreements if problem]
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
        """Train the replicas. Raises the error of the first pack that fails."""
        sources, packs = self.study.sources, PackStore(scratch, replicas)
        packs.plan(sources, self.packing)
        queue, sample = packs.missing_packs(), stored_sample(self.folder)
        self.callback.on_replicate([run for pack in queue for run in pack.runs])
        for failure in train_packs(packs, sources, self.callback, queue, sample=sample):
            raise failure.error


def find_disagreement(run: Run, replica: Run, metric: str) -> str | None:
    """Return how the results of a replica differ from those of the reused run, or None if the results agree."""
    old, new = run.folder.result(), replica.folder.result()
    assert old is not None  # the run was copied
    assert new is not None  # the replica has just been trained
    if old["outcome"] != new["outcome"]:
        return f"{run.arm} on seed {run.seed} {old['outcome']} there, and {new['outcome']} here"
    a, b = old["metrics"].get(metric), new["metrics"].get(metric)
    same = a == b if a is None or b is None else abs(a - b) <= TOLERANCE * max(1.0, abs(a))
    there, here = ("none" if value is None else f"{value:.6g}" for value in (a, b))
    return None if same else f"{run.arm} on seed {run.seed} has {metric} {there} there, and {here} here"
