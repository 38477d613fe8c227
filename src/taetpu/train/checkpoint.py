"""The resume state of a pack, by Orbax: one folder a step, committed whole or not at all; the newest is kept."""

import errno
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp

from taetpu.core import disk
from taetpu.core.hosts import agreed, fetched, is_first, of_first, placed, several
from taetpu.core.interrupt import held
from taetpu.core.tree import leaves_by_path

MARGIN = 1 << 20  # bytes a checkpoint needs besides its arrays

State = TypeVar("State")


class Checkpoints:
    """Checkpoints of one pack in `folder`. A context manager.

    Of several processes the first alone reads and writes them, so that no other has to see the folder.

    Args:
        kept: is told each step that was written whole, to store it where the folder does not lie in the store.
    """

    def __init__(self, folder: Path, kept: Callable[[int], None] = lambda step: None):
        self.folder, self.kept = folder, kept
        self.manager = _manager(folder) if is_first() else None

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        if self.manager:
            with held():
                self.manager.close()

    @property
    def own(self) -> ocp.CheckpointManager:
        """For what the first process does alone."""
        assert self.manager
        return self.manager

    def latest(self) -> int | None:
        """The newest step that was written whole."""
        return agreed(lambda: self.manager and self.manager.latest_step())

    def save(self, step: int, state: object) -> None:
        """Write the state of `step`; it counts only once it is whole.

        Raises:
            UserError: the disk has no room for it, or it cannot be written for another reason that lies in the disk or
                in the store.
        """
        arrays = leaves_by_path(state)
        if several():
            arrays = {name: fetched(a) for name, a in arrays.items()}
        agreed(lambda: self._write(step, arrays))
        self.kept(step)

    def _write(self, step: int, arrays: Mapping[str, Any]) -> None:
        needed = sum(a.nbytes for a in arrays.values()) + MARGIN
        with disk.explained("write a checkpoint", self.folder, needed=needed), as_os_errors(), held():
            if disk.free_bytes(self.folder) < needed:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.own.save(step, args=ocp.args.StandardSave(dict(arrays)))

    def restore(self, step: int, like: State) -> State:
        """The state of `step`, placed as `like` (arrays or their shapes with shardings) is."""
        leaves = leaves_by_path(like)
        arrays = self._shared(step, leaves) if several() else self._read(step, leaves)
        return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in leaves])

    def _read(self, step: int, like: Mapping[str, Any]) -> Mapping[str, Any]:
        shapes = {name: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding) for name, a in like.items()}
        with held():
            return self.own.restore(step, args=ocp.args.StandardRestore(shapes))

    def _shared(self, step: int, like: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the first process reads, for all."""
        found: Mapping[str, Any] = {name: np.empty(a.shape, a.dtype) for name, a in like.items()}
        if is_first():
            with held():
                found = self.own.restore(step, args=ocp.args.StandardRestore(found))
        return {name: placed(of_first(found[name]), a.sharding) for name, a in like.items()}


def _manager(folder: Path) -> ocp.CheckpointManager:
    # Written in the foreground: the caller gives the arrays' memory away next, and a full disk is an error here rather
    # than a traceback of a background thread.
    options = ocp.CheckpointManagerOptions(
        max_to_keep=1, cleanup_tmp_directories=True, enable_async_checkpointing=False
    )
    if several():
        alone = ocp.options.MultiprocessingOptions(active_processes={0}, barrier_sync_key_prefix="first")
        options = replace(options, create=False, multiprocessing_options=alone)
    with held():
        return ocp.CheckpointManager(folder.absolute(), options=options)


@contextmanager
def as_os_errors() -> Iterator[None]:
    """Raise TensorStore's failures to write a file, which are `ValueError`s, as the `OSError`s they were.

    What is raised here says it all. But Orbax also logs the traceback of each of its threads that met one, asyncio
    that of each further write, and Python that of each which fails after the event loop is closed. They are silenced,
    and stay so after a failure, since they may come late.
    """
    logs, hook = [logging.getLogger(name) for name in ("absl", "asyncio")], sys.unraisablehook

    def tell(unraisable: "sys.UnraisableHookArgs") -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            hook(unraisable)

    before = [log.disabled for log in logs]
    for log in logs:
        log.disabled = True
    sys.unraisablehook = tell
    try:
        yield
    except ValueError as error:
        code = re.search(r"os_error_code='(\d+)'", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1]))) from error
    sys.unraisablehook = hook
    for log, disabled in zip(logs, before, strict=True):
        log.disabled = disabled
