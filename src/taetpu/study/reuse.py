"""Runs that were trained before, in another study or root, taken over instead of trained again.

A run's identity is a hash of all that it computes from: config, seed, data, plug-ins, format. So a run with the same
identity is the same run, wherever it was trained. A random sample can be trained again to prove it.
"""

import math
import random
from collections.abc import Container, Iterable, Sequence
from typing import Any

from taetpu.core.config import defaults, to_data
from taetpu.core.errors import UserError
from taetpu.core.identity import SCHEMA, recorded_identity
from taetpu.spec.identity import plugin_sources
from taetpu.spec.resolved_study import RunSpec, Study
from taetpu.stats.load import read_config
from taetpu.store.index import find_studies
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder


def adopt(study: Study, folder: StudyFolder, roots: Sequence[str] = (), planned: Container[str] = ()) -> list[RunSpec]:
    """Copy every finished run of `roots`, and of the study itself, that is the same as one which is still missing.

    Args:
        planned: runs that other workers may be training; they are left to them.

    Returns:
        the study's runs that were trained elsewhere, also those that were taken over before.

    Raises:
        UserError: there is no study at a root, or a run there is not what its folder's name says, or
            not what its metrics say.
    """
    open_runs = [run for run in study.runs() if folder.run(run.arm, run.seed, run.id).status() != "done"]
    missing = [run for run in open_runs if run.id not in planned]
    here = _finished([folder]) if missing else {}
    elsewhere = dict[str, RunFolder]()
    for root in roots if any(run.id not in here for run in missing) else ():
        elsewhere |= _finished(other for other in studies_at(root) if other.where != folder.where)
    for run in missing:
        target, own, other = folder.run(run.arm, run.seed, run.id), here.get(run.id), elsewhere.get(run.id)
        if own is not None:
            target.copy_from(own, described(run))
        elif other is not None:
            _check_same(run, other)
            target.copy_from(other, described(run), source=other.where)
    return [run for run in study.runs() if folder.run(run.arm, run.seed, run.id).origin()]


def studies_at(root: str) -> list[StudyFolder]:
    """The studies whose runs may be taken over: those whose identities are of this version's schema.

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
        problem = f"no run here can be reused: identities are of schema {found}, and this version uses schema {SCHEMA}"
        raise UserError(
            problem, file=root, remedy="leave out --reuse of this folder, so that the runs are trained again"
        )
    return current


def _schema(study: StudyFolder) -> Any:
    """The schema of a study's identities; None where its `study.yaml` cannot be read."""
    try:
        return study.read_study().get("schema")
    except UserError:
        return None


def _check_same(run: RunSpec, other: RunFolder) -> None:
    """Was this run trained as its identity says, and did it come to what its own metrics say?"""
    remedy = "it was changed afterwards: move it away, or leave --reuse"
    for problem in other.find_damage():
        raise UserError(problem, file=other.where, remedy=remedy)
    recorded, wanted = read_config(other), described(run)
    changed = [part for part in ("seed", "plugins") if recorded.get(part) != wanted[part]]
    if not changed and recorded_identity(recorded, run.data) != run.id:
        changed = ["config"]
    for part in changed:
        problem = f"this run's {part} is not what its identity {run.id[:8]} stands for"
        raise UserError(problem, file=other.where, remedy=remedy)
    from taetpu.stats.verify import (
        contradictions,
    )  # here: it brings all of the statistics, which most commands do without

    for problem in contradictions(other):
        raise UserError(problem, file=other.where, remedy=remedy)


def described(run: RunSpec) -> dict[str, Any]:
    """What is recorded of a run when it is begun; its identity can be computed again from this alone."""
    about = {"schema": SCHEMA, "arm": run.arm, "seed": run.seed, "id": run.id, "config": to_data(run.config)}
    return {**about, "defaults": defaults(run.config), "data": run.data, "plugins": plugin_sources(run.config)}


def _finished(studies: Iterable[StudyFolder]) -> dict[str, RunFolder]:
    """The runs that are done, by their whole identity."""
    found = dict[str, RunFolder]()
    for study in studies:
        for run in study.runs():
            if run.status() == "done":
                identity = str(read_config(run).get("id", ""))
                if not identity.startswith(run.id):
                    problem = f"this run is recorded as {identity[:8]!r}, and its folder is called {run.id!r}"
                    raise UserError(problem, file=run.where, remedy="move it out of the study's folder")
                found.setdefault(identity, run)
    return found


def sample(runs: Sequence[RunSpec], share: float) -> list[RunSpec]:
    """Some of the runs, at least one of any unless the share is 0, the same whenever asked; none twice."""
    ordered = sorted({run.id: run for run in runs}.values(), key=lambda run: run.id)
    count = math.ceil(share * len(ordered))
    return random.Random("".join(run.id for run in ordered)).sample(ordered, count)
