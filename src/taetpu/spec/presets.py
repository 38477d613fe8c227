"""Presets: known architectures as baselines at any size, `model: {preset: llama3, dim: 128}`.

A preset sets the components of a model and everything that follows from its width. Proportions are those of the
published model that the preset names: the inner size of the feed-forward network as a multiple of dim, and the number
of query heads for each key-value head.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from taetpu.core.config_parsing import normalize_value
from taetpu.core.errors import UserError, suggest

Settings = dict[str, Any]


@dataclass(frozen=True)
class Preset:
    """A known architecture.

    Attributes:
        about: The model whose proportions the preset has.
        source: The description of the model.
        reference: The class in transformers that the tests compare the preset with; empty if there is none.
        num_layers: The default number of layers.
        settings: A function that returns the settings of the model for a width.
    """

    about: str
    source: str
    reference: str
    num_layers: int
    settings: Callable[[int], Settings]


def num_heads(dim: int, head_dim: int) -> int:
    """Return a number of heads whose width divides `dim`: near dim / head_dim, but at least 4 if `dim` permits."""
    wanted = max(4, dim // head_dim)
    fits = [n for n in range(1, dim + 1) if dim % (2 * n) == 0] or [1]  # rotary positions need an even width
    return min(fits, key=lambda n: (abs(n - wanted), n))


def attention(dim: int, head_dim: int, group: int = 1, **settings: Any) -> Settings:
    """Return attention with heads of about the given width, and `group` query heads for each key-value head."""
    heads = num_heads(dim, head_dim)
    shared = {"num_kv_heads": heads // group} if group > 1 and heads % group == 0 else {}
    return {"kind": "attention", "num_heads": heads, **shared, **settings}


def gpt2(dim: int) -> Settings:
    """Return GPT-2."""
    return {
        "mixer": attention(dim, 64),
        "position": "learned",
        "norm": {"kind": "layer", "placement": "pre"},
        "ffn": "gelu-tanh",
        "embedding": "tied",
        "bias": True,
    }


def llama3(dim: int) -> Settings:
    """Return Llama 3 with the proportions of the 8B model."""
    return {
        "mixer": attention(dim, 128, group=4),
        "position": {"kind": "rope", "base": 500000.0},
        "norm": {"kind": "rms", "placement": "pre", "eps": 1e-5},
        "ffn": {"kind": "swiglu", "mult": 3.5},
        "embedding": "untied",
    }


PRESETS: Mapping[str, Preset] = {
    "gpt2": Preset("GPT-2 small", "Radford et al. 2019; modeling_gpt2.py in transformers", "GPT2LMHeadModel", 12, gpt2),
    "llama3": Preset("Llama 3 8B", "Llama Team 2024, arXiv 2407.21783", "LlamaForCausalLM", 32, llama3),
}


def expand_preset(model: Mapping[str, Any]) -> Settings:
    """Return the data of a model with the settings of its preset, if it has one.

    Settings beside `preset` replace those of the preset. A mapping without a kind changes fields of the preset's
    component.

    Raises:
        UserError: If the preset is unknown, or `dim` is not a positive integer. The path is relative to the model.
    """
    if "preset" not in model:
        return dict(model)
    own = {name: value for name, value in model.items() if name != "preset"}
    name, dim = model["preset"], normalize_value(own.get("dim"), integers=True)
    if name not in PRESETS:
        raise UserError(f"unknown preset {name!r}", path=("preset",), remedy=suggest(str(name), PRESETS))
    if type(dim) is not int or dim < 1:
        problem = f"preset {name!r} needs a width" + (f", got dim={dim!r}" if "dim" in own else "")
        raise UserError(problem, path=("dim",) if "dim" in own else (), remedy="Set dim, e.g. dim: 128.")
    preset = PRESETS[name]
    made: Settings = {"dim": dim, "num_layers": preset.num_layers, **deepcopy(preset.settings(dim))}
    for key, value in own.items():
        if isinstance(value, Mapping) and "kind" not in value and key != "layers" and key in made:
            there = made[key] if isinstance(made[key], Mapping) else {"kind": made[key]}
            made[key] = {**there, **value}
        else:
            made[key] = value
    return made
