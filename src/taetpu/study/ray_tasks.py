"""What Ray runs on the nodes of a cluster for `study.on_ray`; each function gets the study and its folder."""

import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from taetpu.core.errors import UserError
from taetpu.spec.loading import load_study
from taetpu.spec.resolved_study import RunSpec, Study
from taetpu.store.backend import open_store
from taetpu.store.names import ClaimHeld
from taetpu.store.study import StudyFolder
from taetpu.study.matching import beside, matched
from taetpu.study.pack_store import plan_new, recorded, stored_plans, unfinished
from taetpu.study.replicate import Audit
from taetpu.study.timing import seconds_a_step
from taetpu.study.trainer import Packs, stored_sample
from taetpu.study.validate import refuse_too_large
from taetpu.train.callbacks import Callback
from taetpu.train.device_capabilities import Place, here
from taetpu.train.layout import Packing
from taetpu.train.memory import out_of_memory
from taetpu.train.pack_plan import PackPlan

POLL_SECONDS = 0.5
HELD_SECONDS = 120.0
"""How long a task waits for the claim of its forerunner, whose host may be gone."""


@dataclass(frozen=True)
class Outcome:
    """What became of a task: its value, or the user's error."""

    value: Any = None
    error: UserError | None = None


@dataclass(frozen=True)
class Trained:
    """What became of a pack on a node: an error's text or "", and whether it needs more memory than the node has."""

    error: str = ""
    out_of_memory: bool = False


def on_node(function: str, file: str, sets: Sequence[str], root: str, *arguments: Any) -> Outcome:
    """Call a function of this module with the study and its folder, in a process of Ray."""
    try:
        study = load_study(file, sets)
        return Outcome(globals()[function](study, StudyFolder(open_store(root), study.name), *arguments))
    except UserError as error:
        return Outcome(error=error)


def names_of(runs: Sequence[RunSpec]) -> list[tuple[str, int, str]]:
    """Return runs by the names of their folders, from which a node reads them."""
    return [(run.arm, run.seed, run.id) for run in runs]


def node_place(study: Study, folder: StudyFolder) -> Place:
    """Return the devices of this node."""
    return replace(here(), name="the Ray cluster")


def node_plan(study: Study, folder: StudyFolder, names: Sequence[Any], packing: dict[str, Any]) -> None:
    """Plan packs for some runs; their driver holds the study's claim."""
    refuse_too_large(study, folder)
    plan_new(study, [recorded(folder, one) for one in names], folder, Packing(**packing))


def node_step_seconds(study: Study, folder: StudyFolder, name: str) -> float:
    """Return what a step of an arm takes here."""
    return seconds_a_step(beside(study, matched(study)), name, Callback())


def node_audit(
    study: Study, folder: StudyFolder, sampled: Sequence[Any], reused: Sequence[Any], packing: dict[str, Any]
) -> list[str]:
    """Train reused runs again, and return what is wrong with them."""
    runs = {names: recorded(folder, names) for names in reused}
    return Audit(study, folder, Callback(), Packing(**packing)).prove(
        [runs[one] for one in sampled], list(runs.values())
    )


def train_pack(study: Study, folder: StudyFolder, plan_id: str, profile: int) -> Trained:
    """Train a pack on this node, from its last checkpoint."""
    plans = {plan.id: plan for plan in stored_plans(folder)}
    if plan_id not in plans:
        return Trained(f"{platform.node()} does not see the pack plan in {folder.where}")
    with _claimed(folder, plans[plan_id]) as plan:
        if not unfinished(folder, plan):
            return Trained()
        error = Packs(study.sources, folder, Callback(), {}, stored_sample(folder), profile).train(plan)
    if error is None:
        return Trained()
    failure = f"on {platform.node()}: {type(error).__name__}: {error}"
    return Trained(failure, out_of_memory(error))


@contextmanager
def _claimed(folder: StudyFolder, plan: PackPlan) -> Iterator[PackPlan]:
    """Hold a pack, waiting for the process that trained it before, which may just be ending."""
    until = time.monotonic() + HELD_SECONDS
    with ExitStack() as claim:
        while True:
            try:
                claim.enter_context(folder.claim_pack(plan.id))
                break
            except ClaimHeld:
                if time.monotonic() > until:
                    raise
                time.sleep(POLL_SECONDS)
        yield plan
