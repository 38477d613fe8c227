"""Tables that map tensors and settings of Hugging Face architectures to those of taetpu.

In tensor names, `{i}` is the layer's number.

Source: modeling_gpt2.py and modeling_llama.py in transformers (names and layouts), and configuration_gpt2.py and
configuration_llama.py (defaults).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from taetpu.core.errors import UserError, suggest

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Rule:
    """A mapping of a Hugging Face tensor (`theirs`) to parameters of taetpu (`ours`).

    `ours` contains one or more names separated by spaces. The tensor is the concatenation of these parameters along the
    output axis.
    """

    theirs: str
    ours: str
    transposed: bool = False  # True for the weight of a torch Linear, whose layout is (out, in)


@dataclass(frozen=True)
class Family:
    """A Hugging Face architecture, identified by its `model_type`.

    Attributes:
        model_type: the value of `model_type` in `config.json`.
        architecture: the class name in `config.json`.
        prefix: the prefix of tensor names in a model with a head.
        rules: the mappings of all tensors.
        required: the settings that have no default.
        fixed: the default values of the settings for which no other value is supported.
        ignored: the suffixes of tensors in older files that no model uses.
        read: a function that converts Hugging Face settings to the data of a `ModelConfig`.
        needs: the values of taetpu's settings that the family supports, by dotted name (see
            `huggingface.flatten_model_config`).
        write: a function that converts taetpu's settings to Hugging Face settings.
        zero_biases: whether the Hugging Face model always has biases, so that missing biases are written as zeros.
    """

    model_type: str
    architecture: str
    prefix: str
    rules: tuple[Rule, ...]
    required: tuple[str, ...]
    fixed: Settings
    ignored: tuple[str, ...]
    read: Callable[[Settings], dict[str, Any]]
    needs: Mapping[str, tuple[Any, ...]]
    write: Callable[[Settings], dict[str, Any]]
    zero_biases: bool = False


def translate_choice(config: Settings, name: str, known: Mapping[str, str], default: str) -> str:
    """Return taetpu's name for the value of a Hugging Face setting.

    Args:
        config: the Hugging Face settings.
        name: the name of the setting.
        known: taetpu's name for each supported value.
        default: the value if the setting is missing.

    Raises:
        UserError: if the value is not supported.
    """
    value = config.get(name, default)
    if value not in known:
        raise UserError(f"{name}={value!r} is not supported", path=(name,), remedy=suggest(str(value), known))
    return known[value]


# --- GPT-2 -----------------------------------------------------------------------------------------------------------
# The weight of Conv1D has the layout (in, out), as in taetpu. c_attn concatenates q, k and v.

GPT2_RULES = (
    Rule("transformer.wte.weight", "embedding.weight"),
    Rule("transformer.wpe.weight", "position.weight"),
    Rule("transformer.h.{i}.ln_1.weight", "layers.{i}.mixer_norm.weight"),
    Rule("transformer.h.{i}.ln_1.bias", "layers.{i}.mixer_norm.bias"),
    Rule("transformer.h.{i}.attn.c_attn.weight", "layers.{i}.mixer.wq layers.{i}.mixer.wk layers.{i}.mixer.wv"),
    Rule("transformer.h.{i}.attn.c_attn.bias", "layers.{i}.mixer.bq layers.{i}.mixer.bk layers.{i}.mixer.bv"),
    Rule("transformer.h.{i}.attn.c_proj.weight", "layers.{i}.mixer.wo"),
    Rule("transformer.h.{i}.attn.c_proj.bias", "layers.{i}.mixer.bo"),
    Rule("transformer.h.{i}.ln_2.weight", "layers.{i}.ffn_norm.weight"),
    Rule("transformer.h.{i}.ln_2.bias", "layers.{i}.ffn_norm.bias"),
    Rule("transformer.h.{i}.mlp.c_fc.weight", "layers.{i}.ffn.up"),
    Rule("transformer.h.{i}.mlp.c_fc.bias", "layers.{i}.ffn.up_bias"),
    Rule("transformer.h.{i}.mlp.c_proj.weight", "layers.{i}.ffn.down"),
    Rule("transformer.h.{i}.mlp.c_proj.bias", "layers.{i}.ffn.down_bias"),
    Rule("transformer.ln_f.weight", "norm.weight"),
    Rule("transformer.ln_f.bias", "norm.bias"),
    Rule("lm_head.weight", "embedding.unembed", transposed=True),
)

GPT2_ACTIVATIONS = {"gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "gelu": "gelu-erf", "relu": "relu"}
GPT2_DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")


def read_gpt2(config: Settings) -> dict[str, Any]:
    """Convert GPT-2 settings to the data of a `ModelConfig`."""
    rates = {name: config.get(name, 0.1) for name in GPT2_DROPOUTS}
    if len(set(rates.values())) > 1:
        problem = f"different dropout rates are not supported: {', '.join(f'{k}={v}' for k, v in rates.items())}"
        raise UserError(problem, path=(GPT2_DROPOUTS[0],), remedy="Use a model with equal dropout rates.")
    return {
        "dim": config["n_embd"],
        "num_layers": config["n_layer"],
        "mixer": {"kind": "attention", "num_heads": config["n_head"]},
        "position": "learned",
        "norm": {"kind": "layer", "eps": config.get("layer_norm_epsilon", 1e-5)},
        "ffn": {
            "kind": translate_choice(config, "activation_function", GPT2_ACTIVATIONS, "gelu_new"),
            "hidden": config.get("n_inner") or 4 * config["n_embd"],
        },
        "embedding": "tied" if config.get("tie_word_embeddings", True) else "untied",
        "init": {"kind": "gpt2-scaled", "std": config.get("initializer_range", 0.02)},
        "bias": True,
        "dropout": rates["resid_pdrop"],
    }


def write_gpt2(ours: Settings) -> dict[str, Any]:
    """Convert taetpu's settings to GPT-2 settings."""
    activation = next(theirs for theirs, kind in GPT2_ACTIVATIONS.items() if kind == ours["ffn.kind"])
    return {
        "vocab_size": ours["vocab_size"],
        "n_positions": ours["seq_len"],
        "n_embd": ours["dim"],
        "n_layer": ours["num_layers"],
        "n_head": ours["mixer.num_heads"],
        "n_inner": ours["ffn.hidden"],
        "activation_function": activation,
        "layer_norm_epsilon": ours["norm.eps"],
        "tie_word_embeddings": ours["embedding.kind"] == "tied",
        **dict.fromkeys(GPT2_DROPOUTS, ours["dropout"]),
    }


