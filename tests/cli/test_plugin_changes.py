"""A plug-in that changes shared code or settings is refused, and the change is undone."""

import os

import jax  # noqa: F401 (its import sets variables of the environment)
import pytest
from tests.cli.mistakes import FFN, STUDY, ffn
from tests.suites import by_default

from taetpu.core.global_state import Snapshot
from taetpu.core.registry import registrations

AT_IMPORT = {
    "import taetpu.nn.ffn.dense as f; f.ACTIVATIONS['relu'] = jnp.sin": "replaces taetpu.nn.ffn.dense.ACTIVATIONS",
    "import taetpu.nn.ffn.dense as f; f.ACTIVATIONS['mine'] = jnp.sin": "adds taetpu.nn.ffn.dense.ACTIVATIONS['mine']",
    "from taetpu.nn.ffn import ReLU; ReLU.activation = 'gelu-tanh'": "replaces taetpu.nn.ffn.dense.ReLU.activation",
    "from taetpu.nn.ffn import MLP; del MLP.__call__": "removes taetpu.nn.ffn.dense.MLP.__call__",
    "from taetpu.nn.ffn import SwiGLUConfig; register('ffn', 'other')(SwiGLUConfig)": "SwiGLUConfig.kind",
    "from taetpu.core.config import Component as C; register('ffn', 'other')(C)": "Component.kind",
    "jax.nn.silu = jax.nn.relu": "replaces jax.nn.silu",
    "jax.config.update('jax_default_matmul_precision', 'bfloat16')": "from None to 'bfloat16'",
    "os.environ['XLA_FLAGS'] = '--xla_cpu_enable_fast_math=true'": "changes os.environ['XLA_FLAGS']",
    "del os.environ['JAX_PLATFORMS']": "changes os.environ['JAX_PLATFORMS'] from 'cpu' to unset",
}
SILU, SHARED = "jax.nn.silu = jax.nn.relu", "replaces jax.nn.silu, which all runs share"
LATER = {
    "call": ffn(f"{SILU}; return 2 * x"),
}


@pytest.fixture
def study(here):
    """`study(source)`: writes `own.yaml` and its plug-in."""

    def write(source: str, arm: str = FFN) -> None:
        (here / "own.py").write_text(source)
        (here / "own.yaml").write_text(STUDY.replace("ARM", arm))

    return write


def refused(taetpu, here) -> str:
    """Return the error of `plan`. Check that all changes were undone."""
    before = Snapshot()
    code, out, err = taetpu("plan", "own.yaml")
    assert (code, out) == (2, "")
    assert f"where:  {here / 'own.py'}" in err
    assert "remedy: Register a kind" in err
    assert [str(change) for change in before.changes()] == []
    return err


@pytest.mark.parametrize("line", by_default(AT_IMPORT, *list(AT_IMPORT)[:2]))
def test_change_of_shared_code_at_import_is_refused_and_undone(taetpu, study, here, line):
    study(f"{ffn()}\n\n{line}\n")
    assert AT_IMPORT[line] in refused(taetpu, here)
    assert all("other" not in known for known in registrations()[0].values())


@pytest.mark.slow
@pytest.mark.parametrize("where", LATER)
def test_change_of_shared_code_in_a_component_is_refused_and_undone(taetpu, study, here, where):
    study(LATER[where])
    assert SHARED in refused(taetpu, here)


@pytest.mark.slow
def test_harmless_global_changes_of_a_plug_in_are_accepted(taetpu, study):
    """Plug-ins may set environment variables, import modules of taetpu, and define names."""
    study(f"import taetpu.interop\nos_before = 1\n{ffn()}\n\nos.environ['TOKENIZERS_PARALLELISM'] = 'false'\n")
    try:
        assert taetpu("plan", "own.yaml").code == 0
    finally:
        os.environ.pop("TOKENIZERS_PARALLELISM", None)
