"""Write and read a checkpoint of sharded arrays in four processes, each of which prints the growth of its memory.

Arguments: the coordinator's port, this process's number, and a folder.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from taetpu.core.distributed import Cluster, join_cluster
from taetpu.store.backend import open_store
from taetpu.store.pack_checkpoints import PackFolder
from taetpu.train.checkpoint import Checkpoints

PROCESSES, ARRAYS, ROWS, COLUMNS = 4, 8, 2048, 4096  # 256 MiB


def bytes_of(field: str) -> int:
    """Return a memory field of `/proc/self/status` in bytes, e.g. VmRSS or its peak, VmHWM."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


@contextmanager
def growth(into: dict[str, int], name: str) -> Iterator[None]:
    """Store the maximum growth of this process's memory in `into[name]`."""
    Path("/proc/self/clear_refs").write_text("5")
    before = bytes_of("VmRSS")
    yield
    into[name] = bytes_of("VmHWM") - before


def main(port: str, number: str, root: str) -> None:
    with join_cluster(Cluster(f"localhost:{port}", PROCESSES, int(number))):
        sharding = NamedSharding(Mesh(jax.devices(), ("data",)), P("data"))
        count = jnp.arange(ROWS * COLUMNS, dtype=jnp.float32)
        make = jax.jit(lambda i: (i + count).reshape(ROWS, COLUMNS), out_shardings=sharding)
        pack = PackFolder(open_store(root), "study", "pack")
        small = {"w": jax.device_put(jnp.zeros(8), NamedSharding(sharding.mesh, P("data")))}
        checkpoints = Checkpoints(pack)
        checkpoints.save(1, small)  # loads code, whose memory does not belong to a checkpoint
        checkpoints.resume(small)
        state = {f"w{i}": make(i) for i in range(ARRAYS)}
        jax.block_until_ready(state)
        grown: dict[str, int] = {}
        with growth(grown, "saved"):
            checkpoints.save(2, state)
        like = {name: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding) for name, a in state.items()}
        with growth(grown, "read"):
            found, step = checkpoints.resume(like)
            jax.block_until_ready(found)
        same = all(bool(jax.jit(lambda a, b: (a == b).all())(found[name], a)) for name, a in state.items())
        print(json.dumps({**grown, "same": same, "step": step}))


if __name__ == "__main__":
    main(*sys.argv[1:])
