"""Training a study's packs as tasks of a Ray cluster: `taetpu run STUDY --on ray`.

The driver holds the study's claim, checks the arms and analyses the results. It uses only the CPU, since the tasks need
the accelerators. Work that depends on devices (planning packs, timing steps, verifying reused runs) runs as a task with
all devices of one node. Each pack is a separate task, which Ray places on a node with the devices that its plan
requires. If the node or the process dies, Ray restarts the task, which resumes from the store. Every node therefore
needs the store (or access to its bucket), the study file and its data under the same paths.

Only Ray Core is used (tasks, resources and retries): https://docs.ray.io/en/latest/ray-core/tasks.html.
"""

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax

from taetpu.core.errors import Failed, UserError
from taetpu.core.jax_setup import call_prepared
from taetpu.spec.resolved_study import RunKey, Sources, Study
from taetpu.spec.sets import Sets
from taetpu.store.backend import open_store
from taetpu.store.gcs_client import parse_address as bucket_address
from taetpu.store.study import StudyFolder
from taetpu.study.claiming import waiting_claim
from taetpu.study.executor import Executor
from taetpu.study.loading import load_study
from taetpu.study.matching import seconds_per_step
from taetpu.study.outcome import Failure
from taetpu.study.pack_store import PackStore, resolve_runs, stored_plans
from taetpu.study.pack_training import StudyTrainer, missing_packs, run_steps, stored_sample
from taetpu.study.ray_cluster import HELD_SECONDS, RETRIES, live_nodes
from taetpu.study.reuse import Replication
from taetpu.study.validate import refuse_too_large
from taetpu.train.callbacks import Callback
from taetpu.train.device_capabilities import Capabilities, local_capabilities
from taetpu.train.layout import Packing
from taetpu.train.memory import out_of_memory
from taetpu.train.pack_plan import Pack, Run

ENDED_SECONDS = 0.5
"""Seconds for which one call waits for a pack to end. Ctrl-C is handled between the calls."""


class PackFailed(Failed):
    """A task failed on a node. The message contains the error of the node or of Ray."""


@dataclass(frozen=True)
class Trained:
    """The outcome of training a pack on a node: its error ("" on success), and whether the node ran out of memory."""

    error: str = ""
    out_of_memory: bool = False


