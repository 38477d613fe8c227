"""The feed of a pack: the training data of each dispatch, and the places of its batches in this data.

With the feed `resident`, every device holds the arrays of the task. With the feed `host`, a device holds a table with
the windows of the next steps, and a thread fills the following table meanwhile. Both give the same batches.
"""

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import jax
import numpy as np

from taetpu.core.distributed import in_every_process, to_devices
from taetpu.train.program import Program, Rows
from taetpu.train.step import Arrays


class DataFeed:
    """The feed `resident`, and the base class of the other feed. It is a context manager.

    Args:
        program: the program of the pack.
        seeds: the seed of each run in the program, including padding.
    """

    def __init__(self, program: Program, seeds: Sequence[int]):
        self.program, self.seeds = program, seeds
        self.source, self.batch = program.source, program.structure.train.batch_size

    def __enter__(self) -> "DataFeed":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def limit(self, step: int) -> int:
        """Return the maximum size of a dispatch that starts at `step`."""
        return self.program.chunk

    def read(self, step: int, size: int) -> tuple[Rows, Arrays]:
        """Return the arguments `rows` and `arrays` of `Program.advance` for `size` steps from `step`.

        Rows beyond `size`, and rows for runs of other processes, are never read.

        Raises:
            PeerFailed: if the data could not be read in another process.
        """
        rows = np.zeros((self.program.width, self.program.chunk, self.batch), np.int32)
        for i in self.program.local_runs:
            rows[i, :size] = self.source.rows(self.seeds[i], step, size, self.batch)
        return rows, self.program.arrays


class HostFeed(DataFeed):
    """The feed `host`. The table of a shard holds the windows of `Program.table_steps` steps for each different seed.

    A table has a fixed size with room for different seeds in all runs, so that packs share a program. A process reads
    the windows of its own runs only, and those of a seed once. Dispatches end where the table ends.
    """

    def __init__(self, program: Program, seeds: Sequence[int]):
        super().__init__(program, seeds)
        self.shapes, self.start, self.arrays = program.data_shapes, -program.table_steps, dict[str, jax.Array]()
        self.filling = dict[int, Future[dict[str, jax.Array]]]()  # by first step
        self.thread = ThreadPoolExecutor(1, "feed")
        self.first = np.zeros((program.width, 1, 1), np.int32)  # the place of each run's first window
        self.places = defaultdict[int, set[tuple[int, int]]](set)  # shards and first places of each local seed
        runs, local = program.width // program.shards, program.local_runs
        for i, seed in enumerate(seeds):
            shard = i // runs
            different = list(dict.fromkeys(seeds[shard * runs : (shard + 1) * runs]))
            self.first[i] = place = different.index(seed) * program.table_steps * self.batch
            if i in local:
                self.places[seed].add((shard, place))

    def __exit__(self, *_: object) -> None:
        self.thread.shutdown(cancel_futures=True)

    def limit(self, step: int) -> int:
        """Return the number of steps from `step` to the end of its table.

        If `step` is not in the current table, the next table becomes the current one.
        """
        size = self.program.table_steps
        if not 0 <= step - self.start < size:
            filling = self.filling.pop(step, None) or self.thread.submit(self.fill, step)
            self.arrays, self.start = in_every_process(filling.result), step
            if step + size < self.program.steps:
                self.filling = {step + size: self.thread.submit(self.fill, step + size)}
        return self.start + size - step

    def read(self, step: int, size: int) -> tuple[Rows, Arrays]:
        """See `DataFeed.read`. `size` must be at most `limit(step)`."""
        self.limit(step)
        steps = np.arange(step - self.start, step - self.start + self.program.chunk, dtype=np.int32)
        return self.first + steps[:, None] * self.batch + np.arange(self.batch, dtype=np.int32), self.arrays

    def fill(self, step: int) -> dict[str, jax.Array]:
        """Return the table that starts at `step`. Places that no batch reads are 0."""
        tables = {name: np.zeros(shape.shape, shape.dtype) for name, shape in self.shapes.items()}
        count = min(self.program.table_steps, self.program.steps - step)
        for seed, places in self.places.items():
            rows = self.source.rows(seed, step, count, self.batch).ravel()
            for name, windows in self.source.gather(rows).items():
                for shard, first in places:
                    tables[name][shard, first : first + len(rows)] = windows
        return {name: to_devices(table, self.shapes[name].sharding) for name, table in tables.items()}


def open_feed(program: Program, seeds: Sequence[int]) -> DataFeed:
    """Return the feed that a program was built for. See `DataFeed` for the arguments."""
    return (HostFeed if program.from_host else DataFeed)(program, seeds)
