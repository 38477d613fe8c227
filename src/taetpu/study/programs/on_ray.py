"""Running the programs of a study as tasks of a Ray cluster: `taetpu run STUDY --on ray`.

The driver holds the study's claim, shows the progress and analyses the results. Each run is a task that requests what
`program.each` says, and runs one attempt in the same way as a thread of `pool.MachinePool`. All nodes need the study's
folder, the working folder and the inputs under the same paths. Neither the driver nor a task imports JAX.

If a node or a worker dies, the driver submits the run again. Ray's own restarts are off, because Ray would not report
them, and would restart programs that exceeded a node's memory without end.
"""

import platform
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from taetpu.core.errors import UserError, change_errors
from taetpu.programs.process import Process
from taetpu.spec.programs.inputs import input_digests
from taetpu.spec.programs.program_config import EachConfig
from taetpu.spec.programs.study import ProgramRun, ProgramStudy
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.claiming import waiting_claim
from taetpu.study.programs.attempt import Ended, Slot, fill_command, run_attempt
from taetpu.study.programs.events import Events
from taetpu.study.programs.machine import visible_gpus
from taetpu.study.programs.pool import TICK, Message, Pool
from taetpu.study.programs.run_files import RunFiles
from taetpu.study.ray_cluster import HELD_SECONDS, RETRIES, live_nodes

WORKER = {"env_vars": {"RAY_kill_child_processes_on_worker_exit": "0"}}
"""The runtime environment of tasks. A Ray process that ends would kill the supervisor of its program, but not the
processes of the program. Without this, the supervisor stops all of them.

Source: https://docs.ray.io/en/latest/ray-core/user-spawn-processes.html
"""
RESOURCES = {"gpus": ("GPU", "GPUs"), "cpus": ("CPU", "CPUs"), "memory": ("memory", "bytes of memory")}
"""Ray's name and the unit of each key of `program.each`."""


@dataclass
class RayPool(Pool):
    """Runs programs as tasks of a Ray cluster.

    Attributes:
        tasks: the run of each task that has not ended, by Ray's generator of the task's messages.
        restarts: the number of restarts of each run, by its ID.
    """

    tasks: dict[Any, ProgramRun] = field(default_factory=dict)
    restarts: Counter[str] = field(default_factory=Counter)

    def begin(self, runs: Sequence[ProgramRun]) -> None:
        """Submit a task for each run. Ray starts as many as the cluster fits."""
        for run in runs:
            self.submit(run)

    def submit(self, run: ProgramRun) -> None:
        """Submit the task of a run."""
        import ray

        needs = {name: number for name, (number, _) in _needs(self.study.program.each).items()}
        options = {"num_gpus": needs.pop("GPU", 0), "num_cpus": needs.pop("CPU", 0), **needs, "runtime_env": WORKER}
        task: Any = ray.remote(num_returns="streaming", max_retries=0, **options)(run_task)
        study = self.study.changed(trackers={})
        root = str(Path(self.folder.where).resolve().parent)
        self.tasks[task.options(name=f"taetpu {run.title}").remote(study, root, self.folder.name, run)] = run

    def is_busy(self) -> bool:
        """Return whether tasks are left."""
        return bool(self.tasks)

    def receive(self) -> Iterator[Message]:
        """Yield the next message of a task. Submit the run of a task again whose node or process died."""
        import ray
        from ray.exceptions import NodeDiedError, RayError, WorkerCrashedError

        ready: list[Any] = ray.wait(list(self.tasks), num_returns=1, timeout=TICK)[0]
        for task in ready:
            run = self.tasks[task]
            try:
                message: Any = ray.get(next(task))
                yield message
            except StopIteration:
                del self.tasks[task]
            except RayError as error:
                del self.tasks[task]
                if isinstance(cause := getattr(error, "cause", None), UserError):
                    self.ending.set()
                    self.cancel([waiting for waiting, run in self.tasks.items() if run.id not in self.running])
                    yield "error", run, cause
                elif isinstance(error, (NodeDiedError, WorkerCrashedError)) and not self.ending.is_set():
                    yield from self.restart(run)
                else:
                    reason = str(cause or error).partition("\n")[0]
                    yield "ended", run, Ended("", f"ended by Ray: {reason}", stopped=self.ending.is_set())

    def restart(self, run: ProgramRun) -> Iterator[Message]:
        """Submit a run whose task died, or yield its end after `RETRIES` restarts."""
        self.restarts[run.id] += 1
        if self.restarts[run.id] > RETRIES:
            yield "ended", run, Ended("", f"its node or its Ray process died {self.restarts[run.id]} times")
            return
        self.running.pop(run.id, None)
        self.events.on_restart(run)
        self.submit(run)

    def cancel(self, tasks: Sequence[Any]) -> None:
        """Cancel tasks. Their programs are stopped with SIGTERM, and after their grace period with SIGKILL."""
        import ray

        for task in tasks:
            ray.cancel(task)

    def stop(self) -> None:
        """Stop all programs with SIGTERM, and after their grace period with SIGKILL. A second Ctrl-C ends the wait."""
        self.ending.set()
        self.cancel([*self.tasks])
        while self.tasks:
            for _ in self.receive():
                pass


