"""Training in several processes, usually on several hosts. The primary process decides, and all processes follow.

All processes run the same program on the same devices, `jax.devices()`. If there is only one process, this module adds
no cost.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from taetpu.core.errors import Failed, StudyFailed, UserError

MIN_FRAME_BYTES = 1024  # size of a short broadcast; longer broadcasts are padded to a power of two
AUTO = "auto"
SHUTDOWN_SECONDS = 20  # time for which processes wait for each other when they end

T = TypeVar("T")


class PeerFailed(StudyFailed):
    """Another process failed in a step that all processes take. The output of that process contains the reason."""


class LocalFailure(StudyFailed):
    """A failure of this process alone, between collectives. Afterwards, the processes cannot continue together."""


@dataclass(frozen=True)
class Cluster:
    """The settings with which processes connect to each other.

    Attributes:
        coordinator: `host:port` of the primary process, or `auto` to detect its address (on Cloud TPU, Slurm, Open MPI
            and Kubernetes).
        processes: The number of processes.
        process: The index of this process, from 0.
    """

    coordinator: str
    processes: int | None = None
    process: int | None = None

    def check(self) -> None:
        """Raise `UserError` if a value is missing or invalid."""
        if self.coordinator == AUTO:
            return
        host, _, port = self.coordinator.rpartition(":")
        if not host or not (port.isascii() and port.isdecimal()):
            problem = f"`--coordinator` must be auto or HOST:PORT, got {self.coordinator!r}"
            raise UserError(problem, path=("--coordinator",), remedy="Use auto, or e.g. 10.0.0.2:1234.")
        if self.processes is None or self.process is None:
            remedy = "Add --processes N --process I, with I from 0 to N - 1, or use --coordinator auto."
            raise UserError("`--coordinator HOST:PORT` requires --processes and --process", remedy=remedy)
        if not 0 <= self.process < self.processes:
            problem = f"`--process` must be from 0 to {self.processes - 1}, got {self.process}"
            raise UserError(problem, path=("--process",))


JOINED: list[Cluster] = []
"""A list with the cluster that this process has joined; empty if it has joined no cluster."""


@contextmanager
def join_cluster(cluster: Cluster | None) -> Iterator[None]:
    """Join a cluster for a `with` block. Enter the block before jax is first used.

    At the end of the block, all processes wait for each other. If one process fails alone, it ends immediately. The
    other processes end at their next collective, or at the latest when they miss the heartbeat of the failed process.

    Raises:
        UserError: if the cluster's settings are incomplete, or if the other processes cannot be reached.
    """
    if cluster is None:
        yield
        return
    cluster.check()
    jax.config.update("jax_enable_preemption_service", False)  # it would prevent SIGTERM from ending the process
    address = None if cluster.coordinator == AUTO else cluster.coordinator
    try:
        jax.distributed.initialize(
            address, cluster.processes, cluster.process, shutdown_timeout_seconds=SHUTDOWN_SECONDS
        )
    except (ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        remedy = "Check the address, and start as many processes as --processes says, each with a different --process."
        raise UserError(f"the processes cannot connect to each other: {reason}", remedy=remedy) from None
    JOINED.append(cluster)
    try:
        yield
    except BaseException as error:
        if local := find_local_failure(error):
            _leave(str(local), Failed.exit_code)
        if isinstance(error, Exception) and not isinstance(error, UserError | Failed):
            _leave(traceback.format_exc(), 1)
        jax.distributed.shutdown()  # the error was raised in every process, or between collectives
        raise
    jax.distributed.shutdown()


def _leave(message: str, code: int) -> NoReturn:
    """End this process immediately. An orderly shutdown would wait for ended processes and then abort."""
    with suppress(OSError):  # stderr may be closed
        sys.stderr.write(f"{message}\n")
        sys.stderr.flush()
    os._exit(code)


def multi_process() -> bool:
    """Return whether several processes train together."""
    return jax.process_count() > 1


def require_joined() -> None:
    """Raise `UserError` if several processes were connected without `join_cluster`.

    Without `join_cluster`, they would not follow the primary process.
    """
    if multi_process() and not JOINED:
        remedy = "Start `taetpu run --coordinator` in every process, or do not call jax.distributed.initialize."
        problem = f"taetpu.run trains in one process, but jax has {jax.process_count()} processes"
        raise UserError(problem, remedy=remedy)


def is_primary() -> bool:
    """Return whether this is the primary process, which plans, reads and writes."""
    return jax.process_index() == 0


def any_process(*flags: bool, number: int = 0) -> tuple[Any, ...]:
    """Return, for each flag, whether any process sets it, then the primary process's `number`. Use one collective."""
    if not multi_process():
        return *flags, number
    gathered = np.asarray(multihost_utils.process_allgather(np.array([*flags, number], np.int32)))
    return *np.any(gathered[:, :-1], axis=0).tolist(), int(gathered[0, -1])


