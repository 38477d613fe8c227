"""A plug-in that changes what all runs share is refused by name, and what it changed is put back."""

import os

import pytest
from tests.cli.mistakes import FFN, STUDY, ffn

from taetpu.core.snapshot import Snapshot

AT_IMPORT = {
    "import taetpu.nn.ffn as f; f.ACTIVATIONS['relu'] = jnp.sin": "replaces taetpu.nn.ffn.ACTIVATIONS['relu']",
    "import taetpu.nn.ffn as f; f.ACTIVATIONS['mine'] = jnp.sin": "adds taetpu.nn.ffn.ACTIVATIONS['mine']",
    "from taetpu.nn.ffn import ReLU; ReLU.activation = 'gelu-tanh'": "replaces taetpu.nn.ffn.ReLU.activation",
    "from taetpu.nn.ffn import ReLU; ReLU.init = None": "adds taetpu.nn.ffn.ReLU.init",
    "from taetpu.nn.ffn import MLP; del MLP.__call__": "removes taetpu.nn.ffn.MLP.__call__",
    "from taetpu.nn.ffn import SwiGLUConfig; register('ffn', 'other')(SwiGLUConfig)": "SwiGLUConfig.kind",
    "import taetpu.train.step; taetpu.train.step.clip = lambda grads, bound: grads": "replaces taetpu.train.step.clip",
    "jax.nn.silu = jax.nn.relu": "replaces jax.nn.silu",
    "optax.scale = optax.identity": "replaces optax.scale",
    "np.random.default_rng = lambda seed: None": "replaces numpy.random.default_rng",
    "jax.config.update('jax_default_matmul_precision', 'bfloat16')": "from None to 'bfloat16'",
    "os.environ['XLA_FLAGS'] = '--xla_cpu_enable_fast_math=true'": "changes os.environ['XLA_FLAGS']",
    "del os.environ['JAX_PLATFORMS']": "changes os.environ['JAX_PLATFORMS'] from 'cpu' to unset",
}
SILU, SHARED = "jax.nn.silu = jax.nn.relu", "replaces jax.nn.silu, which all runs share"
LATER = {
    "init": ffn().replace("return M()", f"{SILU}; return M()"),
    "call": ffn(f"{SILU}; return 2 * x"),
    "check": ffn().replace("    def init", f"    def check(self, dims): {SILU}\n    def init"),
    "field": ffn().replace("    def init", f"    a: int\n    def model_post_init(self, _): {SILU}\n    def init"),
}


@pytest.fixture
def study(here):
    """`study(source)`: writes `own.yaml` and its plug-in."""

    def write(source: str, arm: str = FFN) -> None:
        (here / "own.py").write_text(source)
        (here / "own.yaml").write_text(STUDY.replace("ARM", arm))

    return write


def refused(taetpu, here) -> str:
    """What `plan` says, with everything as it was before."""
    before = Snapshot()
    code, out, err = taetpu("plan", "own.yaml")
    assert (code, out) == (2, "")
    assert f"where:  {here / 'own.py'}" in err
    assert "remedy: Register a kind" in err
    assert [str(change) for change in before.changes()] == []
    return err


@pytest.mark.parametrize("line", AT_IMPORT)
def test_a_change_at_import(taetpu, study, here, line):
    study(f"{ffn()}\n\n{line}\n")
    assert AT_IMPORT[line] in refused(taetpu, here)


@pytest.mark.parametrize("where", LATER)
def test_a_change_when_a_kind_is_first_built(taetpu, study, here, where):
    study(LATER[where], FFN if where != "field" else "{model.ffn: {kind: own, a: 1}}")
    assert SHARED in refused(taetpu, here)


def test_what_a_plug_in_may_do(taetpu, study):
    """Other environment variables, taetpu's classes as bases, modules loaded late, names of its own."""
    study(f"import taetpu.interop\nos_before = 1\n{ffn()}\n\nos.environ['TOKENIZERS_PARALLELISM'] = 'false'\n")
    try:
        assert taetpu("plan", "own.yaml").code == 0
    finally:
        os.environ.pop("TOKENIZERS_PARALLELISM", None)
