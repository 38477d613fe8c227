"""Estimate one layer of attention with the TPU compiler, without a TPU. Nothing is measured.

`python -m benchmarks.attention_cycles LENGTH HEADS HEAD_DIM plain|xla|splash [BLOCK]`, with libtpu installed: cycles of
the forward and backward pass over 8192 tokens on a v5e core, and the temporary memory. Operations of XLA are counted by
their `estimated_cycles`, loops by their trip counts. A kernel has none: the bundles that the compiler scheduled for it,
times the blocks that are not masked whole; what it waits for is not counted.
"""

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from taetpu.tpu.hlo import parse

TOKENS = 8192
BUNDLES = re.compile(r"total scheduled bundles: *(\d+)")


def main(seq: int, heads: int, head_dim: int, path: str, block: int = 512) -> None:
    """Compile in this process, which must not have imported jax before."""
    with tempfile.TemporaryDirectory() as kernels, tempfile.TemporaryDirectory() as module:
        os.environ |= {
            "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost",
            "TPU_WORKER_ID": "0", "TPU_ACCELERATOR_TYPE": "v5litepod-1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        }  # fmt: skip
        if path == "splash":
            os.environ["LIBTPU_INIT_ARGS"] = f"--xla_jf_dump_to={kernels} --xla_jf_dump_llo_text=true"
        options = {"xla_dump_to": module, "xla_dump_hlo_as_text": True}
        program = lowered(seq, heads, head_dim, path, block).compile(compiler_options=options)
        text = parse(next(Path(module).glob("*after_codegen.txt")).read_text())
        xla = text.cost(text.entry).cycles
        files = Path(kernels).glob("*splash*schedule-analysis_final_bundles.txt")
        bundles = sum(int(BUNDLES.search(file.read_text())[1]) for file in files)  # pyright: ignore
        blocks = seq // min(block, seq)
        kernel = bundles * TOKENS // seq * heads * blocks * (blocks + 1) // 2
        memory = program.memory_analysis().temp_size_in_bytes
        print(f"{(xla + kernel) / 1e6:.2f} million cycles ({kernel / 1e6:.2f} in kernels), {memory / 1e6:.0f} MB")


def lowered(seq: int, heads: int, head_dim: int, path: str, block: int) -> Any:
    """Return the lowered gradients of a layer of attention for a v5e core."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from taetpu.nn.attention_kernels import PLAIN, Kernel, Splash

    class Fused(Kernel):
        """Compute attention with jax, without a kernel."""

        def attend(self, q: Any, k: Any, v: Any, *, causal: bool) -> Any:
            q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
            z = jax.nn.dot_product_attention(q, k, v, scale=1.0, is_causal=causal, implementation="xla")
            return z.transpose(0, 2, 1, 3)

    from taetpu.core.config_parsing import build_component
    from taetpu.core.keys import root_key
    from taetpu.nn.common import Context, Dims, combine_trainable, partition_trainable

    dim = heads * head_dim
    dims = Dims(dim, 1, seq, 1, False, build_component("init", "fan-in"))
    config = build_component("mixer", {"kind": "attention", "num_heads": heads})
    chosen = {"plain": PLAIN, "xla": Fused(), "splash": Splash(block)}[path]

    def first() -> Any:
        attention = config.init(dims, build_component("position", "none"), key=root_key(0))
        return partition_trainable(jax.tree.map(lambda x: x, attention))

    params, rest = jax.eval_shape(first)

    def loss(params: Any, rest: Any, x: Any) -> Any:
        from equinox import tree_at

        attention = tree_at(lambda a: a.path, combine_trainable(params, rest), chosen)
        ctx = Context(jnp.zeros(x.shape[:2], jnp.int32), jnp.arange(seq))
        return (attention(x, ctx).astype(jnp.float32) ** 2).sum()

    topology = topologies.get_topology_desc(platform="tpu", topology_name="v5e:1x1", chips_per_host_bounds=(1, 1, 1))
    place = NamedSharding(Mesh(np.array(topology.devices[:1]), ("run",)), PartitionSpec())
    x = jax.ShapeDtypeStruct((TOKENS // seq, seq, dim), jnp.bfloat16)
    gradients = jax.jit(jax.grad(loss, argnums=(0, 2)), in_shardings=place, out_shardings=place)
    return gradients.lower(params, rest, x)


if __name__ == "__main__":
    seq, heads, head_dim, path, *block = sys.argv[1:]
    main(int(seq), int(heads), int(head_dim), path, *map(int, block))
