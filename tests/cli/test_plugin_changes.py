"""A plug-in that changes what all runs share is refused by name, and what it changed is put back."""

import os

import jax
import pytest
from tests.cli.mistakes import FFN, STUDY, ffn

from taetpu.core.snapshot import Snapshot

AT_IMPORT = {
    "import taetpu.nn.ffn as f; f.ACTIVATIONS['relu'] = jnp.sin": "replaces taetpu.nn.ffn.ACTIVATIONS['relu']",
    "import taetpu.nn.ffn as f; f.ACTIVATIONS['mine'] = jnp.sin": "adds taetpu.nn.ffn.ACTIVATIONS['mine']",
    "import taetpu.nn.ffn as f; f.ACTIVATIONS = {}": "replaces taetpu.nn.ffn.ACTIVATIONS",
    "import taetpu.nn.ffn as f; f.round = int": "adds taetpu.nn.ffn.round",
    "import taetpu.nn.ffn as f; f.inner_size.__defaults__ = (64,)": "replaces taetpu.nn.ffn.inner_size.__defaults__",
    "from taetpu.nn.ffn import ReLU; ReLU.activation = 'gelu-tanh'": "replaces taetpu.nn.ffn.ReLU.activation",
    "from taetpu.nn.ffn import ReLU; ReLU.init = None": "adds taetpu.nn.ffn.ReLU.init",
    "from taetpu.nn.ffn import MLP; del MLP.__call__": "removes taetpu.nn.ffn.MLP.__call__",
    "from taetpu.nn.norm import RMSNormConfig as R; R.model_fields['eps'].default = 1.0": "['eps'].default",
    "from taetpu.nn.ffn import SwiGLUConfig; register('ffn', 'other')(SwiGLUConfig)": "['ffn']['other']",
    "import taetpu.train.step; taetpu.train.step.clip = lambda grads, bound: grads": "replaces taetpu.train.step.clip",
    "jax.nn.silu = jax.nn.relu": "replaces jax.nn.silu",
    "jnp.where = jnp.add": "replaces jax.numpy.where",
    "optax.scale = optax.identity": "replaces optax.scale",
    "eqx.filter_jit = lambda f: f": "replaces equinox.filter_jit",
    "np.random.default_rng = lambda seed: None": "replaces numpy.random.default_rng",
    "jax.nn.relu.fun = jnp.sin": "replaces jax._src.nn.functions.relu.fun",
    "jax.nn.relu.defjvps(lambda g, ans, x: 0 * g)": "replaces jax._src.nn.functions.relu.jvp",
    "optax.adam.__code__ = optax.sgd.__code__": "replaces optax._src.alias.adam.__code__",
    "from jax._src.interpreters import ad; ad.primitive_jvps[jax.lax.exp_p] = None": "primitive_jvps[exp]",
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
    assert "remedy: register a kind" in err
    assert [str(change) for change in before.changes() if not change.cache] == []
    return err


@pytest.mark.parametrize("line", AT_IMPORT)
def test_a_change_at_import(taetpu, study, here, line):
    study(f"{ffn()}\n\n{line}\n")
    assert AT_IMPORT[line] in refused(taetpu, here)


def test_a_setting_that_a_context_manager_holds(taetpu, study, here):
    """It is one of the thread's, and no update of the configuration reaches it."""
    study(f"{ffn()}\n\nheld = jax.default_matmul_precision('bfloat16')\nheld.__enter__()\n")
    assert "jax.config.jax_default_matmul_precision" in refused(taetpu, here)
    assert jax.config.jax_default_matmul_precision is None  # pyright: ignore


@pytest.mark.parametrize("where", LATER)
def test_a_change_when_a_kind_is_first_built(taetpu, study, here, where):
    study(LATER[where], FFN if where != "field" else "{model.ffn: {kind: own, a: 1}}")
    assert SHARED in refused(taetpu, here)


LATER_BY_THREAD = """
import threading, time

def later():
    end = time.monotonic() + 60
    while not os.path.exists("runs") and time.monotonic() < end:
        time.sleep(0.01)
    jax.nn.silu = jax.nn.relu

threading.Thread(target=later, daemon=True).start()
"""


def test_a_change_that_a_thread_makes_while_runs_are_trained(taetpu, study, here):
    """No run gets a result, and no checkpoint is left that other plug-ins' runs could be resumed from."""
    before = Snapshot()
    study(ffn() + LATER_BY_THREAD)
    code, out, err = taetpu("run", "own.yaml")
    assert (code, out) == (2, "")
    assert "replaces jax.nn.silu" in err
    assert f"where:  {here / 'own.py'}" in err
    assert [str(change) for change in before.changes() if not change.cache] == []
    left = [path.name for path in (here / "runs").rglob("*")]
    assert "plan.json" in left
    assert not {"result.json", "model"} & set(left)
    assert not [name for name in left if name.isdigit()]  # checkpoints are named by their step


def test_what_a_plug_in_may_do(taetpu, study):
    """Other environment variables, taetpu's classes as bases, modules loaded late, names of its own."""
    study(f"import taetpu.interop\nos_before = 1\n{ffn()}\n\nos.environ['TOKENIZERS_PARALLELISM'] = 'false'\n")
    try:
        assert taetpu("plan", "own.yaml").code == 0
    finally:
        os.environ.pop("TOKENIZERS_PARALLELISM", None)