@dataclass
class RayExecutor(Executor):
    """Trains packs on the nodes of a Ray cluster.

    Attributes:
        file: the study file that the nodes load.
        sets: the changes to the baseline, as in `taetpu.run`.
        root: the bucket or absolute path of the store.
        platform: the JAX backend of the node that `place` describes: `tpu`, `gpu` or `cpu`.
        node: Ray resources that reserve all devices of this node.
        running: the packs that are being trained, by Ray's reference to their task.
    """

    live: bool = False
    file: Path = Path()
    sets: Sets = ()
    root: str = ""
    platform: str = "cpu"
    node: dict[str, Any] = field(default_factory=dict)
    running: dict[Any, Pack] = field(default_factory=dict)

    @contextmanager
    def ready(self, study: Study, packing: Packing, profile: int) -> Iterator[None]:
        """Start nothing: the cluster trains the packs."""
        yield

    def find_devices(self) -> None:
        """Choose a node for the tasks that depend on devices, and query its devices."""
        self.platform, self.node = whole_node(live_nodes())
        self.place = self.ask(node_place)

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function on a node with all devices of the node, and return the function's result.

        Raises:
            UserError: if the function raised a `UserError` on the node.
            PackFailed: if the task failed for another reason.
        """
        import ray
        from ray.exceptions import RayError

        try:
            return ray.get(self.submit_call(self.node, function, *arguments))
        except RayError as error:  # the node died too often, or the function failed
            if isinstance(cause := getattr(error, "cause", None), UserError):
                raise cause from None
            raise PackFailed(f"Ray ended {function.__name__}: {error}") from None

    def submit_call(self, needed: Mapping[str, Any], function: Callable[..., Any], *arguments: Any) -> Any:
        """Submit a task that needs the given resources. On accelerators, the process ends together with the task."""
        import ray

        task: Any = ray.remote(call_prepared) if self.platform == "cpu" else ray.remote(max_calls=1)(call_prepared)
        task = task.options(name=f"taetpu {self.folder.name} {function.__name__}", max_retries=RETRIES, **needed)
        on_cpu = set(needed) == {"num_cpus"}
        study = str(self.file), self.sets, self.root
        return task.remote(on_cpu, on_node.__module__, on_node.__name__, function.__name__, *study, *arguments)

    @contextmanager
    def claim_now(self) -> Iterator[None]:
        """Hold the study's claim without waiting for tasks that a killed driver left running."""
        with self.folder.claim():
            yield

    def seconds_per_step(self, study: Study, arm: str, callback: Callback) -> float:
        """Return the seconds per train step of one run of an arm, measured on a node."""
        callback.on_wait(f"a node is measuring arm {arm}")
        seconds = self.ask(node_seconds_per_step, arm)
        callback.on_wait("")
        return seconds

    def replicate(
        self, sample: Sequence[Run], reused: Sequence[Run], study: Study, callback: Callback, packing: Packing
    ) -> list[str]:
        """Train a sample of the reused runs again on a node; see `Replication`."""
        keys = [[run.key for run in runs] for runs in (sample, reused)]
        return self.ask(node_replicate, *keys, asdict(packing)) if sample else []

    def train(
        self, runs: Sequence[Run], sources: Sources, callback: Callback, packing: Packing, profile: int
    ) -> list[Failure]:
        """Train all packs on the cluster. Ctrl-C cancels the running tasks; finished runs remain valid."""
        packs = PackStore(self.folder, runs)
        if new := packs.start_unplanned():
            callback.on_wait("a node is planning packs")
            self.ask(node_plan, [run.key for run in new], asdict(packing))
            callback.on_wait("")
        queue = missing_packs(packs, callback, packing)
        steps = {pack.id: sum(run_steps(run, sources) for run in pack.runs) for pack in queue}
        callback.on_train_begin(sum(steps.values()))
        for pack in queue:
            self.submit(pack, profile)
        failed, done, total = list[Failure](), 0, len(queue)
        try:
            while self.running:
                for pack, outcome in self.ended_packs():
                    if outcome.out_of_memory and pack.plan.width > 1:
                        halves = packs.halve(pack)
                        total += len(halves) - 1
                        callback.on_pack_split(pack.runs, [half.plan for half in halves], MemoryError(outcome.error))
                        for half in halves:
                            self.submit(half, profile)
                        continue
                    done += 1
                    callback.on_remote_pack_end(done, total, pack.runs, steps.get(pack.id, 0))
                    if outcome.error:
                        error = PackFailed(outcome.error)
                        failed.append(Failure(pack.runs, error))
                        callback.on_pack_failed(pack.runs, error)
                    else:
                        callback.on_pack_end(pack.runs)
        finally:
            self.cancel()
        return failed

    def submit(self, pack: Pack, profile: int) -> None:
        """Submit a pack.

        Raises:
            UserError: if no node has the devices that the pack needs.
        """
        needed = resources(pack.plan.platform or self.platform, pack.plan.layout.devices)
        check_nodes(needed, live_nodes())
        self.running[self.submit_call(needed, train_pack, pack.id, profile)] = pack

    def ended_packs(self) -> Iterator[tuple[Pack, Trained]]:
        """Wait up to `ENDED_SECONDS` for a pack to end. Yield the finished packs with their outcomes."""
        import ray
        from ray.exceptions import RayError

        ready, _ = ray.wait(list(self.running), num_returns=1, timeout=ENDED_SECONDS)
        for reference in ready:
            pack = self.running.pop(reference)
            try:
                yield pack, ray.get(reference)
            except RayError as error:  # the node or its process died too often, or the task cannot run
                cause = getattr(error, "cause", None)
                yield pack, Trained(str(cause) if isinstance(cause, UserError) else f"Ray ended the pack: {error}")

    def cancel(self) -> None:
        """Cancel all running tasks."""
        import ray
        from ray.exceptions import RayError

        for reference in self.running:
            with suppress(RayError, ValueError):
                ray.cancel(reference, force=True)
        self.running.clear()


def resources(backend: str, devices: int) -> dict[str, Any]:
    """Return the Ray resources that reserve a number of devices of a JAX backend."""
    if backend == "tpu":
        return {"num_cpus": 1, "resources": {"TPU": devices}}
    return {"num_cpus": 1, "num_gpus": devices} if backend == "gpu" else {"num_cpus": devices}


