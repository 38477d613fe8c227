"""A model that cannot be built raises an error with the setting, its place and a remedy."""

import pytest

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.core.keys import root_key
from taetpu.nn.lm import ModelConfig, build_model

BASE = {"dim": 16, "num_layers": 3}
CASES = {
    "heads do not divide": (
        {"mixer": {"kind": "attention", "num_heads": 3}},
        "dim=16 is not divisible by num_heads=3\n  where:  layers.0.mixer.num_heads\n"
        "  remedy: Set num_heads to one of 1, 2, 4, or set head_dim.",
    ),
    "key-value heads do not divide": (
        {"layers": {2: {"mixer": {"kind": "attention", "num_heads": 4, "num_kv_heads": 3}}}},
        "num_heads=4 is not divisible by num_kv_heads=3\n  where:  layers.2.mixer.num_kv_heads\n"
        "  remedy: Set num_kv_heads to one of 1, 2, 4",
    ),
    "no such head": (
        {"mixer": {"kind": "attention", "drop_heads": [1, 4]}},
        "head 4 does not exist\n  where:  layers.0.mixer.drop_heads\n  remedy: Use heads 0 to 3",
    ),
    "no such part": (
        {"layers": {-1: {"drop": ["mixr"]}}},
        "a layer has no part 'mixr' to drop\n  where:  layers.2.drop\n"
        "  remedy: Did you mean 'mixer'? Use one of: ffn, layer, mixer",
    ),
    "a branch dropped that is not there": (
        {"layers": {1: {"mixer": "none", "drop": ["mixer"]}}},
        "this layer has no mixer to drop\n  where:  layers.1.drop\n  remedy: Remove mixer from drop",
    ),
    "a branch dropped without a residual": (
        {"residual": "none", "layers": {1: {"drop": ["ffn"]}}},
        "dropping the ffn of a layer without a residual connection makes the layer's output zero\n"
        "  where:  layers.1.drop\n"
        "  remedy: Set ffn: none to remove the branch, or drop: [layer] to skip the whole layer",
    ),
    "an empty mlp": (
        {"ffn": {"kind": "relu", "mult": 0.03}},
        "mult=0.03 times dim=16 rounds to an inner size of 0\n  where:  layers.0.ffn.mult\n"
        "  remedy: Use mult of 0.0625 or more, or set hidden",
    ),
    "an empty swiglu": (
        {"layers": {2: {"ffn": {"kind": "swiglu", "mult": 0.2}}}},
        "mult=0.2 times dim=16 rounds to an inner size of 0\n  where:  layers.2.ffn.mult\n"
        "  remedy: Use mult of 0.5 or more, or set hidden",
    ),
    "learned positions in a layer": (
        {"layers": {1: {"position": "learned"}}},
        "'learned' positions are added to the input embeddings, so a single layer cannot have them\n"
        "  where:  layers.1.position\n"
        "  remedy: Set model.position, or give the layer one of: alibi, cope, fire, kerple, none, rope",
    ),
    "other sinusoids in a layer": (
        {"position": "sinusoidal", "layers": {1: {"position": {"kind": "sinusoidal", "base": 10.0}}}},
        "'sinusoidal' positions are added to the input embeddings, so a single layer cannot have them\n",
    ),
    "no position in a layer that has none of its own": (
        {"position": "learned", "layers": {-1: {"position": "none"}}},
        "'none' changes nothing in layer 2, because learned positions act on the input embeddings\n"
        "  where:  layers.2.position\n  remedy: Set model.position to none, or remove the layer's position",
    ),
    "placement without a norm": (
        {"norm": {"kind": "none", "placement": "post"}},
        "unknown field 'placement'\n  where:  norm.placement\n",
    ),
    "no such layer": (
        {"layers": {3: {"ffn": "none"}}},
        "no layer '3' in a model of 3 layers\n  where:  layers.3\n"
        "  remedy: Use 0 to 2, -1 to -3 from the end, or a slice such as 0:3",
    ),
    "a slice of nothing": ({"layers": {"2:1": {"ffn": "none"}}}, "no layer '2:1' in a model of 3 layers\n"),
    "not a layer": ({"layers": {"last": {"ffn": "none"}}}, "no layer 'last' in a model of 3 layers\n"),
    "not settings": ({"layers": {0: "none"}}, "'none' is not a mapping of settings\n  where:  layers.0"),
    "no such slot of a layer": (
        {"layers": {1: {"embedding": "tied"}}},
        "unknown field 'embedding'\n  where:  layers.1.embedding\n  remedy: ",
    ),
    "no such kind in a layer": (
        {"layers": {1: {"ffn": "relo"}}},
        "unknown ffn kind 'relo'\n  where:  layers.1.ffn.kind\n",
    ),
    "odd sinusoids": (
        {"dim": 5, "mixer": "none", "position": "sinusoidal"},
        "sinusoidal positions need an even dim, got 5\n",
    ),
    "odd rotations": (
        {"dim": 12},
        "rope rotates pairs and needs an even head_dim, got 3\n  where:  position\n  remedy: Use another",
    ),
    "value residual without the first layer": (
        {"layers": {"1:": {"mixer": {"kind": "attention", "num_heads": 2, "values": "residual"}}}},
        "layer 1 mixes its values with those of layer 0, which does not hand them on\n"
        "  where:  layers.1.mixer.values\n"
        "  remedy: Set values: residual in layer 0 too, or in all layers with model.mixer.values.",
    ),
    "deepnorm before the sum": (
        {"residual": "deepnorm"},
        "deepnorm scales the stream in each branch, so norms must follow the sums, but the layer has norms with "
        "placement 'pre'\n  where:  layers.0.residual\n  remedy: Set norm.placement: post",
    ),
    "deepnorm without norms": (
        {"norm": {"kind": "rms", "placement": "post"}, "residual": "deepnorm", "layers": {1: {"norm": "none"}}},
        "deepnorm scales the stream in each branch, so norms must follow the sums, but the layer has no norms\n"
        "  where:  layers.1.residual",
    ),
    "a wide factorised embedding": (
        {"embedding": {"kind": "factorised", "size": 16}},
        "factorised with size=16 has no fewer parameters than a table with dim=16\n"
        "  where:  embedding.size\n  remedy: Use a size below 16, e.g. 4.",
    ),
    "embeddings scaled twice": (
        {"position": "sinusoidal", "stem": "scale"},
        "sinusoidal positions multiply embeddings by sqrt(dim) already, so stem 'scale' would do it twice\n"
        "  where:  stem\n  remedy: Remove the stem, or set its factor.",
    ),
    "no layers": ({"num_layers": 0}, "0 is not allowed: must be greater than 0\n  where:  num_layers"),
    "all dropped": ({"dropout": 1.0}, "1.0 is not allowed: must be less than 1\n  where:  dropout"),
}


@pytest.mark.parametrize("case", CASES)
def test_invalid_models_are_refused(case):
    settings, text = CASES[case]
    with pytest.raises(UserError) as caught:
        build_model(load_config(ModelConfig, BASE | settings).resolve(), 7, 8, key=root_key(0))
    assert str(caught.value).startswith(text)


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
    config.check(vocab_size=7, seq_len=8)
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
