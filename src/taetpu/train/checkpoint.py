"""Checkpoints of a pack: one folder per step, committed atomically. The two latest are kept.

A single process writes each step as an Orbax checkpoint. With several processes, each process writes the shards on its
devices into `<step>/process-<k>/`, and the primary process then commits the step by writing `<step>/complete`. Both
forms can be resumed by any number of processes. Shards are not written with Orbax: for sharded arrays, Orbax requires a
file system that all processes mount, or its own access to a bucket, while all other files go through `taetpu.store`.
"""

import errno
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp

from taetpu.core import disk
from taetpu.core.distributed import any_process, broadcast, in_every_process, is_primary, multi_process, on_primary
from taetpu.core.errors import UserError
from taetpu.core.signals import delay_interrupts
from taetpu.core.tree import leaves_by_path
from taetpu.store.digests import Damaged, seal_folder, unseal_folder
from taetpu.store.packs import KEPT, PackFolder
from taetpu.train.memory import out_of_memory
from taetpu.train.shard_files import ArrayLike, local_bytes, place, read_shards, regions_of, write_shards

SHARDS = "shards.safetensors"
MARGIN = 1 << 20  # bytes that a checkpoint needs in addition to its arrays

State = TypeVar("State")
Json: TypeAlias = dict[str, Any]
"""The JSON document that a checkpoint holds in addition to its arrays."""
Check: TypeAlias = Callable[[Json], None]
Leaves: TypeAlias = Mapping[str, ArrayLike]


class Unusable(Exception):
    """A checkpoint that cannot be resumed from.

    Args:
        error: the damage; None if the checkpoint was never completely written.
        keep: whether to move the checkpoint to the study's folder `damaged` instead of deleting it.
    """

    def __init__(self, error: Damaged | None = None, keep: bool = False):
        super().__init__()
        self.error, self.keep = error, keep


