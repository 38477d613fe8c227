"""Where the arrays of a divided run lie: told by rules, checked against a run's sizes."""

from math import prod

import pytest

from taetpu.core.errors import UserError
from taetpu.train.layout import fitting_division
from taetpu.train.model_cost import num_params
from taetpu.train.sharding import check_mesh, device_bytes, mesh_axes, parameter_placements, possible_divisions

SIZES = {"data": 4, "model": 2}


@pytest.mark.parametrize(
    ("path", "shape", "expected"),
    [
        ("model.stacks.0.block.mixer.wq", (3, 16, 32), (None, "data", "model")),
        ("opt.0.mu.stacks.1.block.mixer.wo", (2, 32, 16), (None, "model", "data")),
        ("stacks.0.block.ffn.gate", (2, 16, 40), (None, "data", "model")),
        ("stacks.0.block.ffn.down", (2, 40, 16), (None, "model", "data")),
        ("embedding.weight", (50, 16), ("model", "data")),
        ("embedding.weight", (51, 16), (None, "data")),  # an odd vocabulary stays whole
        ("embedding.weight", (52, 18), ("model", None)),  # 18 cannot be divided by 4, and the other axis is taken
        ("embedding.weight", (52, 19), ("model", None)),
        ("embedding.weight", (53, 18), (None, None)),
        ("stacks.0.block.ffn.down", (2, 41, 16), (None, None, "data")),
        ("stacks.0.block.mine.table", (4, 12, 20), (None, None, "data")),  # no rule: over the largest axis
        ("stacks.0.block.mine.table", (4, 12, 21), (None, "data", None)),
        ("stacks.0.block.mixer_norm.weight", (4, 16), (None, None)),  # a vector of each layer
        ("position.weight", (64, 16), ("data", None)),
        ("step", (), ()),
        ("stacks.0.block.notmixer.wq", (2, 16, 16, 16), (None, "data", None, None)),  # a rule's end, but other axes
    ],
)
def test_an_array_lies_as_its_rule_says_as_far_as_its_sizes_allow(path, shape, expected):
    assert mesh_axes(path, shape, SIZES) == expected


@pytest.mark.parametrize(("data", "model"), [(8, 1), (1, 8), (2, 4)])
def test_each_device_holds_its_share_of_what_is_divided(make, data, model):
    config = make(
        model={"dim": 64, "mixer": {"kind": "attention", "num_heads": 8}, "ffn": {"kind": "swiglu", "hidden": 128}}
    )
    found = list(parameter_placements(config.model, 64, 16, data, model))
    assert sum(prod(one.shape) for one in found) == num_params(config.model, 64, 16)
    for one in found:
        whole = len(one.shape) - one.path.startswith("stacks.") < 2
        assert one.bytes == 4 * prod(one.shape) // (1 if whole else 8)
    assert device_bytes(config.model, 64, 16, data, model) == 4 * sum(one.bytes for one in found)


@pytest.mark.parametrize(
    ("data", "model", "path", "told"),
    [
        (3, 1, ("train", "batch_size"), "data=1, 2, 4"),
        (1, 4, ("model", "layers", 0, "mixer", "num_heads"), "model=1, which divides"),
        (1, 2, ("model", "layers", 1, "ffn", "hidden"), "model=1, which divides"),
    ],
)
def test_what_cannot_be_divided_is_refused_with_what_can(make, data, model, path, told):
    config = make(model={"layers": {1: {"ffn": {"kind": "swiglu", "hidden": 9}}}})
    with pytest.raises(UserError) as found:
        check_mesh(config, 8, data, model)
    assert found.value.path == path
    assert told in str(found.value)


def test_a_run_is_divided_by_the_fewest_devices_that_hold_it_over_its_batch_first(make, text):
    task, source = text
    config = make(task, {"dim": 32, "mixer": {"kind": "attention", "num_heads": 8}, "ffn": {"kind": "relu"}})
    ways = list(possible_divisions(config, source.vocab_size, 8))
    assert ways == [(1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (1, 4), (4, 2), (2, 4), (1, 8)]
    whole, half, fourth = (device_bytes(config.model, source.vocab_size, source.seq_len, data, 1) for data in (1, 2, 4))
    assert whole > half > fourth
    for memory, expected in ((whole, (1, 1)), (whole - 1, (2, 1)), (half - 1, (4, 1)), (1, (1, 8))):
        assert fitting_division(config, source, memory, 8) == expected