def in_every_process(fn: Callable[[], T]) -> T:
    """Return `fn()`, in a step that succeeds in all processes or in none.

    Raises:
        PeerFailed: if `fn` raised an exception only in another process. An exception in this process is re-raised.
    """
    try:
        result = fn()
    except Exception:
        any_process(True)
        raise
    if any_process(False)[0]:
        raise PeerFailed("another process failed; its output has the reason")
    return result


def on_primary(fn: Callable[[], None]) -> None:
    """Call `fn` in the primary process. Raise the same errors as `in_every_process`."""
    in_every_process(fn if is_primary() else lambda: None)


@contextmanager
def raise_local_failure() -> Iterator[None]:
    """Convert an exception that only this process raises to a `LocalFailure`.

    The other processes may be waiting for this process in a collective. `UserError` and `Failed` are not converted,
    because all processes raise them in the same step.
    """
    try:
        yield
    except (UserError, Failed):
        raise
    except BaseException as error:  # including `SystemExit`, which a display raises if its output is closed
        if not multi_process() or isinstance(error, KeyboardInterrupt):  # all processes raise it together
            raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        problem = f"process {jax.process_index()} of {jax.process_count()} failed: {reason}"
        raise LocalFailure(f"{problem}\nRun the same command in every process again to resume.") from error


def find_local_failure(error: BaseException | None) -> LocalFailure | None:
    """Return the first `LocalFailure` in an exception's chain, or None if there is none.

    An exception that is raised while a progress display closes has the `LocalFailure` as its cause or context.
    """
    while error is not None and not isinstance(error, LocalFailure):
        error = error.__cause__ or error.__context__
    return error


def broadcast(value: Any = None) -> Any:
    """Return the primary process's value in every process. The value must be serializable as JSON."""
    if not multi_process():
        return value
    message = json.dumps(value).encode() if is_primary() else b""
    length = any_process(number=len(message))[-1]
    frame = np.zeros(max(MIN_FRAME_BYTES, 1 << length.bit_length()), np.uint8)  # jax compiles a program for each size
    frame[: len(message)] = np.frombuffer(message, np.uint8)
    received = np.asarray(multihost_utils.broadcast_one_to_all(frame)).astype(np.uint8)
    return json.loads(received.tobytes()[:length])


def to_host(array: Any) -> np.ndarray:
    """Copy an array to the host. Every process must call this, because other processes may hold some of the shards."""
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return np.asarray(multihost_utils.process_allgather(array, tiled=True))
    return np.asarray(array)


def to_devices(tree: Any, sharding: jax.sharding.Sharding) -> Any:
    """Copy host arrays to devices. If there are several processes, each process copies only its shards."""
    if not multi_process():
        return jax.device_put(tree, sharding)
    return jax.tree.map(lambda a: jax.make_array_from_callback(a.shape, sharding, lambda index: a[index]), tree)
