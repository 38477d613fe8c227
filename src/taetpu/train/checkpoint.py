"""The resume state of a pack, by Orbax: one folder a step, committed whole or not at all; the last two are kept."""

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
from taetpu.core.distributed import agreed, fetched, of_first, placed, several
from taetpu.core.signals import held
from taetpu.core.tree import leaves_by_path
from taetpu.store.digests import Damaged, seal_folder, unseal_folder
from taetpu.store.packs import KEPT, PackFolder
from taetpu.train.memory import out_of_memory

MARGIN = 1 << 20  # bytes a checkpoint needs besides its arrays

State = TypeVar("State")


class Checkpoints:
    """Checkpoints of one pack. A context manager.

    Of several processes the first alone reads and writes them, so that no other has to see the folder.

    Args:
        pack: where they are stored.
        tell: is told of each damaged file: where it was, what is wrong with it, and where it was moved to.
    """

    def __init__(self, pack: PackFolder, tell: Callable[[str, str, str], None] = lambda *_: None):
        self.pack, self.tell, self.folder = pack, tell, pack.folder()
        self.manager: ocp.CheckpointManager | None = None

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if self.manager:
            with held():
                self.manager.close()
        self.manager = None

    @property
    def own(self) -> ocp.CheckpointManager:
        """For what the first process does alone; opened late, since Orbax deletes what it takes for unfinished."""
        if self.manager is None:
            self.manager = _manager(self.folder)
        return self.manager

    def latest(self) -> int | None:
        """The newest step that was written whole."""
        return agreed(lambda: self.own.latest_step())  # noqa: PLW0108 (only the first process opens it)

    def save(self, step: int, state: object, **about: Any) -> None:
        """Write the state of `step` with the digests of its files; it counts only once it is whole.

        Args:
            about: JSON that `resume` hands to `check`.

        Raises:
            UserError: the disk has no room for it, or it cannot be written for another reason that lies in the disk or
                in the store.
        """
        arrays = leaves_by_path(state)
        if several():
            arrays = {name: fetched(a) for name, a in arrays.items()}
        agreed(lambda: self._write(step, arrays, about))

    def _write(self, step: int, arrays: Mapping[str, Any], about: dict[str, Any]) -> None:
        needed = sum(a.nbytes for a in arrays.values()) + MARGIN
        with disk.explained("write a checkpoint", self.folder, needed=needed), as_os_errors(), held():
            if disk.free_bytes(self.folder) < needed:
                for old in sorted(self.own.all_steps())[:-1]:  # one that can be resumed from has to do
                    self.own.delete(old)
            if disk.free_bytes(self.folder) < needed:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.own.save(step, args=ocp.args.StandardSave(dict(arrays)))
            seal_folder(self.folder / str(step), **about)
        self.pack.keep(step)

    def resume(self, like: State, check: Callable[[dict[str, Any]], None] = lambda about: None) -> tuple[State, int]:
        """The newest state that is whole, and its step; `like` and 0 where there is none.

        Damaged checkpoints are set aside.

        Args:
            like: arrays, or their shapes with shardings; the state is placed as they are.
            check: raises `Damaged` where a checkpoint cannot be used, after what `save` was told with it.
        """
        leaves = leaves_by_path(like)
        for step in reversed(agreed(self.pack.steps)):
            found: dict[str, Any] = {}
            trouble = agreed(lambda step=step, found=found: self._trouble(step, leaves, found, check))
            if trouble is None:
                if several():
                    blank = {name: np.empty(a.shape, a.dtype) for name, a in leaves.items()}
                    found = {n: placed(of_first(found.get(n, blank[n])), leaves[n].sharding) for n in leaves}
                return jax.tree.unflatten(jax.tree.structure(like), [found[name] for name in leaves]), step
            if trouble:
                self.tell(*trouble)
        return like, 0

    def _trouble(
        self, step: int, like: Mapping[str, Any], found: dict[str, Any], check: Callable[[dict[str, Any]], None]
    ) -> list[str] | None:
        """Read a step into `found`, in the first process alone. What `tell` is told where that cannot be done, nothing
        of a checkpoint that was never written whole, and None where all is well.
        """
        try:
            folder = self.pack.fetch(step)
            about = None if folder is None else unseal_folder(folder)
            if folder is None or (about is None and step not in self.own.all_steps()):
                self.pack.delete(step)
                return []
            found.update(self._read(step, like, trusted=about is not None))
        except Damaged as error:
            self._close()
            return [str(error.file), error.problem, self.pack.set_aside(step)]
        try:
            check(about or {})
        except Damaged as error:
            self._close()
            self.pack.delete(step)  # of no use without the file, and written again
            return [str(error.file), error.problem, ""]
        return None

    def _read(self, step: int, like: Mapping[str, Any], trusted: bool) -> Mapping[str, Any]:
        """The arrays of a step. A checkpoint without digests, which an earlier version wrote, is damaged where Orbax
        cannot read it.
        """
        shapes: Mapping[str, Any]
        if several():
            shapes = {name: np.empty(a.shape, a.dtype) for name, a in like.items()}
        else:
            shapes = {name: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding) for name, a in like.items()}
        try:
            with held():
                return self.own.restore(step, args=ocp.args.StandardRestore(shapes))
        except Exception as error:
            if trusted or out_of_memory(error):
                raise
            told = f"this checkpoint cannot be read: {type(error).__name__}"
            raise Damaged(told, file=self.folder / str(step)) from error


def _manager(folder: Path) -> ocp.CheckpointManager:
    # Written in the foreground: the caller gives the arrays' memory away next, and a full disk is an error here rather
    # than a traceback of a background thread.
    options = ocp.CheckpointManagerOptions(
        max_to_keep=KEPT, cleanup_tmp_directories=True, enable_async_checkpointing=False
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
