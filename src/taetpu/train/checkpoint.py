"""The resume state of a pack, by Orbax: one folder a step, committed whole or not at all; the newest is kept."""

import shutil
from pathlib import Path
from typing import TypeVar

import jax
import orbax.checkpoint as ocp

from taetpu.core.errors import UserError
from taetpu.core.tree import leaves_by_path

MARGIN = 1 << 20  # bytes a checkpoint needs besides its arrays

State = TypeVar("State")


class Checkpoints:
    """Checkpoints of one pack in `folder`. Use as a context manager: leaving it waits for what is being written."""

    def __init__(self, folder: Path):
        options = ocp.CheckpointManagerOptions(max_to_keep=1, cleanup_tmp_directories=True)
        self.folder = folder
        self.manager = ocp.CheckpointManager(folder.absolute(), options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self.manager.close()

    def latest(self) -> int | None:
        """The newest step that was written whole."""
        return self.manager.latest_step()

    def save(self, step: int, state: object) -> None:
        """Write the state of `step` in the background; it counts only once it is whole.

        Raises:
            UserError: the disk has no room for it. Asked beforehand, because the writer's own error says less.
        """
        arrays = leaves_by_path(state)
        needed, free = sum(a.nbytes for a in arrays.values()), shutil.disk_usage(self.folder).free
        if free < needed + MARGIN:
            raise UserError(
                f"no space left for a checkpoint: {needed + MARGIN:,} bytes are needed, {free:,} are free",
                file=self.folder,
                remedy="nothing was lost: free some space and run the same command again",
            )
        self.manager.save(step, args=ocp.args.StandardSave(arrays))

    def wait(self) -> None:
        """Return when everything is written."""
        self.manager.wait_until_finished()

    def restore(self, step: int, like: State) -> State:
        """The state of `step`, placed as `like` (arrays or their shapes with shardings) is."""
        shapes = {
            name: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding)
            for name, a in leaves_by_path(like).items()
        }
        arrays = self.manager.restore(step, args=ocp.args.StandardRestore(shapes))
        return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in shapes])
