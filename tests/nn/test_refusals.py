"""A model that cannot be built raises an error with the setting, its place and a remedy."""

import re

import pytest

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.core.keys import root_key
from taetpu.nn.lm import ModelConfig, build_model

BASE = {"dim": 16, "num_layers": 3}
CASES = {
    "heads do not divide": {"mixer": {"kind": "attention", "num_heads": 3}},
    "key-value heads do not divide": {
        "layers": {2: {"mixer": {"kind": "attention", "num_heads": 4, "num_kv_heads": 3}}}
    },
    "no such head": {"mixer": {"kind": "attention", "drop_heads": [1, 4]}},
    "no such part": {"layers": {-1: {"drop": ["mixr"]}}},
    "a branch dropped that is not there": {"layers": {1: {"mixer": "none", "drop": ["mixer"]}}},
    "a branch dropped without a residual": {"residual": "none", "layers": {1: {"drop": ["ffn"]}}},
    "an empty mlp": {"ffn": {"kind": "relu", "mult": 0.03}},
    "an empty swiglu": {"layers": {2: {"ffn": {"kind": "swiglu", "mult": 0.2}}}},
    "learned positions in a layer": {"layers": {1: {"position": "learned"}}},
    "other sinusoids in a layer": {
        "position": "sinusoidal",
        "layers": {1: {"position": {"kind": "sinusoidal", "base": 10.0}}},
    },
    "no position in a layer that has none of its own": {"position": "learned", "layers": {-1: {"position": "none"}}},
    "placement without a norm": {"norm": {"kind": "none", "placement": "post"}},
    "no such layer": {"layers": {3: {"ffn": "none"}}},
    "a slice of nothing": {"layers": {"2:1": {"ffn": "none"}}},
    "not a layer": {"layers": {"last": {"ffn": "none"}}},
    "not settings": {"layers": {0: "none"}},
    "no such slot of a layer": {"layers": {1: {"embedding": "tied"}}},
    "no such kind in a layer": {"layers": {1: {"ffn": "relo"}}},
    "odd sinusoids": {"dim": 5, "mixer": "none", "position": "sinusoidal"},
    "odd rotations": {"dim": 12},
    "value residual without the first layer": {
        "layers": {"1:": {"mixer": {"kind": "attention", "num_heads": 2, "values": "residual"}}}
    },
    "value residual behind a layer without attention": {
        "mixer": {"kind": "attention", "num_heads": 2, "values": "residual"},
        "layers": {0: {"mixer": "lstm"}},
    },
    "value residual of the first layer alone": {
        "mixer": {"kind": "attention", "num_heads": 2, "values": "residual"},
        "layers": {"1:": {"mixer": "none"}},
    },
    "deepnorm before the sum": {"residual": "deepnorm"},
    "deepnorm without norms": {
        "norm": {"kind": "rms", "placement": "post"},
        "residual": "deepnorm",
        "layers": {1: {"norm": "none"}},
    },
    "a wide factorised embedding": {"embedding": {"kind": "factorised", "size": 16}},
    "embeddings scaled twice": {"position": "sinusoidal", "stem": "scale"},
    "no layers": {"num_layers": 0},
    "all dropped": {"dropout": 1.0},
}


@pytest.mark.parametrize("case", CASES)
def test_invalid_models_are_refused(case, wording):
    with pytest.raises(UserError) as caught:
        build_model(load_config(ModelConfig, BASE | CASES[case]).resolve(), 7, 8, key=root_key(0))
    wording(re.sub(r"(one of: (alibi|bilinear), ).*", r"\1...", str(caught.value)))  # other tests register kinds


def test_sinusoidal_positions_may_have_a_stem_with_a_factor():
    settings = {"position": "sinusoidal", "stem": {"kind": "scale", "factor": 2.0}}
    model = build_model(load_config(ModelConfig, BASE | settings).resolve(), 7, 8, key=root_key(0))
    assert float(model.stem.factor.value) == 2


@pytest.mark.parametrize(
    ("model", "layer"),
    [
        ("learned", "learned"),
        ({"kind": "sinusoidal", "base": 10000}, "sinusoidal"),
        ("learned", "rope"),
        ("rope", "none"),
        ("none", "rope"),
        ("rope", {"kind": "rope", "base": 10.0}),
    ],
)
def test_a_layer_may_have_its_own_positions_in_attention(model, layer):
    settings = {"position": model, "layers": {1: {"position": layer}}}
    config = load_config(ModelConfig, BASE | settings).resolve()
    config.check(7, seq_len=8)
    kind = layer if isinstance(layer, str) else layer["kind"]
    assert config.layers[1].position.kind == kind


@pytest.mark.parametrize(
    ("where", "layers"),
    [(1, [1]), (-1, [2]), ("-3", [0]), ("0:2", [0, 1]), ("::2", [0, 2]), ("-2:", [1, 2]), (":", [0, 1, 2])],
)
def test_layers_are_selected_like_python_indexes(where, layers):
    config = load_config(ModelConfig, BASE | {"layers": {where: {"ffn": "none"}}}).resolve()
    assert [i for i, layer in enumerate(config.layers) if layer.ffn.kind == "none"] == layers


def test_later_overrides_of_a_layer_replace_earlier_ones_by_slot():
    config = load_config(
        ModelConfig, BASE | {"layers": {":": {"ffn": "none", "norm": "layer"}, -1: {"ffn": "relu"}}}
    ).resolve()
    assert [layer.ffn.kind for layer in config.layers] == ["none", "none", "relu"]
    assert {layer.norm.kind for layer in config.layers} == {"layer"}


def test_equivalent_attention_settings_are_equal():
    def one(**fields):
        return load_config(ModelConfig, BASE | {"mixer": {"kind": "attention", "num_heads": 4, **fields}}).mixer

    assert one(drop_heads=[1, 0, 1]) == one(drop_heads=[0, 1])
    assert one(num_kv_heads=4) == one()
    assert one(num_kv_heads=2) != one()
