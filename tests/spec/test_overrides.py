"""Overrides set their field and nothing else, in any order."""

from copy import deepcopy
from itertools import combinations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from taetpu.core.config import to_data
from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.spec.overrides import apply_overrides, takes_list
from taetpu.spec.study_config import RunConfig

BASE = {
    "task": {"kind": "copy", "seq_len": 8},
    "model": {
        "dim": 16, "num_layers": 4, "norm": {"kind": "rms", "placement": "post"}, "layers": {"0:2": {"ffn": "relu"}},
    },
    "train": {"steps": 10},
}  # fmt: skip


def resolved(overrides):
    return load_config(RunConfig, apply_overrides(BASE, overrides)).resolve()


PLAIN = resolved({})


def kinds(slot, config):
    return [getattr(layer, slot).kind for layer in config.model.layers]


@pytest.mark.parametrize(
    ("path", "value", "where", "expected"),
    [
        ("model.dim", 32, lambda c: c.model.dim, 32),
        ("model.position", "none", lambda c: kinds("position", c), ["none"] * 4),
        ("model.ffn", {"kind": "swiglu", "mult": 2.0}, lambda c: c.model.layers[3].ffn.mult, 2.0),
        ("model.mixer.num_heads", 2, lambda c: c.model.layers[0].mixer.num_heads, 2),  # a slot that is not written
        ("model.norm.kind", "layer", lambda c: (c.model.norm.kind, c.model.norm.placement), ("layer", "post")),
        ("train.optimizer.lr", 0.1, lambda c: c.train.optimizer.lr, 0.1),
        ("train.sample.tokens", 5, lambda c: c.train.sample.tokens, 5),
        ("train.sample", "none", lambda c: c.train.sample, None),
        ("model.layers.-1.ffn", "none", lambda c: kinds("ffn", c), ["relu", "relu", "swiglu", "none"]),
        ("model.layers.1:3.ffn", "none", lambda c: kinds("ffn", c), ["relu", "none", "none", "swiglu"]),
        ("model.layers.1.ffn.mult", 2.0, lambda c: [x.ffn.mult for x in c.model.layers[:2]], [4.0, 2.0]),
        ("model.layers.2.norm.kind", "layer", lambda c: kinds("norm", c), ["rms", "rms", "layer", "rms"]),
        ("model.layers.3.drop", ["ffn"], lambda c: c.model.layers[3].drop, ("ffn",)),
        ("model.layers", {3: {"mixer": "none"}}, lambda c: kinds("ffn", c), ["swiglu"] * 4),
    ],
)
def test_an_override_sets_its_field(path, value, where, expected):
    assert where(PLAIN) != expected
    assert where(resolved({path: value})) == expected


def test_a_layer_with_its_own_override_also_gets_overrides_of_the_model():
    config = resolved({"model.layers.0.mixer.num_heads": 2, "model.mixer.scale": 0.5})
    assert [(x.mixer.num_heads, x.mixer.scale) for x in config.model.layers] == [(2, 0.5), (4, 0.5), (4, 0.5), (4, 0.5)]


def test_a_kind_is_changed_before_its_fields():
    config = resolved({"model.norm.bias": True, "model.norm.kind": "layer"})
    assert (config.model.norm.kind, config.model.norm.bias) == ("layer", True)


def test_two_keys_that_select_one_layer_keep_their_order():
    base = deepcopy(BASE)
    base["model"]["layers"] = {0: {"ffn": "none"}, "0:2": {"ffn": "relu"}}
    layers = load_config(RunConfig, apply_overrides(base, {"model.layers.0.mixer": "none"})).resolve().model.layers
    assert [(x.mixer.kind, x.ffn.kind) for x in layers[:2]] == [("none", "relu"), ("attention", "relu")]


# Some overlap, and some only fit when another one is there too: what is refused is so in any order.
VALUES = {
    "model.dim": [8, 32], "model.num_layers": [4, 6], "model.mixer": ["none", {"kind": "attention", "num_heads": 2}],
    "model.mixer.num_heads": [1, 2], "model.mixer.scale": [0.5], "model.norm.kind": ["layer", "none"],
    "model.norm.placement": ["pre"], "model.norm": ["layer"], "model.layers.-1.ffn": ["none"],
    "model.layers.0:2.mixer.num_heads": [2, 8], "model.layers.1.mixer.scale": [0.25],
    "model.layers.1.norm.kind": ["layer"], "model.layers": [{2: {"ffn": "none"}}], "train.steps": [5],
    "train.optimizer.lr": [0.1], "train.schedule.kind": ["linear"],
    "train.sample": ["none"], "train.sample.tokens": [3], "task.symbols": [4],
}  # fmt: skip


def outcome(overrides):
    """Return the resolved config as plain data, or the problem. If several paths overlap, any may be reported."""
    try:
        return to_data(resolved(overrides))
    except UserError as error:
        return "overlap" if "overlaps" in error.problem else error.problem


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_the_order_of_overrides_has_no_effect(data):
    paths = data.draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=2, max_size=4, unique=True))
    overrides = {path: data.draw(st.sampled_from(VALUES[path])) for path in paths}
    shuffled = {path: overrides[path] for path in data.draw(st.permutations(paths))}
    assert outcome(shuffled) == outcome(overrides)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_disjoint_overrides_commute(data):
    first, second = data.draw(st.sampled_from(list(combinations(sorted(set(VALUES) - {"model.layers"}), 2))))
    # What a layer has of its own no longer follows the model, and a kind decides what fields there are.
    assume(not (first.split(".")[1] == "layers" or second.split(".")[1] == "layers"))
    one, two = ({p: data.draw(st.sampled_from(VALUES[p]))} for p in (first, second))
    try:
        together = apply_overrides(BASE, one | two)
    except UserError:
        assume(False)
        return
    assert (
        apply_overrides(apply_overrides(BASE, one), two) == apply_overrides(apply_overrides(BASE, two), one) == together
    )


@given(st.sampled_from(sorted(VALUES)))
def test_overrides_do_not_modify_the_baseline(path):
    before = deepcopy(BASE)
    apply_overrides(BASE, {path: VALUES[path][0]})
    assert before == BASE


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("model.mixer.drop_heads", True), ("model.layers.0.drop", True), ("model.layers.-1.mixer.drop_heads", True),
        ("model.mixer.num_heads", False), ("model.mixer", False), ("model.mixer.kind", False),
        ("model.layers.0", False), ("train.clip", False), ("train.sample.top_k", False),
    ],
)  # fmt: skip
def test_takes_list_is_true_for_fields_that_are_lists(path, expected):
    assert takes_list(BASE, path) is expected
