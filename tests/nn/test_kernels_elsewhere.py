"""Attention kernels in the gradients of a pack, compiled or lowered for devices that this machine lacks."""

import json
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from taetpu.core.config_parsing import load_config
from taetpu.core.keys import root_key
from taetpu.nn.attention_kernels import CuDNN
from taetpu.nn.common import combine_trainable, partition_trainable
from taetpu.nn.compute_options import ComputeOptions
from taetpu.nn.lm import ModelConfig, build_model

TPU = """
import json
import jax, numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tests.nn.test_kernels_elsewhere import gradients

topology = topologies.get_topology_desc(platform="tpu", topology_name="v5e:1x1", chips_per_host_bounds=(1, 1, 1))
here = NamedSharding(Mesh(np.array(topology.devices[:1]), ("run",)), PartitionSpec())
found = {}
for path in ("plain", "splash"):
    fn, shapes = gradients(path, runs=2, seq=1024)
    program = jax.jit(fn, in_shardings=here, out_shardings=here).lower(shapes).compile()
    found[path] = [program.memory_analysis().temp_size_in_bytes, program.as_text().count("tpu_custom_call")]
print(json.dumps(found))
"""


def gradients(attention, runs, seq):
    """Return the gradients of `runs` models with one attention layer in bfloat16, and the shapes of the models."""
    heads = {"kind": "attention", "num_heads": 4, "num_kv_heads": 2, "head_dim": 64}
    config = load_config(ModelConfig, {"dim": 64, "num_layers": 1, "mixer": heads, "ffn": "none"}).resolve()

    def first(seed):
        return partition_trainable(
            ComputeOptions(attention=attention).apply(build_model(config, 7, seq, key=root_key(seed)))
        )

    params, rest = jax.eval_shape(jax.vmap(first), jax.ShapeDtypeStruct((runs,), jnp.int32))

    def loss(params, rest):
        return combine_trainable(params, rest)(jnp.zeros((4, seq), jnp.int32), dtype=jnp.bfloat16).var()

    return jax.vmap(lambda both: jax.grad(loss)(*both)), (params, rest)


@pytest.mark.nightly
def test_splash_attention_compiles_for_a_tpu_and_needs_less_memory():
    """The program is compiled by libtpu in a separate process, and not run."""
    pytest.importorskip("libtpu")
    quiet = dict.fromkeys(("TF_CPP_MIN_LOG_LEVEL", "TPU_STDERR_LOG_LEVEL", "TPU_MIN_LOG_LEVEL"), "3")
    tpu = {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0",
           "TPU_ACCELERATOR_TYPE": "v5litepod-1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}  # fmt: skip
    environment = {**os.environ, **quiet, **tpu, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", TPU], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    (plain, none), (splash, kernels) = found["plain"], found["splash"]
    assert none == 0
    assert kernels >= 3  # forward, keys and values, queries
    assert splash < plain / 2


def test_attention_is_lowered_to_cudnn_for_nvidia(monkeypatch):
    """The version of cuDNN is faked, because jax requires it for lowering. The program is not run."""

    class Versions:
        @staticmethod
        def cudnn_get_version():
            return 91100

    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.cuda_versions", Versions)
    fn, shapes = gradients(CuDNN.name, runs=2, seq=64)
    text = jax.jit(fn).trace(shapes).lower(lowering_platforms=("cuda",)).as_text()
    assert set(re.findall(r"custom_call @(__cudnn\S+?)\(", text)) == {
        "__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"
    }  # fmt: skip