class Checkpoints:
    """The checkpoints of one pack, as a context manager.

    Args:
        pack: the folder that stores the checkpoints. All processes must share it.
        on_damage: function that is called for each damaged file with its path, the problem, and the path that the file
            was moved to.
    """

    def __init__(self, pack: PackFolder, on_damage: Callable[[str, str, str], None] = lambda *_: None):
        self.pack, self.on_damage, self.folder = pack, on_damage, pack.folder()
        self.open_manager: ocp.CheckpointManager | None = None

    def __enter__(self) -> "Checkpoints":
        if multi_process():
            self._refuse_separate_folders()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _refuse_separate_folders(self) -> None:
        mark = broadcast(os.urandom(8).hex())
        on_primary(lambda: self.pack.write_mark(mark))
        missing, _ = any_process(not self.pack.has_mark(mark))
        on_primary(lambda: self.pack.delete_mark(mark))
        if missing:
            problem = f"the processes do not share the folder {self.pack.where}"
            raise UserError(
                problem, path=("--root",), remedy="Use a root that all hosts see: a bucket, or a shared disk."
            )

    def _close(self) -> None:
        if self.open_manager:
            with delay_interrupts():
                self.open_manager.close()
        self.open_manager = None

    @property
    def manager(self) -> ocp.CheckpointManager:
        """The Orbax manager of single-process checkpoints.

        It is opened only when needed, because Orbax deletes folders that it considers unfinished.
        """
        if self.open_manager is None:
            # Writing is synchronous because the caller donates the arrays afterwards, and so that a full disk raises
            # an error here instead of a traceback in a background thread.
            options = ocp.CheckpointManagerOptions(
                max_to_keep=KEPT, cleanup_tmp_directories=True, enable_async_checkpointing=False
            )
            with delay_interrupts():
                self.open_manager = ocp.CheckpointManager(self.folder.absolute(), options=options)
        return self.open_manager

    def latest(self) -> int | None:
        """Return the latest step whose checkpoint is complete; None if there is none."""
        if multi_process():
            return broadcast(max(filter(self.pack.is_complete, self.pack.steps()), default=None))
        return max(filter(self._is_whole, self.pack.steps()), default=None)

    def _is_whole(self, step: int) -> bool:
        return self.pack.is_complete(step) or self._is_committed(step)

    def _is_committed(self, step: int) -> bool:
        """Return whether Orbax committed a single-process checkpoint, which it does by renaming its folder."""
        return (self.folder / str(step) / "_CHECKPOINT_METADATA").is_file()

    # --- writing -----------------------------------------------------------------------------------------------------

    def save(self, step: int, state: object, **about: Any) -> None:
        """Write the state of `step` with the digests of its files. Incomplete checkpoints are never resumed.

        Args:
            step: the number of steps taken.
            state: the state of the pack as a tree of arrays.
            about: JSON that `resume` passes to `check`. With several processes, the primary process's JSON is stored.

        Raises:
            UserError: if the disk is full, or if the disk or the store fails in another way.
        """
        arrays = leaves_by_path(state)
        if not multi_process():
            self._save_whole(step, arrays, about)
            return
        in_every_process(lambda: self._save_part(step, arrays))
        on_primary(lambda: self.pack.complete(step, jax.process_count(), about))

    def _save_whole(self, step: int, arrays: Mapping[str, jax.Array], about: Json) -> None:
        with self._writing(sum(a.nbytes for a in arrays.values())):
            if (self.folder / str(step)).exists():  # an incomplete checkpoint from several processes
                self.pack.delete(step)
            self.manager.save(step, args=ocp.args.StandardSave(dict(arrays)))
            seal_folder(self.folder / str(step), **about)
        self.pack.save(step)

    def _save_part(self, step: int, arrays: Mapping[str, jax.Array]) -> None:
        part = self.pack.part(step, jax.process_index())
        with self._writing(local_bytes(arrays)):
            write_shards(part / SHARDS, arrays)
            seal_folder(part)
        self.pack.save_part(step, jax.process_index())

    @contextmanager
    def _writing(self, nbytes: int) -> Iterator[None]:
        """Free space by deleting all checkpoints except the latest if necessary, and explain disk errors."""
        needed = nbytes + MARGIN
        with (
            disk.explain_os_error("write a checkpoint", self.folder, needed=needed),
            as_os_errors(),
            delay_interrupts(),
        ):
            if disk.free_bytes(self.folder) < needed and is_primary():
                for old in self.pack.steps()[:-1]:
                    self.pack.delete(old)
                self._close()
            if disk.free_bytes(self.folder) < needed:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            yield

    # --- reading -----------------------------------------------------------------------------------------------------

    def resume(self, like: State, check: Check = lambda about: None) -> tuple[State, int]:
        """Return the latest complete state and its step; `like` and 0 if there is no complete state.

        Damaged checkpoints are moved to the study's folder `damaged`, or deleted.

        Args:
            like: a tree of arrays, or of their shapes with shardings. The returned state has the same shardings.
            check: function that is called in the primary process with the `about` that was passed to `save`. It raises
                `Damaged` if the checkpoint cannot be used.
        """
        leaves = leaves_by_path(like)
        for step in reversed(broadcast(self.pack.steps())):
            found, problem = dict[str, jax.Array](), None
            try:
                found = self._read(step, leaves, check)
            except Unusable as reason:
                problem = reason
            if not any_process(problem is not None)[0]:
                return jax.tree.unflatten(jax.tree.structure(like), [found[name] for name in leaves]), step
            self._close()
            reason = problem or Unusable(Damaged("another process cannot read its part", file=self.folder), keep=True)
            on_primary(lambda step=step, reason=reason: self._discard(step, reason))
        return like, 0

    def _discard(self, step: int, reason: Unusable) -> None:
        moved = self.pack.move_to_damaged(step) if reason.keep else ""
        if not reason.keep:
            self.pack.delete(step)
        if reason.error is not None:
            self.on_damage(str(reason.error.file), reason.error.problem, moved)

    def _read(self, step: int, leaves: Leaves, check: Check) -> dict[str, jax.Array]:
        """Return the arrays of a step.

        Raises:
            Unusable: if the checkpoint cannot be used.
        """
        try:
            complete = self.pack.read_complete(step)
            about, arrays = self._read_whole(step, leaves) if complete is None else (complete["about"], None)
            if complete is not None:
                arrays = self._read_parts(step, leaves, complete["processes"])
        except Damaged as error:
            raise Unusable(error, keep=True) from None
        try:
            if is_primary():
                check(about)
        except Damaged as error:  # a file of a run is damaged: the run's steps are computed and stored again
            raise Unusable(error) from None
        assert arrays is not None
        return arrays

    def _read_whole(self, step: int, leaves: Leaves) -> tuple[Json, dict[str, jax.Array]]:
        """Return the document and the arrays of a checkpoint that a single process wrote.

        Checkpoints of earlier versions have no digests. They count as damaged if Orbax cannot read them.
        """
        folder = self.pack.fetch(step)
        about = None if folder is None else unseal_folder(folder)
        alone = not multi_process()
        if folder is None or (about is None and not self._is_committed(step)):
            raise Unusable
        shapes = {name: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding) for name, a in leaves.items()}
        try:
            with delay_interrupts():
                if alone:
                    return about or {}, dict(self.manager.restore(step, args=ocp.args.StandardRestore(shapes)))
                return about or {}, _restore_alone(folder / "default", leaves)
        except Exception as error:
            if about is not None or out_of_memory(error):
                raise
            problem = f"this checkpoint cannot be read: {type(error).__name__}"
            raise Damaged(problem, file=self.folder / str(step)) from error

    def _read_parts(self, step: int, leaves: Leaves, processes: int) -> dict[str, jax.Array]:
        """Read the regions on this process's devices from the parts that several processes wrote."""
        parts = list[Path]()
        for process in range(processes):
            part = self.pack.fetch_part(step, process)
            if part is None or unseal_folder(part) is None:
                raise Damaged("this part of the checkpoint is missing", file=self.pack.part(step, process))
            parts.append(part / SHARDS)
        return read_shards(parts, leaves)


def _restore_alone(folder: Path, leaves: Leaves) -> dict[str, jax.Array]:
    """Read a single-process checkpoint in one of several processes, and keep the local regions.

    The processes do not wait for each other.
    """
    number = jax.process_index()
    options = ocp.options.MultiprocessingOptions(
        primary_host=number, active_processes={number}, barrier_sync_key_prefix=f"process-{number}"
    )
    handler = ocp.StandardCheckpointHandler(multiprocessing_options=options)
    blank = {name: np.empty(leaf.shape, leaf.dtype) for name, leaf in leaves.items()}
    with ocp.Checkpointer(handler, multiprocessing_options=options) as checkpointer:
        found = checkpointer.restore(folder.absolute(), args=ocp.args.StandardRestore(blank))
    return {name: place(leaf, regions_of(np.asarray(found[name]), leaf)) for name, leaf in leaves.items()}


@contextmanager
def as_os_errors() -> Iterator[None]:
    """Convert the `ValueError`s that TensorStore raises when it cannot write a file into `OSError`s.

    The `OSError` contains all the information. In addition, Orbax logs the traceback of each of its threads that
    failed, asyncio the traceback of each further write, and Python the traceback of each write that fails after the
    event loop is closed. These logs are silenced. After a failure they stay silenced, since they may arrive late.
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