def require_needs(study: ProgramStudy) -> None:
    """Raise `UserError` if a study does not say what a run needs, by which a cluster places runs."""
    if not _needs(study.program.each):
        problem = "a Ray cluster places runs by what each of them needs, and the study does not say it"
        remedy = "Write e.g. `each: {cpus: 1}` or `each: {gpus: 1, cpus: 4}`."
        raise study.document.locate(UserError(problem, path=("program", "each"), remedy=remedy))


def ray_pool(study: ProgramStudy, folder: StudyFolder, runs: int, events: Events) -> Pool:
    """Return a pool of the connected Ray cluster for a number of runs.

    Raises:
        UserError: If no node has what a run needs.
    """
    with change_errors(study.document.locate):
        return RayPool(study, folder, events, cluster_slots(study.program.each, live_nodes(), runs))


def _needs(each: EachConfig | None) -> dict[str, tuple[int, str]]:
    """Return the number and the key in `program.each` of what each run needs, by Ray's name."""
    needs = {name: (getattr(each, key, None), key) for key, (name, _) in RESOURCES.items()}
    return {name: (number, key) for name, (number, key) in needs.items() if number is not None}


def cluster_slots(each: EachConfig | None, nodes: Sequence[Mapping[str, float]], runs: int) -> int:
    """Return how many of a number of runs a cluster runs at once.

    Args:
        each: what each run needs, at least one number.
        nodes: the resources of each node by Ray's names.
        runs: the number of runs.

    Raises:
        UserError: If no node has what a run needs.
    """
    needs, path = _needs(each), ("program", "each")
    for name, (number, key) in needs.items():
        most = int(max((node.get(name, 0) for node in nodes), default=0))
        if number > most:
            unit = RESOURCES[key][1]
            problem = f"each run needs {number:,} {unit}, and no node of the Ray cluster has more than {most:,}"
            fewer = f"Use at most {most}, or add" if most else "Add"
            raise UserError(problem, path=(*path, key), remedy=f"{fewer} a node that has them.")
    fits = sum(min(int(node.get(name, 0) // number) for name, (number, _) in needs.items()) for node in nodes)
    if not fits:
        together = " and ".join(f"{number:,} {RESOURCES[key][1]}" for number, key in needs.values())
        problem = f"each run needs {together}, and no node of the Ray cluster has them together"
        raise UserError(problem, path=path, remedy="Use smaller numbers, or add a node.")
    return max(1, min(fits, runs))


# --- tasks, which run on the nodes ------------------------------------------------------------------------------------


def run_task(study: ProgramStudy, root: str, name: str, run: ProgramRun) -> Iterator[Message]:
    """Run the program of a run on this node, unless it is done. Yield the messages of its start and its end.

    Raises:
        UserError: If this node lacks the study's files, the program cannot be started, or the run is claimed.
    """
    folder = StudyFolder(open_store(root), name)
    check_node(study, folder)
    record, each = folder.run(run.arm, run.seed, run.id), study.program.each or EachConfig()
    gpus = None if each.gpus is None else tuple(visible_gpus())
    slot = Slot(gpus=gpus, memory=each.memory, node=platform.node(), locks=gpu_locks(gpus or ()))
    files = RunFiles(folder, record)
    with waiting_claim(partial(folder.claim_pack, run.id), lambda reason: None, HELD_SECONDS):
        if record.status() == "done":
            return
        yield "started", run, slot, fill_command(study, run, files.path).words, record.where
        before = signal.getsignal(signal.SIGINT)  # which Ray calls if the task is cancelled
        try:
            yield "ended", run, run_attempt(study, run, files, slot, _stop_if_cancelled)
        finally:
            signal.signal(signal.SIGINT, before)


def _stop_if_cancelled(process: Process, words: Sequence[str]) -> None:
    signal.signal(signal.SIGINT, lambda *_: process.stop())


def check_node(study: ProgramStudy, folder: StudyFolder) -> None:
    """Raise `UserError` if this node lacks the study's folder, or has other inputs than the driver."""
    shared = "Use a folder that all nodes have under the same path."
    if not folder.exists():
        problem = f"node {platform.node()} does not have the study's folder {folder.where}"
        raise UserError(problem, path=("--root",), remedy=shared)
    try:
        inputs = input_digests(study.program, study.cwd, {})
    except UserError:
        inputs = {}
    if other := sorted(name for name in {**study.inputs, **inputs} if inputs.get(name) != study.inputs.get(name)):
        problem = f"node {platform.node()} has not the same {other[0]} in {study.cwd} as the driver"
        raise study.document.locate(UserError(problem, path=("program", "inputs"), remedy=shared))


def gpu_locks(gpus: Sequence[str]) -> tuple[Path, ...]:
    """Return a file for each GPU of this node.

    Its lock keeps the next program off the GPU until the program of a killed Ray process has ended.
    """
    import ray

    folder = Path(tempfile.gettempdir()) / f"taetpu-{ray.get_runtime_context().get_node_id()}"
    folder.mkdir(exist_ok=True)
    return tuple(folder / gpu.replace("/", "-") for gpu in gpus)
