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
from taetpu.core.errors import UserError, check_known

Settings = dict[str, Any]
WEIGHTLESS = {"kind": "rms", "weight": "none"}


@dataclass(frozen=True)
class Preset:
    """A known architecture.

    Attributes:
        about: The model whose proportions the preset has.
        source: The description of the model.
        reference: The class in transformers that the tests compare the preset with; empty if there is none.
        num_layers: The default number of layers.
        omits: What the published model has and the preset leaves out.
        settings: A function that returns the settings of the model for a width and a number of layers.
    """

    about: str
    source: str
    reference: str
    num_layers: int
    omits: str
    settings: Callable[[int, int], Settings]


def num_heads(dim: int, head_dim: int, group: int = 1) -> int:
    """Return a number of heads with an even width: near dim / head_dim, but at least 4 if `dim` permits.

    The number is a multiple of `group` if `dim` permits.
    """
    wanted = max(4, dim // head_dim)
    fits = [n for n in range(1, dim + 1) if dim % (2 * n) == 0] or [1]  # rotary positions need an even width
    fits = [n for n in fits if n % group == 0] or fits
    return min(fits, key=lambda n: (abs(n - wanted), n))


def attention(dim: int, head_dim: int, group: int = 1, **settings: Any) -> Settings:
    """Return attention with heads of about the given width, and `group` query heads for each key-value head.

    If `dim` is not a multiple of 2 `group`, each query head has its own key-value head.
    """
    heads = num_heads(dim, head_dim, group)
    shared = {"num_kv_heads": heads // group} if group > 1 and heads % group == 0 else {}
    return {"kind": "attention", "num_heads": heads, **shared, **settings}


def gpt2(dim: int, num_layers: int) -> Settings:
    """Return GPT-2."""
    return {
        "mixer": attention(dim, 64),
        "position": "learned",
        "norm": {"kind": "layer", "placement": "pre"},
        "ffn": "gelu-tanh",
        "embedding": "tied",
        "bias": True,
    }


def llama3(dim: int, num_layers: int) -> Settings:
    """Return Llama 3 with the proportions of the 8B model."""
    return _llama(attention(dim, 128, group=4), base=500000.0, mult=3.5, eps=1e-5)


def qwen3(dim: int, num_layers: int) -> Settings:
    """Return Qwen 3 with the proportions of the 8B model."""
    mixer = attention(dim, 128, group=4, qk_norm={"kind": "rms", "eps": 1e-6})
    return _llama(mixer, base=1000000.0, mult=3.0, eps=1e-6)


def olmo2(dim: int, num_layers: int) -> Settings:
    """Return OLMo 2 with the proportions of the 7B model."""
    mixer = attention(dim, 128, qk_norm={"kind": "rms", "over": "all", "eps": 1e-6})
    return _llama(mixer, base=500000.0, mult=2.6875, eps=1e-6, placement="output")


def _llama(mixer: Settings, base: float, mult: float, eps: float, placement: str = "pre") -> Settings:
    """Return a decoder as Llama: rotary positions, RMS norms, SwiGLU and untied embeddings."""
    return {
        "mixer": mixer,
        "position": {"kind": "rope", "base": base},
        "norm": {"kind": "rms", "placement": placement, "eps": eps},
        "ffn": {"kind": "swiglu", "mult": mult},
        "embedding": "untied",
    }


def gemma3(dim: int, num_layers: int) -> Settings:
    """Return Gemma 3 with the proportions of the 4B model, without the linear scaling of RoPE in its global layers.

    Every sixth layer and the last one are global. The window of local layers is 0.4 dim tokens: 1024 in the 4B model.
    """
    mixer = attention(dim, 256, group=2, qk_norm={"kind": "rms", "weight": "unit-offset"})
    local = {
        "mixer": {**mixer, "mask": {"kind": "window", "width": max(2, round(0.4 * dim))}},
        "position": {"kind": "rope", "base": 10000.0},
    }
    return {
        "mixer": mixer,
        "position": {"kind": "rope", "base": 1000000.0},
        "norm": {"kind": "rms", "placement": "sandwich", "weight": "unit-offset"},
        "ffn": {"kind": "geglu-tanh", "mult": 4.0},
        "embedding": "tied",
        "stem": "scale",
        "layers": {i: deepcopy(local) for i in range(num_layers - 1) if (i + 1) % 6},
    }


def nanochat(dim: int, num_layers: int) -> Settings:
    """Return nanochat. Norms have no weights, and queries and keys are multiplied by 1.2 after their norm."""
    return _speedrun(attention(dim, 128, qk_norm={**WEIGHTLESS, "factor": 1.2}), cap=15.0)


def modded_nanogpt(dim: int, num_layers: int) -> Settings:
    """Return the main architectural changes of modded-nanogpt; its optimizer and schedules are separate settings."""
    return _speedrun(attention(dim, 128, qk_norm=WEIGHTLESS, values="residual"), cap=30.0, after="u-net")


def _speedrun(mixer: Settings, cap: float, **more: str) -> Settings:
    """Return a decoder as nanochat: norms without weights, squared ReLU, and logits that are capped at `cap`."""
    return {
        "mixer": mixer,
        "position": {"kind": "rope", "base": 10000.0},
        "norm": {**WEIGHTLESS, "placement": "pre"},
        "ffn": "relu2",
        "embedding": "untied",
        "stem": {"kind": "norm", "norm": WEIGHTLESS},
        **more,
        "logits": {"kind": "softcap", "cap": cap},
        "init": "zero-out",
    }


def bert(dim: int, num_layers: int) -> Settings:
    """Return BERT with its head of a masked language model."""
    return _encoder(dim, 1e-12, types=2)


def roberta(dim: int, num_layers: int) -> Settings:
    """Return RoBERTa with its head of a masked language model."""
    return _encoder(dim, 1e-5, types=1)


def _encoder(dim: int, eps: float, types: int) -> Settings:
    """Return what BERT and RoBERTa share."""
    norm = {"kind": "layer", "eps": eps}
    return {
        "mixer": attention(dim, 64, causal=False),
        "position": "learned",
        "norm": {**norm, "placement": "post"},
        "ffn": "gelu-erf",
        "embedding": {"kind": "tied", "bias": True},
        "types": types,
        "stem": {"kind": "norm", "norm": norm},
        "readout": {"kind": "dense", "activation": "gelu-erf", "norm": norm},
        "bias": True,
    }


def modernbert(dim: int, num_layers: int) -> Settings:
    """Return ModernBERT with its head of a masked language model.

    The first layer and every third one after it attend to all positions. In the others, the window has dim / 6
    positions: 128 in the base model.
    """
    window = {"kind": "local", "width": max(2, round(dim / 6)), "pattern": "LSS", "last": False}
    everywhere = {"position": {"kind": "rope", "base": 160000.0}}
    layers: dict[int, Settings] = {i: deepcopy(everywhere) for i in range(0, num_layers, 3)}
    layers[0]["order"] = "sequential-one-norm"
    return {
        "mixer": attention(dim, 64, mask=window),
        "position": {"kind": "rope", "base": 10000.0},
        "norm": {"kind": "layer", "placement": "pre"},
        "ffn": {"kind": "geglu", "mult": 1.5},
        "embedding": {"kind": "tied", "bias": True},
        "types": 0,
        "stem": "norm",
        "readout": "dense",
        "layers": layers,
    }


PRESETS: Mapping[str, Preset] = {
    "gpt2": Preset(
        "GPT-2 small", "Radford et al. 2019; modeling_gpt2.py in transformers", "GPT2LMHeadModel", 12,
        "dropout of 0.1 (`dropout: 0.1`)", gpt2,
    ),
    "llama3": Preset(
        "Llama 3 8B", "Llama Team 2024, arXiv 2407.21783", "LlamaForCausalLM", 32,
        "the mask between documents (mask `document`) and the scaled positions of Llama 3.1 (`position.scaling`)",
        llama3,
    ),
    "qwen3": Preset(
        "Qwen 3 8B", "Qwen Team 2025, arXiv 2505.09388", "Qwen3ForCausalLM", 36,
        "the scaled positions for long texts (`position.scaling`), and tied embeddings, which only smaller models have",
        qwen3,
    ),
    "gemma3": Preset(
        "Gemma 3 4B", "Gemma Team 2025, arXiv 2503.19786", "Gemma3ForCausalLM", 34,
        "the linear scaling of positions in global layers, heads whose total width differs from dim (the 4B model has "
        "8 heads of width 256 at dim 2560) and the image encoder", gemma3,
    ),
    "olmo2": Preset(
        "OLMo 2 7B", "OLMo Team 2025, arXiv 2501.00656", "Olmo2ForCausalLM", 32,
        "the z-loss (hook `z-loss`)", olmo2,
    ),
    "nanochat": Preset(
        "nanochat d20", "github.com/karpathy/nanochat", "NanoChatForCausalLM", 20,
        "additions of later versions: windows, value embeddings, and trained factors of the stream and of the "
        "embedding in each layer", nanochat,
    ),
    "modded-nanogpt": Preset(
        "modded-nanogpt", "github.com/KellerJordan/modded-nanogpt", "", 12,
        "value embeddings, the skips from the embedding (after `x0`), windows that grow in training, and products in "
        "8 bits", modded_nanogpt,
    ),
    "bert": Preset(
        "BERT base", "Devlin et al. 2019, arXiv 1810.04805", "BertForMaskedLM", 12,
        "dropout of 0.1 (`dropout: 0.1`) and the prediction of next sentences; of a classifier, readout `pooler`", bert,
    ),
    "roberta": Preset(
        "RoBERTa base", "Liu et al. 2019, arXiv 1907.11692", "RobertaForMaskedLM", 12,
        "dropout of 0.1 (`dropout: 0.1`); of a classifier, readout `pooler`", roberta,
    ),
    "modernbert": Preset(
        "ModernBERT base", "Warner et al. 2024, arXiv 2412.13663", "ModernBertForMaskedLM", 22,
        "the unpadding of batches", modernbert,
    ),
}  # fmt: skip
SHARED_OMISSIONS = "Optimizer, schedule, initial weights and data are settings of the study, not of a preset."


def expand_preset(model: Mapping[str, Any]) -> Settings:
    """Return the data of a model with the settings of its preset, if it has one.

    Settings beside `preset` replace those of the preset. A mapping without a kind changes fields of the preset's
    component.

    Raises:
        UserError: If the preset is unknown, or `dim` is not a positive integer. The path is relative to the model.
    """
    if "preset" not in model:
        return dict(model)
    written = {name: value for name, value in model.items() if name != "preset"}
    name, dim = model["preset"], normalize_value(written.get("dim"), integers=True)
    check_known(str(name), PRESETS, f"unknown preset {name!r}", path=("preset",))
    if type(dim) is not int or dim < 1:
        problem = f"preset {name!r} needs a width" + (f", got dim={dim!r}" if "dim" in written else "")
        raise UserError(problem, path=("dim",) if "dim" in written else (), remedy="Set dim, e.g. dim: 128.")
    preset = PRESETS[name]
    num_layers = normalize_value(written.get("num_layers", preset.num_layers), integers=True)
    layers = num_layers if type(num_layers) is int else preset.num_layers  # another value is refused with the model
    made: Settings = {"dim": dim, "num_layers": preset.num_layers, **deepcopy(preset.settings(dim, layers))}
    return replace_settings(made, written)


def replace_settings(model: Mapping[str, Any], written: Mapping[str, Any]) -> Settings:
    """Return the data of a model with other settings, which also replace those of single layers.

    A mapping without a kind changes fields of the model's component. `layers` replaces all settings of single layers.
    """
    made = deepcopy(dict(model))
    for key, value in written.items():
        if isinstance(value, Mapping) and "kind" not in value and key != "layers" and key in made:
            made[key] = _with_fields(made[key], value)
        else:
            made[key] = value
    for layer in made["layers"].values() if "layers" not in written and "layers" in made else ():
        layer.update({key: _in_layer(layer[key], value) for key, value in written.items() if key in layer})
    return made


def _with_fields(component: Any, fields: Mapping[str, Any]) -> Settings:
    """Return a component of a preset with other fields."""
    return {**(component if isinstance(component, Mapping) else {"kind": component}), **fields}


def _in_layer(component: Any, value: Any) -> Any:
    """Return a component of a single layer, changed like that of the model."""
    return _with_fields(component, value) if isinstance(value, Mapping) and "kind" not in value else deepcopy(value)
