"""Train a study's packs as tasks of a Ray cluster: `taetpu run STUDY --on ray`.

The driver holds the study's claim, plans packs, and analyses; Ray places one task for each pack on a node with the
devices of its plan, and starts it again where the node or its process dies. Such a task resumes from the store, so
every node has to see the store, the study file and its data under the same paths (or the store in a bucket). Packs are
planned for the devices of the driver's host: start it on a machine like those that train.

Only Ray Core is used (tasks, resources, retries): https://docs.ray.io/en/latest/ray-core/tasks.html.
"""

import logging
import platform
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from taetpu.core.errors import Failed, UserError
from taetpu.spec.design import Study
from taetpu.store.address import address as bucket_address
from taetpu.store.keys import Held
from taetpu.store.study import StudyFolder
from taetpu.study.packs import halve, members, unfinished
from taetpu.study.trainer import Failure, missing_packs, run_steps
from taetpu.train.plan import Packing, PackPlan
from taetpu.train.watch import Watcher

RETRIES = 20
"""How often Ray starts a pack again whose node or process died."""
POLL_SECONDS = 0.5
CONNECT_SECONDS = 10.0
HELD_SECONDS = 120.0
"""How long a task waits for the claim of its forerunner, whose host may be gone."""


class PackFailed(Failed):
    """A pack failed on a node; the message is that of the exception there."""


@dataclass(frozen=True)
class Outcome:
    """What became of a pack on a node: an error's text or "", and whether it needs more memory than the node has."""

    error: str = ""
    out_of_memory: bool = False


@dataclass
class RayDriver:
    """A `Crew` of the nodes of a Ray cluster.

    Attributes:
        file, sets: the study as nodes load it.
        root: of the store, absolute.
    """

    folder: StudyFolder
    file: Path
    sets: tuple[str, ...]
    root: str
    tracks: bool = False
    running: dict[Any, PackPlan] = field(default_factory=dict)

    def claimed(self) -> AbstractContextManager[None]:
        """Hold the study's claim."""
        return self.folder.claim()

    def train(self, study: Study, watcher: Watcher, packing: Packing, profile: int) -> list[Failure]:
        """Train all packs on the cluster; on Ctrl-C tasks are cancelled, which leaves finished runs valid."""
        queue = missing_packs(study, self.folder, watcher, packing)
        wanted = {run.id: run for run in study.runs()}
        steps = {
            plan.id: sum(run_steps(run, study.sources) for run in members(self.folder, plan, wanted)) for plan in queue
        }
        watcher.begun(sum(steps.values()))
        for plan in queue:
            self.submit(plan, profile)
        failed, done, total = list[Failure](), 0, len(queue)
        try:
            while self.running:
                for plan, outcome in self.ended():
                    runs = members(self.folder, plan, wanted)
                    if outcome.out_of_memory and plan.width > 1:
                        halves = halve(self.folder, [plan])
                        total += len(halves) - 1
                        watcher.halved(runs, halves, MemoryError(outcome.error))
                        for half in halves:
                            self.submit(half, profile)
                        continue
                    done += 1
                    watcher.trained_elsewhere(done, total, runs, steps.get(plan.id, 0))
                    if outcome.error:
                        error = PackFailed(outcome.error)
                        failed.append(Failure(tuple(runs), error))
                        watcher.failed(runs, error)
                    else:
                        watcher.finished(runs)
        finally:
            self.cancel()
        return failed

    def submit(self, plan: PackPlan, profile: int) -> None:
        """Give Ray a pack to train.

        Raises:
            UserError: no node has the devices that it needs.
        """
        import ray

        needed = resources(plan, jax.default_backend())
        check_nodes(needed, [node["Resources"] for node in ray.nodes() if node["Alive"]])
        task = ray.remote(train_pack).options(
            name=f"taetpu {self.folder.name} {plan.id}", max_retries=RETRIES, **needed
        )
        self.running[task.remote(str(self.file), self.sets, self.root, plan.id, profile)] = plan

    def ended(self) -> Iterator[tuple[PackPlan, Outcome]]:
        """Yield packs that ended since the last call, waiting a moment for the first."""
        import ray
        from ray.exceptions import RayError

        ready, _ = ray.wait(list(self.running), num_returns=1, timeout=POLL_SECONDS)
        for reference in ready:
            plan = self.running.pop(reference)
            try:
                yield plan, ray.get(reference)
            except RayError as error:  # the node or its process died too often, or the task cannot run
                yield plan, Outcome(f"Ray gave the pack up: {error}")

    def cancel(self) -> None:
        """End all tasks that run."""
        import ray
        from ray.exceptions import RayError

        for reference in self.running:
            with suppress(RayError, ValueError):
                ray.cancel(reference, force=True)
        self.running.clear()


