"""LoRA adapters: equal to the merged weights, without effect at first, and checked against the layer's matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.core.keys import root_key
from taetpu.nn import stack
from taetpu.nn.adapter import merge_adapters
from taetpu.nn.lm import ModelConfig
from taetpu.nn.named_arrays import named_parameters

TARGETS = ["mixer.wq", "mixer.wo", "ffn.up"]
SETTINGS = {"dim": 16, "num_layers": 3, "mixer": {"kind": "attention", "num_heads": 2}}
LORA = {"kind": "lora", "rank": 3, "alpha": 6.0, "targets": TARGETS}
TOKENS = jnp.arange(16).reshape(2, 8) % 7


@pytest.mark.slow
@pytest.mark.parametrize("unrolled", [True, False], ids=["unrolled", "rolled"])
def test_merged_adapters_give_the_same_logits(draw, monkeypatch, unrolled):
    """Layers 0 and 2 have adapters of different ranks, layer 1 has none."""
    monkeypatch.setattr(stack, "UNROLL_UP_TO", 8 if unrolled else 1)
    settings = {**SETTINGS, "adapter": LORA, "layers": {1: {"adapter": "none"}, 2: {"adapter": {**LORA, "rank": 2}}}}
    model = draw(settings)
    config = load_config(ModelConfig, settings).resolve()
    plain_config, plain = merge_adapters(config, model)
    assert not [name for name in named_parameters(plain) if "adapter" in name]
    np.testing.assert_allclose(model(TOKENS), plain(TOKENS), atol=1e-5)
    values = named_parameters(model)
    for layer in (0, 2):
        for name in TARGETS:
            home = f"layers.{layer}.adapter"
            product = np.asarray(values[f"{home}.down.{name}"]) @ np.asarray(values[f"{home}.up.{name}"])
            expected = values[f"layers.{layer}.{name}"] + product * 6.0 / (3 if layer == 0 else 2)
            np.testing.assert_allclose(named_parameters(plain)[f"layers.{layer}.{name}"], expected, atol=1e-6)
    shapes = {name: a.shape for name, a in named_parameters(plain).items()}
    bare = jax.eval_shape(lambda: named_parameters(plain_config.build(7, 8, key=root_key(0))))
    assert shapes == {name: a.shape for name, a in bare.items()}


@pytest.mark.slow
def test_a_new_adapter_changes_nothing_and_leaves_other_parameters_as_they_are():
    base, adapted = (
        load_config(ModelConfig, {**SETTINGS, **more}).resolve().build(7, 8, key=root_key(0))
        for more in ({}, {"adapter": LORA})
    )
    np.testing.assert_array_equal(base(TOKENS), adapted(TOKENS))
    both = named_parameters(adapted)
    for name, array in named_parameters(base).items():
        np.testing.assert_array_equal(array, both[name])
    assert len(both) == len(named_parameters(base)) + 3 * 2 * len(TARGETS)


@pytest.mark.parametrize(("target", "near"), [("mixer.wx", "'mixer.wv'"), ("mixer_norm.weight", "mixer.wq")])
def test_a_target_that_is_no_matrix_of_the_layer_is_refused(target, near):
    settings = {**SETTINGS, "adapter": {"kind": "lora", "targets": [target]}}
    with pytest.raises(UserError, match=f"no matrix {target!r}") as caught:
        load_config(ModelConfig, settings).resolve().check(7, 8)
    assert caught.value.path == ("layers", 0, "adapter", "targets", 0)
    assert near in caught.value.remedy
