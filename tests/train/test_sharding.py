"""Shardings of the arrays of a divided run, and checks of its sizes."""

import pytest

from taetpu.core.errors import UserError
from taetpu.core.tree import leaves_by_path
from taetpu.train.layout import fitting_division
from taetpu.train.model_cost import parameter_shapes
from taetpu.train.sharding import check_mesh, device_bytes, mesh_axes, possible_divisions

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
def test_arrays_are_divided_by_rule_where_their_sizes_allow(path, shape, expected):
    assert mesh_axes(path, shape, SIZES) == expected


@pytest.mark.parametrize(("data", "model"), [(8, 1), (1, 8), (2, 4)])
def test_device_bytes_divide_matrices_and_replicate_vectors(make, data, model):
    config = make(
        model={"dim": 64, "mixer": {"kind": "attention", "num_heads": 8}, "ffn": {"kind": "swiglu", "hidden": 128}}
    )
    whole, divided = 0, 0  # vectors are replicated
    for path, leaf in leaves_by_path(parameter_shapes(config.model, 64, 16)).items():
        is_vector = leaf.ndim - path.startswith("stacks.") < 2
        whole, divided = (whole + leaf.size, divided) if is_vector else (whole, divided + leaf.size)
    assert whole > 0
    assert device_bytes(config, 64, 16, data, model) == 4 * 4 * (whole + divided // 8)


@pytest.mark.parametrize(
    ("data", "model", "path", "told"),
    [
        (3, 1, ("train", "batch_size"), "data=1, 2, 4"),
        (1, 4, ("model", "layers", 0, "mixer", "num_heads"), "model=1, which divides"),
        (1, 2, ("model", "layers", 1, "ffn", "hidden"), "model=1, which divides"),
    ],
)
def test_indivisible_sizes_are_refused_with_the_valid_divisions(make, data, model, path, told):
    config = make(model={"num_layers": 2, "layers": {1: {"ffn": {"kind": "swiglu", "hidden": 9}}}})
    with pytest.raises(UserError) as found:
        check_mesh(config, 8, data, model)
    assert found.value.path == path
    assert told in str(found.value)


def test_fitting_division_uses_the_fewest_devices_and_prefers_data(make, text):
    task, source = text
    config = make(task, {"dim": 32, "mixer": {"kind": "attention", "num_heads": 8}, "ffn": {"kind": "relu"}})
    ways = list(possible_divisions(config, source.vocab_size, 8))
    assert ways == [(1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (1, 4), (4, 2), (2, 4), (1, 8)]
    whole, half, fourth = (device_bytes(config, source.vocab_size, source.seq_len, data, 1) for data in (1, 2, 4))
    assert whole > half > fourth
    for memory, expected in ((whole, (1, 1)), (whole - 1, (2, 1)), (half - 1, (4, 1)), (1, (1, 8))):
        assert fitting_division(config, source, memory, 8) == expected
