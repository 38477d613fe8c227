"""Checkpoints of a pack: one folder per step. The two latest are kept.

Each process writes the shards on its devices into `<step>/process-<k>/`. The primary process then commits the step by
writing `<step>/complete`. Any number of processes can resume from a checkpoint. Orbax is not used because it requires
a file system that all processes mount, or its own access to a bucket, while all other files go through `taetpu.store`.
"""

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import jax

from taetpu.core import atomic_files
from taetpu.core.distributed import any_process, broadcast, in_every_process, is_primary, multi_process, on_primary
from taetpu.core.errors import UserError
from taetpu.core.signals import delay_interrupts
from taetpu.core.tree import leaves_by_path
from taetpu.store.digests import Damaged, seal_folder, unseal_folder
from taetpu.store.pack_checkpoints import PackFolder
from taetpu.train.shard_files import ArrayLike, local_bytes, read_shards, write_shards

SHARDS = "shards.safetensors"
MARGIN = 1 << 20  # bytes that a checkpoint needs in addition to its arrays

State = TypeVar("State")
Json: TypeAlias = dict[str, Any]
"""The JSON document that a checkpoint holds in addition to its arrays."""
Check: TypeAlias = Callable[[Json], None]


class Unusable(Exception):
    """A checkpoint from which training cannot resume.

    Args:
        error: the damage; None if the checkpoint was never completely written.
        keep: whether to move the checkpoint to the study's folder `damaged` instead of deleting it.
    """

    def __init__(self, error: Damaged | None = None, keep: bool = False):
        super().__init__()
        self.error, self.keep = error, keep


class Checkpoints:
    """The checkpoints of one pack.

    Args:
        pack: the folder that stores the checkpoints. All processes must share this folder.
        on_damage: function that is called for each damaged file with its path, the problem, and the path that the file
            was moved to.
    """

    def __init__(self, pack: PackFolder, on_damage: Callable[[str, str, str], None] = lambda *_: None):
        self.pack, self.on_damage, self.folder = pack, on_damage, pack.folder()

    def latest(self) -> int | None:
        """Return the latest step whose checkpoint is complete; None if no checkpoint is complete."""
        return broadcast(max(filter(self.pack.is_complete, self.pack.steps()), default=None))

    def save(self, step: int, state: object, **about: Any) -> None:
        """Write a checkpoint with the digests of its files. Training never resumes from an incomplete checkpoint.

        Args:
            step: the number of steps taken.
            state: the state of the pack as a tree of arrays.
            about: JSON that `resume` passes to `check`. With several processes, the primary process's JSON is stored.

        Raises:
            UserError: if the disk is full, or if the disk or the store fails in another way.
        """
        arrays = leaves_by_path(state)
        in_every_process(lambda: self._save_part(step, arrays))
        on_primary(lambda: self.pack.complete(step, jax.process_count(), about))

    def _save_part(self, step: int, arrays: Mapping[str, jax.Array]) -> None:
        """Write this process's shards. If the disk is nearly full, first delete all checkpoints except the latest."""
        needed = local_bytes(arrays) + MARGIN
        with atomic_files.explain_os_error("write a checkpoint", self.folder, needed=needed), delay_interrupts():
            if atomic_files.free_bytes(self.folder) < needed and is_primary():
                for old in self.pack.steps()[:-1]:
                    self.pack.delete(old)
            if atomic_files.free_bytes(self.folder) < needed:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            part = self.pack.part(step, jax.process_index())
            write_shards(part / SHARDS, arrays)
            seal_folder(part)
        self.pack.save_part(step, jax.process_index())

    def resume(self, like: State, check: Check = lambda about: None) -> tuple[State, int]:
        """Return the state of the latest usable checkpoint and its step; `like` and 0 if no checkpoint is usable.

        Unusable checkpoints are moved to the study's folder `damaged`, or deleted.

        Args:
            like: a tree of arrays, or of their shapes with shardings. The returned state has the same shardings.
            check: function that is called in the primary process with the `about` that was passed to `save`. It raises
                `Damaged` if the checkpoint cannot be used.

        Raises:
            UserError: if the processes do not share the folder of the pack.
        """
        if multi_process():
            self._refuse_separate_folders()
        leaves = leaves_by_path(like)
        for step in reversed(broadcast(self.pack.steps())):
            arrays, problem = dict[str, jax.Array](), None
            try:
                arrays = self._read(step, leaves, check)
            except Unusable as reason:
                problem = reason
            if not any_process(problem is not None)[0]:
                return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in leaves]), step
            reason = problem or Unusable(Damaged("another process cannot read its part", file=self.folder), keep=True)
            on_primary(lambda step=step, reason=reason: self._discard(step, reason))
        return like, 0

    def _refuse_separate_folders(self) -> None:
        mark = broadcast(os.urandom(8).hex())
        on_primary(lambda: self.pack.write_mark(mark))
        missing, _ = any_process(not self.pack.has_mark(mark))
        on_primary(lambda: self.pack.delete_mark(mark))
        if missing:
            problem = f"the processes do not share the folder {self.pack.where}"
            remedy = "Use a root that all hosts can access, such as a bucket or a shared disk."
            raise UserError(problem, path=("--root",), remedy=remedy)

    def _read(self, step: int, leaves: Mapping[str, ArrayLike], check: Check) -> dict[str, jax.Array]:
        """Return the arrays of a step. Each process reads the regions on its devices from the parts of all processes.

        Raises:
            Unusable: if the checkpoint cannot be used.
        """
        try:
            complete = self.pack.read_complete(step)
            if complete is None:
                self._refuse_orbax(step)
                raise Unusable
            parts = [self._fetch(step, process) for process in range(complete["processes"])]
            about, arrays = complete["about"], read_shards(parts, leaves)
        except Damaged as error:
            raise Unusable(error, keep=True) from None
        try:
            if is_primary():
                check(about)
        except Damaged as error:  # a run's file is damaged, so the run's steps are computed and stored again
            raise Unusable(error) from None
        return arrays

    def _refuse_orbax(self, step: int) -> None:
        """Raise `Damaged` if Orbax wrote a checkpoint, as in versions of taetpu before 2026-11-23."""
        if self.pack.is_of_orbax(step):
            problem = "an earlier version of taetpu wrote this checkpoint with Orbax; the pack is trained again"
            raise Damaged(problem, file=f"{self.pack.where}/{step}")

    def _fetch(self, step: int, process: int) -> Path:
        """Return the local file with the shards of one process, after verifying its digest."""
        part = self.pack.fetch_part(step, process)
        if part is None or unseal_folder(part) is None:
            raise Damaged("this part of the checkpoint is missing", file=self.pack.part(step, process))
        return part / SHARDS

    def _discard(self, step: int, reason: Unusable) -> None:
        moved = self.pack.move_to_damaged(step) if reason.keep else ""
        if not reason.keep:
            self.pack.delete(step)
        if reason.error is not None:
            self.on_damage(str(reason.error.file), reason.error.problem, moved)
