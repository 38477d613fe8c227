"""The tasks that `study.on_ray` submits to the nodes of a Ray cluster. Each gets the study and its folder."""

import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from taetpu.core.errors import UserError
from taetpu.spec.loading import load_study
from taetpu.spec.resolved_study import RunKey, Study
from taetpu.store.backend import open_store
from taetpu.store.names import ClaimHeld
from taetpu.store.study import StudyFolder
from taetpu.study.matching import seconds_per_step
from taetpu.study.pack_store import PackStore, add_plans, resolve_runs, stored_plans
from taetpu.study.replicate import Replication
from taetpu.study.trainer import StudyTrainer, stored_sample
from taetpu.study.validate import refuse_too_large
from taetpu.train.callbacks import Callback
from taetpu.train.device_capabilities import Capabilities, local_capabilities
from taetpu.train.layout import Packing
from taetpu.train.memory import out_of_memory
from taetpu.train.pack_plan import Pack, Run

POLL_SECONDS = 0.5
HELD_SECONDS = 120.0
"""How long a task waits for the claim of the previous attempt, whose host may be gone."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a task: its value, or the user's error."""

    value: Any = None
    error: UserError | None = None


@dataclass(frozen=True)
class Trained:
    """The outcome of a pack on a node: an error's text or "", and whether it ran out of memory."""

    error: str = ""
    out_of_memory: bool = False


def on_node(function: str, file: str, sets: Sequence[str], root: str, *arguments: Any) -> Outcome:
    """Call a function of this module with the study and its folder, in a process of Ray."""
    try:
        study = load_study(file, sets)
        return Outcome(globals()[function](study, StudyFolder(open_store(root), study.name), *arguments))
    except UserError as error:
        return Outcome(error=error)


def node_place(study: Study, folder: StudyFolder) -> Capabilities:
    """Return the devices of this node."""
    return replace(local_capabilities(), name="the Ray cluster")


def node_plan(study: Study, folder: StudyFolder, keys: Sequence[RunKey], packing: dict[str, Any]) -> None:
    """Plan packs for some runs; the driver holds the study's claim."""
    refuse_too_large(study, resolve_runs(study, folder))
    add_plans(folder, _load_runs(folder, keys), study.sources, Packing(**packing))


def node_seconds_per_step(study: Study, folder: StudyFolder, arm: str) -> float:
    """Measure a train step of an arm on this node."""
    return seconds_per_step(study, arm, Callback())


def node_replicate(
    study: Study, folder: StudyFolder, sample: Sequence[RunKey], reused: Sequence[RunKey], packing: dict[str, Any]
) -> list[str]:
    """Train a sample of the reused runs again, and return the problem of each that disagrees."""
    replication = Replication(study, folder, Callback(), Packing(**packing))
    return replication.check(_load_runs(folder, sample), _load_runs(folder, reused))


def train_pack(study: Study, folder: StudyFolder, plan_id: str, profile: int) -> Trained:
    """Train a pack on this node, from its last checkpoint."""
    plan = next((plan for plan in stored_plans(folder) if plan.id == plan_id), None)
    if plan is None:
        return Trained(f"{platform.node()} does not see the pack plan in {folder.where}")
    pack = PackStore(folder).load_pack(plan)
    with _claimed(folder, pack):
        if not pack.unfinished:
            return Trained()
        error = StudyTrainer(folder, study.sources, Callback(), stored_sample(folder), profile).train(pack)
    if error is None:
        return Trained()
    failure = f"on {platform.node()}: {type(error).__name__}: {error}"
    return Trained(failure, out_of_memory(error))


def _load_runs(folder: StudyFolder, keys: Sequence[RunKey]) -> list[Run]:
    packs = PackStore(folder)
    return [packs.load_run(key) for key in keys]


@contextmanager
def _claimed(folder: StudyFolder, pack: Pack) -> Iterator[None]:
    """Hold a pack, waiting for the process that trained it before, which may just be ending."""
    until = time.monotonic() + HELD_SECONDS
    with ExitStack() as claim:
        while True:
            try:
                claim.enter_context(folder.claim_pack(pack.id))
                break
            except ClaimHeld:
                if time.monotonic() > until:
                    raise
                time.sleep(POLL_SECONDS)
        yield
