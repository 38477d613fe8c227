"""Runs that were trained before, in another study or root, taken over instead of trained again.

A run's identity is a hash of all that it computes from: config, seed, data, plug-ins, format. So a run with the same
identity is the same run, wherever it was trained. A random sample can be trained again to prove it.
"""

import math
import random
from collections.abc import Iterable, Sequence
from typing import Any

from taetpu.core.config import to_data
from taetpu.core.errors import UserError
from taetpu.spec.design import RunSpec, Study
from taetpu.spec.identity import plugin_sources
from taetpu.store.index import find_studies
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder

AGREES = 1e-4
"""How far the primary metric of a run that is trained again may lie from the first: other packs and machines round
otherwise."""


def adopt(study: Study, folder: StudyFolder, roots: Sequence[str] = ()) -> list[RunSpec]:
    """Copy every finished run of `roots`, and of the study itself, that is the same as one which is still missing.

    Returns:
        the runs that were taken over from elsewhere.

    Raises:
        UserError: there is no study at a root, or a run there is not what its folder's name says.
    """
    missing = [run for run in study.runs() if folder.run(run.arm, run.seed, run.id).status() != "done"]
    wanted, here = {run.id for run in missing}, _finished([folder])
    elsewhere = dict[str, RunFolder]()
    for root in roots if wanted - set(here) else ():
        studies = find_studies(root)
        if not studies:
            raise UserError("no study is stored here", file=root, remedy="`taetpu list --root DIR` shows what is there")
        elsewhere |= _finished(studies)
    adopted = []
    for run in missing:
        found = here.get(run.id) or elsewhere.get(run.id)
        if found is not None:
            folder.run(run.arm, run.seed, run.id).take_over(found, described(run))
            adopted += [] if run.id in here else [run]
    return adopted


def described(run: RunSpec) -> dict[str, Any]:
    """What is recorded of a run when it is begun."""
    about = {"arm": run.arm, "seed": run.seed, "id": run.id, "config": to_data(run.config)}
    return {**about, "plugins": plugin_sources(run.config)}


def _finished(studies: Iterable[StudyFolder]) -> dict[str, RunFolder]:
    """The runs that are done, by their whole identity."""
    found = dict[str, RunFolder]()
    for study in studies:
        for run in study.runs():
            if run.status() == "done":
                identity = run.config().get("id", "")
                if not identity.startswith(run.id):
                    problem = f"this run is recorded as {identity[:8]!r}, and its folder is called {run.id!r}"
                    raise UserError(problem, file=run.where, remedy="move it out of the study's folder")
                found.setdefault(identity, run)
    return found


def sample(runs: Sequence[RunSpec], share: float) -> list[RunSpec]:
    """Some of the runs, at least one of any, the same whenever asked."""
    count = min(len(runs), math.ceil(share * len(runs)))
    ordered = sorted(runs, key=lambda run: run.id)
    return random.Random("".join(run.id for run in ordered)).sample(ordered, count) if count else []


def disagreement(run: RunSpec, first: RunFolder, again: RunFolder, metric: str) -> str | None:
    """What is wrong with a reused run, after it was trained again; None where both agree."""
    old, new = first.result(), again.result()
    if old is None or new is None:
        return f"{run.arm} on seed {run.seed} could not be trained again"
    a, b = old["metrics"].get(metric), new["metrics"].get(metric)
    if old["outcome"] != new["outcome"]:
        return f"{run.arm} on seed {run.seed} {old['outcome']} there, and {new['outcome']} here"
    if a is not None and b is not None and abs(a - b) > AGREES * max(1.0, abs(a)):
        return f"{run.arm} on seed {run.seed} has {metric} {a:.6g} there, and {b:.6g} here"
    return None
