"""The pattern of the mask `window`: each layer has its width, written out when the config is resolved."""

from typing import Any

import pytest

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.core.static_dynamic import promoted_fields, split
from taetpu.nn.lm import ModelConfig


def resolve(mask, num_layers=6, mixer="attention", **settings) -> Any:
    """Return the resolved config of a model with a mask."""
    mixer = {"kind": mixer, "mask": {"kind": "window", **mask}}
    return load_config(ModelConfig, {"dim": 16, "num_layers": num_layers, "mixer": mixer, **settings}).resolve()


def widths(config):
    return [layer.mixer.mask.width for layer in config.layers]


@pytest.mark.parametrize(
    ("mask", "layers", "expected"),
    [
        ({"pattern": "SSL"}, 6, [3, 3, None, 3, 3, None]),
        ({"pattern": "SSL"}, 5, [3, 3, None, 3, None]),
        ({"pattern": "SSL", "last": False}, 5, [3, 3, None, 3, 3]),
        ({"pattern": "S"}, 3, [3, 3, None]),
        ({"pattern": "SLSL"}, 1, [None]),
    ],
)
def test_every_layer_has_the_width_of_its_letter(mask, layers, expected):
    config = resolve({"width": 3, **mask}, layers)
    assert widths(config) == expected
    assert {layer.mixer.mask.pattern for layer in config.layers} == {None}


@pytest.mark.parametrize("mixer", ["attention", "mla", "differential"])
def test_a_pattern_is_the_same_model_as_masks_by_layer(mixer):
    apart = {"mixer": {"kind": mixer, "mask": {"kind": "window", "width": None}}}
    assert resolve({"width": 3, "pattern": "SSL"}, mixer=mixer) == resolve(
        {"width": 3}, mixer=mixer, layers={2: apart, 5: apart}
    )


def test_widths_are_traced_so_that_patterns_share_a_program():
    configs = [resolve({"width": 3, "pattern": pattern}) for pattern in ("SSL", "SL", "SSSL")]
    structures = [split(config, promoted_fields(config))[0] for config in configs]
    assert structures[0] == structures[1] == structures[2]


def test_a_layer_with_its_own_mask_keeps_it():
    own = {"mixer": {"kind": "attention", "mask": {"kind": "window", "width": 7}}}
    assert widths(resolve({"width": 3, "pattern": "SSL"}, layers={-1: own, 0: own})) == [7, 3, None, 3, 3, 7]


@pytest.mark.parametrize(
    ("mask", "field", "message"),
    [
        ({"pattern": "SGL"}, "pattern", "pattern 'SGL' has the letter 'G'"),
        ({"pattern": ""}, "pattern", "pattern '' is empty"),
        ({"pattern": "LL"}, "pattern", "pattern 'LL' has no layer"),
        ({"pattern": "SL", "width": None}, "width", "pattern 'SL' .* letter S, .*width is none"),
        ({"last": False}, "last", "last: false .*no effect"),
    ],
)
def test_an_invalid_pattern_is_refused(mask, field, message):
    with pytest.raises(UserError, match=message) as raised:
        resolve(mask)
    assert raised.value.path[-1] == field
    assert raised.value.remedy