# The settings that both families restrict in the same way, with the supported values.
PLAIN = {
    "mixer.kind": ("attention",),
    "mixer.causal": (True,),
    "mixer.mask.kind": ("causal",),
    "mixer.qk_norm.kind": ("none",),
    "mixer.values.kind": ("none",),
    "mixer.normalizer.kind": ("softmax",),
    "mixer.gate.kind": ("none",),
    "mixer.scale": (None,),
    "mixer.drop_heads": ([],),
    "norm.placement": ("pre",),
    "mixer.scores.kind": ("none",),
    "residual.kind": ("standard",),
    "order.kind": ("sequential",),
    "short_conv.kind": ("none",),
    "layer_dropout.kind": ("none",),
    "after.kind": ("none",),
    "adapter.kind": ("none",),
    "stem.kind": ("none",),
    "logits.kind": ("none",),
    "embedding.kind": ("tied", "untied"),
    "drop": ([],),
}

GPT2 = Family(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    prefix="transformer.",
    rules=GPT2_RULES,
    required=("n_embd", "n_layer", "n_head", "n_positions", "vocab_size"),
    fixed={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    ignored=(".attn.bias", ".attn.masked_bias"),
    read=read_gpt2,
    needs={
        **PLAIN,
        "mixer.num_kv_heads": (None,),
        "mixer.head_dim": (None,),
        "position.kind": ("learned",),
        "norm.kind": ("layer",),
        "norm.affine": (True,),
        "ffn.kind": tuple(dict.fromkeys(GPT2_ACTIVATIONS.values())),
    },
    write=write_gpt2,
    zero_biases=True,
)


# --- Llama -----------------------------------------------------------------------------------------------------------
# The weight of Linear has the layout (out, in). As in taetpu, RoPE pairs the elements of the two halves of a head.

LLAMA_RULES = (
    Rule("model.embed_tokens.weight", "embedding.weight"),
    Rule("model.layers.{i}.input_layernorm.weight", "layers.{i}.mixer_norm.weight"),
    Rule("model.layers.{i}.self_attn.q_proj.weight", "layers.{i}.mixer.wq", transposed=True),
    Rule("model.layers.{i}.self_attn.q_proj.bias", "layers.{i}.mixer.bq"),
    Rule("model.layers.{i}.self_attn.k_proj.weight", "layers.{i}.mixer.wk", transposed=True),
    Rule("model.layers.{i}.self_attn.k_proj.bias", "layers.{i}.mixer.bk"),
    Rule("model.layers.{i}.self_attn.v_proj.weight", "layers.{i}.mixer.wv", transposed=True),
    Rule("model.layers.{i}.self_attn.v_proj.bias", "layers.{i}.mixer.bv"),
    Rule("model.layers.{i}.self_attn.o_proj.weight", "layers.{i}.mixer.wo", transposed=True),
    Rule("model.layers.{i}.self_attn.o_proj.bias", "layers.{i}.mixer.bo"),
    Rule("model.layers.{i}.post_attention_layernorm.weight", "layers.{i}.ffn_norm.weight"),
    Rule("model.layers.{i}.mlp.gate_proj.weight", "layers.{i}.ffn.gate", transposed=True),
    Rule("model.layers.{i}.mlp.gate_proj.bias", "layers.{i}.ffn.gate_bias"),
    Rule("model.layers.{i}.mlp.up_proj.weight", "layers.{i}.ffn.up", transposed=True),
    Rule("model.layers.{i}.mlp.up_proj.bias", "layers.{i}.ffn.up_bias"),
    Rule("model.layers.{i}.mlp.down_proj.weight", "layers.{i}.ffn.down", transposed=True),
    Rule("model.layers.{i}.mlp.down_proj.bias", "layers.{i}.ffn.down_bias"),
    Rule("model.norm.weight", "norm.weight"),
    Rule("lm_head.weight", "embedding.unembed", transposed=True),
)

LLAMA_ACTIVATIONS = {"silu": "swiglu", "swish": "swiglu"}


def read_llama(config: Settings) -> dict[str, Any]:
    """Convert Llama settings to the data of a `ModelConfig`."""
    return {
        "dim": config["hidden_size"],
        "num_layers": config["num_hidden_layers"],
        "mixer": {
            "kind": "attention",
            "num_heads": config["num_attention_heads"],
            "num_kv_heads": config.get("num_key_value_heads"),
            "head_dim": config.get("head_dim"),
            "bias": config.get("attention_bias", False),
        },
        "position": {"kind": "rope", "base": rope_base(config)},
        "norm": {"kind": "rms", "eps": config.get("rms_norm_eps", 1e-6)},
        "ffn": {
            "kind": translate_choice(config, "hidden_act", LLAMA_ACTIVATIONS, "silu"),
            "hidden": config["intermediate_size"],
            "bias": config.get("mlp_bias", False),
        },
        "embedding": "tied" if config.get("tie_word_embeddings", False) else "untied",
        "init": {"kind": "gpt2-scaled", "std": config.get("initializer_range", 0.02)},
    }


def rope_base(config: Settings) -> float:
    """Return the base of RoPE from Llama settings.

    Since transformers 5, the base is in `rope_parameters`. Earlier versions store it in `rope_theta`.

    Raises:
        UserError: if RoPE is scaled or applied to only a part of each head.
    """
    where = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    rope = dict(config.get(where) or {})
    base = rope.pop("rope_theta", config.get("rope_theta", 10000.0))
    plain = {"rope_type": "default", "type": "default", "partial_rotary_factor": 1.0}
    for name, value in rope.items():
        if value != plain.get(name):
            raise UserError(
                f"{name}={value!r} is not supported", path=(where, name), remedy="Use a model with plain RoPE."
            )
    return base


def write_llama(ours: Settings) -> dict[str, Any]:
    """Convert taetpu's settings to Llama settings."""
    heads = ours["mixer.num_heads"]
    return {
        "vocab_size": ours["vocab_size"],
        "max_position_embeddings": ours["seq_len"],
        "hidden_size": ours["dim"],
        "num_hidden_layers": ours["num_layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": ours["mixer.num_kv_heads"] or heads,
        "head_dim": ours["mixer.head_dim"] or ours["dim"] // heads,
        "intermediate_size": ours["ffn.hidden"],
        "hidden_act": "silu",
        "rms_norm_eps": ours["norm.eps"],
        "rope_theta": ours["position.base"],
        "rope_parameters": {"rope_type": "default", "rope_theta": ours["position.base"]},
        "attention_bias": ours["mixer.bias"],
        "mlp_bias": ours["ffn.bias"],
        "tie_word_embeddings": ours["embedding.kind"] == "tied",
    }


LLAMA = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    prefix="model.",
    rules=LLAMA_RULES,
    required=("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"),
    fixed={"attention_dropout": 0.0, "partial_rotary_factor": 1.0},
    ignored=(".rotary_emb.inv_freq",),
    read=read_llama,
    needs={
        **PLAIN,
        "position.kind": ("rope",),
        "position.fraction": (1.0,),
        "position.pairs": ("half",),
        "position.scaling.kind": ("none",),
        "norm.kind": ("rms",),
        "norm.weight": ("plain",),
        "ffn.kind": ("swiglu",),
    },
    write=write_llama,
)

FAMILIES = {family.model_type: family for family in (GPT2, LLAMA)}