def resources(plan: PackPlan, backend: str) -> dict[str, Any]:
    """Return the resources of Ray that a pack needs: its devices, by the platform that it was planned for."""
    if backend == "tpu":
        return {"num_cpus": 1, "resources": {"TPU": plan.devices}}
    if backend == "gpu":
        return {"num_cpus": 1, "num_gpus": plan.devices}
    return {"num_cpus": plan.devices}


def check_nodes(needed: Mapping[str, Any], nodes: Sequence[Mapping[str, float]]) -> None:
    """Raise `UserError` where no node has what a pack needs: Ray would wait for one without end."""
    wanted = {"CPU": needed["num_cpus"], "GPU": needed.get("num_gpus", 0), **needed.get("resources", {})}
    if any(all(node.get(name, 0) >= number for name, number in wanted.items()) for node in nodes):
        return
    missing = ", ".join(f"{number:g} {name}" for name, number in wanted.items() if number)
    problem = f"no node of the Ray cluster has what a pack needs: {missing}"
    remedy = "Add such a node, or start the driver on a host like the nodes: packs are planned for its devices."
    raise UserError(problem, path=("--on",), remedy=remedy)


def train_pack(file: str, sets: Sequence[str], root: str, plan_id: str, profile: int) -> Outcome:
    """Train a pack on this node, from its last checkpoint; runs in a process of Ray."""
    from taetpu.core.runtime import prepare_jax

    prepare_jax()
    from taetpu.spec.loading import load_study
    from taetpu.store.backend import open_store
    from taetpu.study.packs import stored_plans
    from taetpu.study.trainer import Packs, stored_sample
    from taetpu.train.memory import out_of_memory

    try:
        study = load_study(file, sets)
        folder = StudyFolder(open_store(root), study.name)
        plans = {plan.id: plan for plan in stored_plans(folder)}
        if plan_id not in plans:
            return Outcome(f"{platform.node()} does not see the pack plan in {folder.where}")
        plan = plans[plan_id]
        with _claimed(folder, plan):
            if not unfinished(folder, plan):
                return Outcome()
            trainer = Packs(study.sources, folder, Watcher(), {}, stored_sample(folder), profile)
            error = trainer.train(plan)
    except UserError as problem:
        return Outcome(f"on {platform.node()}: {problem}")
    if error is None:
        return Outcome()
    return Outcome(f"on {platform.node()}: {type(error).__name__}: {error}", out_of_memory(error))


@contextmanager
def _claimed(folder: StudyFolder, plan: PackPlan) -> Iterator[None]:
    """Hold a pack, waiting for the process that trained it before, which may just be ending."""
    until = time.monotonic() + HELD_SECONDS
    with ExitStack() as claim:
        while True:
            try:
                claim.enter_context(folder.claim_pack(plan.id))
                break
            except Held:
                if time.monotonic() > until:
                    raise
                time.sleep(POLL_SECONDS)
        yield


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Connect to a Ray cluster for a `with` block; without an address to a running one, else to a new local one.

    Raises:
        UserError: Ray is not installed, or the cluster does not answer.
    """
    try:
        import ray
    except ImportError:
        raise UserError("ray is not installed", remedy="pip install 'taetpu[ray]'") from None
    try:
        _check_answers(address or "")
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        remedy = "Start it with `ray start --head`, and name HOST:6379."
        raise UserError(f"no Ray cluster at {address}: {error}", path=("--address",), remedy=remedy) from None
    try:
        yield
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Raise `OSError` where nobody listens at an address HOST:PORT: Ray itself tries for minutes, and can hang."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()


def shared_root(root: str) -> str:
    """Return the root of a store as nodes address it: a bucket, or an absolute path."""
    return root if bucket_address(root) else str(Path(root).expanduser().resolve())