def whole_node(nodes: Sequence[Mapping[str, float]]) -> tuple[str, dict[str, Any]]:
    """Return a JAX backend, and the Ray resources that reserve all devices of this backend on one node.

    The backend is `tpu` if the cluster has TPU chips, else `gpu` if it has GPUs, else `cpu`.
    """
    most = {name: max((int(node.get(name.upper(), 0)) for node in nodes), default=0) for name in ("tpu", "gpu", "cpu")}
    backend = next((name for name, devices in most.items() if devices), "cpu")
    return backend, resources(backend, max(1, most[backend]))


def check_nodes(needed: Mapping[str, Any], nodes: Sequence[Mapping[str, float]]) -> None:
    """Raise `UserError` if no node has the resources that a pack needs. Ray would wait forever for such a node."""
    wanted = {"CPU": needed["num_cpus"], "GPU": needed.get("num_gpus", 0), **needed.get("resources", {})}
    if any(all(node.get(name, 0) >= number for name, number in wanted.items()) for node in nodes):
        return
    missing = ", ".join(f"{number:g} {name}" for name, number in wanted.items() if number)
    problem = f"no node of the Ray cluster has the resources of a pack: {missing}"
    remedy = "Add a node with these resources, or give the study another name so that its packs are planned again."
    raise UserError(problem, path=("--on",), remedy=remedy)


def refuse_accelerator() -> None:
    """Configure JAX to use the CPU in this process, since the tasks need the accelerators.

    Raises:
        UserError: if this process already holds an accelerator.
    """
    jax.config.update("jax_platforms", "cpu")
    if (backend := jax.default_backend()) != "cpu":
        problem = f"this process holds the {backend}, which the Ray tasks need"
        raise UserError(problem, path=("--on",), remedy="Run the study in a new process, before JAX is used.")


def shared_root(root: str) -> str:
    """Return the address of a store that all nodes can use: a bucket or an absolute path."""
    return root if bucket_address(root) else str(Path(root).expanduser().resolve())


# --- tasks, which run on the nodes ------------------------------------------------------------------------------------


def on_node(function: str, file: str, sets: Sets, root: str, *arguments: Any) -> Any:
    """Call a function of this module with the study and its folder, in a Ray process."""
    study = load_study(file, sets)
    return globals()[function](study, StudyFolder(open_store(root), study.name), *arguments)


def node_place(study: Study, folder: StudyFolder) -> Capabilities:
    """Return the capabilities of this node's devices."""
    return replace(local_capabilities(), name="the Ray cluster")


def node_plan(study: Study, folder: StudyFolder, keys: Sequence[RunKey], packing: dict[str, Any]) -> None:
    """Plan packs for the given runs. The driver holds the study's claim."""
    refuse_too_large(study, resolve_runs(study, folder))
    PackStore(folder, _load_runs(folder, keys)).plan(study.sources, Packing(**packing))


def node_seconds_per_step(study: Study, folder: StudyFolder, arm: str) -> float:
    """Return the seconds per train step of one run of an arm, measured on this node."""
    return seconds_per_step(study, arm, Callback())


def node_replicate(
    study: Study, folder: StudyFolder, sample: Sequence[RunKey], reused: Sequence[RunKey], packing: dict[str, Any]
) -> list[str]:
    """Train a sample of the reused runs again. Return one message for each run whose results disagree."""
    replication = Replication(study, folder, Callback(), Packing(**packing))
    return replication.check(_load_runs(folder, sample), _load_runs(folder, reused))


def train_pack(study: Study, folder: StudyFolder, plan_id: str, profile: int) -> Trained:
    """Train a pack on this node, starting from its last checkpoint."""
    plan = next((plan for plan in stored_plans(folder) if plan.id == plan_id), None)
    if plan is None:
        return Trained(f"{platform.node()} cannot find the pack's plan in {folder.where}")
    pack = PackStore(folder).load_pack(plan)
    began = time.monotonic()
    with waiting_claim(partial(folder.claim_pack, pack.id), Callback().on_wait, HELD_SECONDS):
        if not pack.unfinished:
            return Trained()
        trainer = StudyTrainer(folder, study.sources, Callback(), stored_sample(folder), profile)
        error = trainer.train(pack, waited=time.monotonic() - began)
    if error is None:
        return Trained()
    return Trained(f"on {platform.node()}: {type(error).__name__}: {error}", out_of_memory(error))


def _load_runs(folder: StudyFolder, keys: Sequence[RunKey]) -> list[Run]:
    packs = PackStore(folder)
    return [packs.load_run(key) for key in keys]
