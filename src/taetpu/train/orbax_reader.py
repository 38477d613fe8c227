"""Read the checkpoints that a single process wrote with Orbax until 2026-11-23.

Orbax is not a dependency of taetpu any more; see `train.checkpoint`.
"""

from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np

from taetpu.core.errors import UserError
from taetpu.store.digests import Damaged
from taetpu.train.shard_files import ArrayLike


def is_orbax_checkpoint(folder: Path) -> bool:
    """Return whether Orbax wrote and committed the checkpoint in a folder."""
    return (folder / "_CHECKPOINT_METADATA").is_file()


def read_orbax(folder: Path, like: Mapping[str, ArrayLike]) -> dict[str, jax.Array]:
    """Return the arrays of a checkpoint. Each process keeps the regions on its devices.

    Args:
        folder: the folder of the checkpoint.
        like: the shapes, dtypes and shardings of the arrays, by name.

    Raises:
        Damaged: if the checkpoint does not contain these arrays.
        UserError: if Orbax is not installed.
    """
    try:
        import orbax.checkpoint as ocp
    except ModuleNotFoundError:
        problem = "an earlier version of taetpu wrote this checkpoint with Orbax, which is not installed"
        remedy = "Run `pip install orbax-checkpoint` to resume, or delete the folder to train the pack again."
        raise UserError(problem, path=(str(folder),), remedy=remedy) from None
    number = jax.process_index()  # the processes do not wait for each other
    options = ocp.options.MultiprocessingOptions(
        primary_host=number, active_processes={number}, barrier_sync_key_prefix=f"process-{number}"
    )
    handler = ocp.StandardCheckpointHandler(multiprocessing_options=options)
    blank = {name: np.empty(leaf.shape, leaf.dtype) for name, leaf in like.items()}
    try:
        with ocp.Checkpointer(handler, multiprocessing_options=options) as checkpointer:
            found = checkpointer.restore((folder / "default").absolute(), args=ocp.args.StandardRestore(blank))
    except (ValueError, KeyError, OSError) as error:
        raise Damaged(f"this checkpoint cannot be read: {type(error).__name__}", file=folder) from error
    whole = {name: np.asarray(found[name]) for name in like}
    return {
        name: jax.make_array_from_callback(leaf.shape, leaf.sharding, whole[name].__getitem__)
        for name, leaf in like.items()
    }
