"""Settings as flat tables, and the differences between tables."""

from taetpu.store.flat_config import differing_paths, flatten_config

LAYER = {"mixer": {"kind": "attention", "num_heads": 4}, "ffn": {"kind": "relu", "mult": 4.0}}


def config(*layers, dim=8):
    return {"model": {"dim": dim, "layers": list(layers)}, "train": {"optimizer": {"kind": "adamw", "lr": 1e-3}}}


def test_settings_of_all_layers_have_no_layer_number():
    other = {**LAYER, "ffn": {"kind": "relu", "mult": 2.0}}
    assert flatten_config(config(LAYER, other)) == {
        "model.dim": 8,
        "model.num_layers": 2,
        "model.mixer.kind": "attention",
        "model.mixer.num_heads": 4,
        "model.ffn.kind": "relu",
        "model.layers.0.ffn.mult": 4.0,
        "model.layers.1.ffn.mult": 2.0,
        "train.optimizer.kind": "adamw",
        "train.optimizer.lr": 1e-3,
    }


def test_only_differing_settings_are_listed_and_fields_belong_to_their_kind():
    gated = {**LAYER, "ffn": {"kind": "swiglu", "hidden": 7}}
    tables = [flatten_config(config(LAYER)), flatten_config(config(gated, dim=16)), flatten_config(config(LAYER))]
    assert differing_paths(tables) == ["model.dim", "model.ffn.kind"]
    assert differing_paths(tables[:1]) == differing_paths([]) == []


def test_field_that_differs_within_one_kind_is_listed_beside_other_kinds():
    wide = {**LAYER, "ffn": {"kind": "relu", "mult": 8.0}}
    gated = {**LAYER, "ffn": {"kind": "swiglu", "hidden": 7}}
    assert differing_paths([flatten_config(config(layer)) for layer in (LAYER, wide, gated)]) == [
        "model.ffn.kind",
        "model.ffn.mult",
    ]
