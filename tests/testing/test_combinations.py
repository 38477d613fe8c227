"""Models with any kinds in their slots are refused by their config, or have the properties of every model.

The properties are causality, finite numbers at initialisation in bfloat16, equal results of packed and single runs, of
layers in a loop and unrolled, with every site replaced by itself, with padding on the left, and with a cache.
`TAETPU_TEST_SEED` repeats the random models of a day; a failure prints the settings of its model.
"""

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase
from tests.suites import SEED
from tests.testing import combinations
from tests.testing.combinations import SLOTS, admit, check_combination, is_causal

from taetpu.core.config import iter_components
from taetpu.spec.kind_examples import is_default

NIGHTLY_PIECES, PIECE = 18, 10
ONE = hypothesis.settings(
    max_examples=PIECE, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)

ALL_SLOTS = {
    "dim": 16, "num_layers": 2, "bias": True,
    "mixer": {
        "kind": "attention", "num_kv_heads": 2, "mask": {"kind": "window", "width": 3}, "qk_norm": "rms",
        "values": "residual", "scores": "softcap", "normalizer": "sink", "gate": "sigmoid",
    },
    "position": {"kind": "rope", "scaling": {"kind": "yarn", "factor": 2.0, "original_seq_len": 4}}, "norm": "layer",
    "ffn": "relu2", "residual": "layer-scale", "short_conv": "canon", "order": "parallel-two-norms",
    "layer_dropout": "stochastic-depth", "after": "x0", "adapter": "lora", "embedding": "untied", "stem": "norm",
    "logits": "softcap", "heads": ["multi-token"], "init": "fan-in",
}  # fmt: skip
"""A model with a kind other than the default in every slot except `mixer` and `position`."""

REFUSED = {
    "an adapter of a matrix that the mixer lacks": {"mixer": "mamba2", "adapter": "lora"},
    "parallel branches without a mixer": {"mixer": "none", "order": "parallel"},
    "two ffns with state in a layer": {"order": "macaron", "ffn": "deepseek-moe"},
    "skips between streams": {"residual": "hyper-connections", "after": "u-net"},
    "shared biases of different heads": {
        "position": "t5",
        "layers": {1: {"mixer": {"kind": "attention", "num_heads": 2}}},
    },
    "a dropped layer without a residual": {"residual": "none", "layer_dropout": "stochastic-depth"},
}


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_model_with_a_kind_in_every_slot_has_all_properties(training):
    config = admit(ALL_SLOTS)
    assert config is not None
    assert is_causal(config)
    other = {part.slot for part in iter_components(config) if not is_default(type(part))}
    assert other == set(SLOTS) - {"mixer", "position"}
    assert check_combination(ALL_SLOTS, training=training)


@pytest.mark.parametrize("case", REFUSED)
def test_combinations_are_refused_by_their_config(case):
    assert admit({"dim": 16, "num_layers": 2, **REFUSED[case]}) is None


@hypothesis.seed(SEED)
@hypothesis.settings(ONE, max_examples=60)
@hypothesis.given(combinations.settings())
def test_random_models_are_refused_with_a_remedy_or_admitted(model):
    admit(model)


def check_many(seed):
    """Check `PIECE` random models."""

    @hypothesis.seed(seed)
    @ONE
    @hypothesis.given(combinations.settings())
    def check(model):
        check_combination(model)

    check()


@pytest.mark.slow
def test_random_models_of_today_have_all_properties():
    check_many(SEED)


@pytest.mark.nightly
@pytest.mark.parametrize("piece", range(1, NIGHTLY_PIECES + 1))
def test_many_random_models_have_all_properties(piece):
    check_many(1000 * SEED + piece)
