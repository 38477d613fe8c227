"""Reuse of finished runs of this and other studies, which are copied instead of trained again.

A run's ID is a hash of everything that its numbers depend on: config, seed, data, plug-ins and schema. Runs of one ID
are therefore the same run, wherever they were trained. `study.replicate` trains a random sample again to verify it.
"""

import math
import random
from collections.abc import Container, Iterable, Sequence
from functools import cached_property
from typing import Any

from taetpu.core.errors import UserError
from taetpu.core.identity import SCHEMA, recorded_identity
from taetpu.stats.load import read_config
from taetpu.store.index import find_studies
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder
from taetpu.train.pack_plan import Run


class Reuse:
    """Copies finished runs into a study.

    Args:
        folder: the study's.
        roots: folders of studies, or roots of many.

    Raises:
        UserError: no study at a root has run IDs of this version's schema.
    """

    def __init__(self, folder: StudyFolder, roots: Sequence[str] = ()):
        self.folder = folder
        self.roots = [[study for study in find_reusable(root) if study.where != folder.where] for root in roots]

    @cached_property
    def elsewhere(self) -> dict[str, RunFolder]:
        """The finished runs of the other studies, by ID."""
        return {run_id: run for studies in self.roots for run_id, run in finished_runs(studies).items()}

    def adopt(self, runs: Sequence[Run], reserved: Container[str] = ()) -> list[Run]:
        """Copy those of some runs that have no result here, and have one in this or another study.

        Args:
            reserved: IDs of runs that other processes may be training, which are not copied.

        Returns:
            The runs that were copied from other studies, now or before.

        Raises:
            UserError: a run of another study is damaged, or its ID is not that of its record.
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
    """Return the studies at a root whose run IDs are of this version's schema.

    Raises:
        UserError: there is none.
    """
    studies = find_studies(root)
    if not studies:
        raise UserError("no study is stored here", file=root, remedy="`taetpu list --root DIR` shows what is there")
    schemas = {study: _schema(study) for study in studies}
    current = [study for study, schema in schemas.items() if schema == SCHEMA]
    if not current:
        found = ", ".join(sorted({str(schema) for schema in schemas.values()}))
        problem = f"no run here can be reused: run IDs are of schema {found}, and this version uses schema {SCHEMA}"
        raise UserError(problem, file=root, remedy="Leave out --reuse of this folder to train the runs again.")
    return current


def _schema(study: StudyFolder) -> Any:
    """Return the schema of a study's run IDs, or None where its `study.yaml` cannot be read."""
    try:
        return study.read_study().get("schema")
    except UserError:
        return None


def check_reusable(run: Run, other: RunFolder) -> None:
    """Raise `UserError` unless a finished run is intact and is the run that its ID stands for."""
    from taetpu.stats.verify import find_contradictions  # here: it imports statsmodels, which most commands do without

    remedy = "The run was changed after training: move it away, or leave out --reuse."
    for problem in other.find_damage():
        raise UserError(problem, file=other.where, remedy=remedy)
    recorded, expected = read_config(other), run.record()
    changed = [part for part in ("seed", "plugins") if recorded.get(part) != expected[part]]
    if not changed and recorded_identity(recorded, run.data) != run.id:
        changed = ["config"]
    for part in changed:
        raise UserError(f"the {part} of this run does not match its ID {run.id[:8]}", file=other.where, remedy=remedy)
    for problem in find_contradictions(other):
        raise UserError(problem, file=other.where, remedy=remedy)


def finished_runs(studies: Iterable[StudyFolder]) -> dict[str, RunFolder]:
    """Return the finished runs of some studies by their whole ID.

    Raises:
        UserError: a run's record has another ID than its folder.
    """
    found = dict[str, RunFolder]()
    for study in studies:
        for run in study.runs():
            if run.status() == "done":
                run_id = str(read_config(run).get("id", ""))
                if not run_id.startswith(run.id):
                    problem = f"this run is recorded as {run_id[:8]!r}, and its folder is named {run.id!r}"
                    raise UserError(problem, file=run.where, remedy="Move it out of the study's folder.")
                found.setdefault(run_id, run)
    return found


def sample_runs(runs: Sequence[Run], share: float) -> list[Run]:
    """Draw a share of some runs: no run twice, at least one unless the share is 0, and always the same ones."""
    ordered = sorted({run.id: run for run in runs}.values(), key=lambda run: run.id)
    count = math.ceil(share * len(ordered))
    return random.Random("".join(run.id for run in ordered)).sample(ordered, count)
