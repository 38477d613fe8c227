"""Several processes, usually on several hosts, that train together: every one takes each step, the first one decides.

All run the same program on the same devices, `jax.devices()`. What depends on a clock or on a disk the first process
finds out, and the others are told. Alone, a process decides for itself, and nothing here costs anything.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from taetpu.core.errors import Failed, UserError

T = TypeVar("T")
FRAME = 1024  # bytes of a message's first part, which says how long it is; the rest is filled up to a power of two
AUTO = "auto"
PATIENCE = 20  # seconds that processes wait for each other when they end

_ALONE: ContextVar[bool] = ContextVar("alone", default=False)  # is the first one doing what the others do not?


class Parted(Failed):
    """Something failed in this process which need not have in the others: they cannot go on together."""


@dataclass(frozen=True)
class Cluster:
    """How processes find each other.

    Attributes:
        coordinator: `host:port` of the first, or `auto`: as the cluster's environment says (Cloud TPU, SLURM, Open MPI,
            Kubernetes).
        processes, process: how many there are, and which this one is, from 0.
    """

    coordinator: str
    processes: int | None = None
    process: int | None = None

    def check(self) -> None:
        """Raise `UserError` where something is missing or cannot be."""
        if self.coordinator == AUTO:
            return
        host, _, port = self.coordinator.rpartition(":")
        if not host or not (port.isascii() and port.isdecimal()):
            problem = f"{self.coordinator!r} is no address"
            raise UserError(problem, path=("--coordinator",), remedy="auto, or host:port, e.g. 10.0.0.2:1234")
        if self.processes is None or self.process is None:
            remedy = "--processes N --process I, I from 0 to N - 1; or --coordinator auto"
            raise UserError("how many processes there are, and which this one is, is not said", remedy=remedy)
        if not 0 <= self.process < self.processes:
            problem = f"{self.process} is none of {self.processes} processes"
            raise UserError(problem, path=("--process",), remedy=f"from 0 to {self.processes - 1}")


@contextmanager
def joined(cluster: Cluster | None) -> Iterator[None]:
    """Be one of several processes for a `with` block, which is to be entered before jax is first used.

    At the end all wait for each other. Where one fails it ends at once, and the others do when they next need it, at
    the latest when its heartbeat is missed.

    Raises:
        UserError: the cluster is not described, or the others cannot be found.
    """
    if cluster is None:
        yield
        return
    cluster.check()
    jax.config.update("jax_enable_preemption_service", False)  # it would keep SIGTERM from ending the process
    address = None if cluster.coordinator == AUTO else cluster.coordinator
    try:
        jax.distributed.initialize(address, cluster.processes, cluster.process, shutdown_timeout_seconds=PATIENCE)
    except (ValueError, RuntimeError) as error:
        told = str(error).splitlines()[0]
        remedy = "start as many processes as are said, each with its own number; or name --coordinator host:port"
        raise UserError(f"the processes do not find each other: {told}", remedy=remedy) from None
    try:
        yield
    except (UserError, KeyboardInterrupt):  # as in every process
        jax.distributed.shutdown()
        raise
    except Exception as error:
        # Not as in the others, which may be gone, or wait for this one: to take leave of them would end in an abort.
        if isinstance(error, Parted):
            sys.stderr.write(f"{error}\n")
        else:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(Parted.exit_code if isinstance(error, Parted) else 1)
    jax.distributed.shutdown()


def several() -> bool:
    """Do several processes train together?"""
    return jax.process_count() > 1


def is_first() -> bool:
    """Is this the process that decides, and writes?"""
    return jax.process_index() == 0


def agreed(fn: Callable[[], T]) -> T:
    """`fn()` of the first process, told to all; it must be JSON, or bytes. Every process has to ask.

    Raises:
        UserError: where `fn` does in the first process, all do.
    """
    if _ALONE.get() or not several():
        return fn()
    if not is_first():
        return _heard(_broadcast(b""))
    token = _ALONE.set(True)
    try:
        found = fn()
        told = b"b" + found if isinstance(found, bytes) else b"j" + json.dumps(found).encode()
    except UserError as error:
        place = {"path": list(error.path), "file": str(error.file) if error.file else None, "line": error.line}
        about = {"kind": type(error).__name__, "problem": error.problem, "remedy": error.remedy, **place}
        _broadcast(b"e" + json.dumps(about).encode())
        raise
    finally:
        _ALONE.reset(token)
    return _heard(_broadcast(told))


def _heard(message: bytes) -> Any:
    if message[:1] == b"b":
        return message[1:]
    data = json.loads(message[1:])
    if message[:1] == b"j":
        return data
    kinds = {kind.__name__: kind for kind in (UserError, *UserError.__subclasses__())}
    kind, path = kinds.get(data.pop("kind"), UserError), tuple(data.pop("path"))
    raise kind(data.pop("problem"), path=path, **data)


def _broadcast(message: bytes) -> bytes:
    """The first process's message, to all."""
    header = len(message).to_bytes(8, "little")
    start = _part(header + message, FRAME)
    length = int.from_bytes(start[:8], "little")
    found = start[8 : 8 + length]
    rest = length - len(found)
    if rest > 0:
        found += _part(message[len(found) :], 1 << (rest - 1).bit_length())[:rest]
    return found


def _part(data: bytes, size: int) -> bytes:
    """One collective of a fixed size: a program is compiled for each."""
    frame = np.zeros(size, np.uint8)
    frame[: min(len(data), size)] = np.frombuffer(data[:size], np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(frame)).astype(np.uint8).tobytes()


def together(*wanted: bool, number: int = 0) -> tuple[Any, ...]:
    """Of each wish whether any process has it, and last the number that the first one has."""
    if not several():
        return *wanted, number
    found = np.asarray(multihost_utils.process_allgather(np.array([*wanted, number], np.int32)))
    return *np.any(found[:, :-1], axis=0).tolist(), int(found[0, -1])


def fetched(array: Any) -> np.ndarray:
    """An array on the host, also where parts of it lie on devices of other processes; then all have to ask."""
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return np.asarray(multihost_utils.process_allgather(array, tiled=True))
    return np.asarray(array)


def of_first(array: np.ndarray) -> np.ndarray:
    """The first process's array, in all; the others bring one of the same shape and type. Bits stay as they are."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    told = np.asarray(multihost_utils.broadcast_one_to_all(flat)).astype(np.uint8)
    return told.view(array.dtype).reshape(array.shape)


def placed(tree: Any, sharding: jax.sharding.Sharding) -> Any:
    """Host arrays on devices. Of several processes each puts its own part there; the rest of an array it need not
    know.
    """
    if not several():
        return jax.device_put(tree, sharding)
    return jax.tree.map(lambda a: jax.make_array_from_callback(a.shape, sharding, lambda index: a[index]), tree)
