"""Settings as flat tables, and which of them differ."""

from taetpu.store.settings import differing_paths, flatten_config

LAYER = {"mixer": {"kind": "attention", "num_heads": 4}, "ffn": {"kind": "relu", "mult": 4.0}}


def config(*layers, dim=8):
    return {"model": {"dim": dim, "layers": list(layers)}, "train": {"optimizer": {"kind": "adamw", "lr": 1e-3}}}


def test_what_all_layers_share_stands_without_their_numbers():
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


def test_only_what_differs_is_named_and_fields_come_and_go_with_their_kind():
    gated = {**LAYER, "ffn": {"kind": "swiglu", "hidden": 7}}
    tables = [flatten_config(config(LAYER)), flatten_config(config(gated, dim=16)), flatten_config(config(LAYER))]
    assert differing_paths(tables) == ["model.dim", "model.ffn.kind"]
    assert differing_paths(tables[:1]) == differing_paths([]) == []


def test_a_field_that_differs_within_one_kind_is_named_also_beside_others():
    wide = {**LAYER, "ffn": {"kind": "relu", "mult": 8.0}}
    gated = {**LAYER, "ffn": {"kind": "swiglu", "hidden": 7}}
    assert differing_paths([flatten_config(config(layer)) for layer in (LAYER, wide, gated)]) == [
        "model.ffn.kind",
        "model.ffn.mult",
    ]
