"""FLOPs that hooks and optimizers add to a step are counted as training."""

import jax
import jax.numpy as jnp
import pytest

from taetpu.core.registry import register, unregister
from taetpu.optim.hooks import Hook
from taetpu.train.model_cost import flops_per_token
from taetpu.train.training_flops import added_flops, step_flops, training_flops_per_token


@pytest.fixture(scope="module", autouse=True)
def planted():
    @register("hook", "test-again")
    class Again(Hook):
        """A second pass of the model, differentiated."""

        def loss(self, loss, logits, batch, model, now):
            return loss + (model(batch.tokens) ** 2).mean()

    @register("hook", "test-teacher")
    class Teacher(Hook):
        """A second pass of the model that is not differentiated."""

        def loss(self, loss, logits, batch, model, now):
            return loss + ((logits - jax.lax.stop_gradient(model(batch.tokens))) ** 2).mean()

    @register("hook", "test-cheap")
    class Cheap(Hook):
        def gradients(self, gradients, params, now):
            return jax.tree.map(jnp.sign, gradients)

    yield
    unregister(__name__)


@pytest.mark.slow
@pytest.mark.parametrize(("hook", "more"), [("test-again", 1.0), ("test-teacher", 1 / 3), ("test-cheap", 0.0)])
def test_hook_flops_are_those_of_its_additional_passes(make, text, hook, more):
    config, source = make(text[0], hooks=[hook], accumulate=2), text[1]
    model = flops_per_token(config.model, source.vocab_size, source.seq_len)
    assert training_flops_per_token(config, source) == pytest.approx((1 + more) * model, rel=1e-3)
    assert (added_flops(config, source) == 0) == (more == 0)


def test_traced_step_agrees_with_the_count_for_the_model(make, text):
    config, source = make(text[0]), text[1]
    tokens = config.train.batch_size * source.seq_len
    per_token = flops_per_token(config.model, source.vocab_size, source.seq_len)
    assert step_flops(config, source) == pytest.approx(tokens * per_token, rel=1e-3)
    assert training_flops_per_token(config, source) == per_token


def test_newton_schulz_steps_of_muon_are_counted(make, text):
    """Each of five steps on an m x n matrix with m <= n multiplies m x n by n x m, m x m by m x m, m x m by m x n."""
    config, source = make(text[0], {"ffn": {"kind": "relu", "hidden": 24}}, optimizer="muon"), text[1]
    matrices = [(16, 16)] * 4 + [(16, 24)] * 2
    assert added_flops(config, source) == sum(5 * (2 * 2 * m * m * n + 2 * m**3) for m, n in matrices)
