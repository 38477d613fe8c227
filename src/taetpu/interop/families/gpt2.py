"""GPT-2.

The weight of Conv1D has the layout (in, out), as in taetpu. c_attn concatenates queries, keys and values. Files of
OpenAI contain attention masks and lack the head, which is tied to the embedding.

Source: modeling_gpt2.py and configuration_gpt2.py in transformers.
"""

from typing import Any

from taetpu.core.errors import UserError
from taetpu.interop.families.base import MLPS, Exported, Family, Required, Settings, choose_name, translate_choice
from taetpu.interop.layouts import LINEAR, Rule

RULES = (
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
    Rule("lm_head.weight", "embedding.unembed", LINEAR),
)
DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")


def read_gpt2(config: Settings) -> dict[str, Any]:
    """Convert GPT-2 settings to the data of a `ModelConfig`."""
    rates = {name: config[name] for name in DROPOUTS}
    if len(set(rates.values())) > 1:
        problem = f"different dropout rates are not supported: {', '.join(f'{k}={v}' for k, v in rates.items())}"
        raise UserError(problem, path=(DROPOUTS[0],), remedy="Use a model with equal dropout rates.")
    return {
        "dim": config["n_embd"],
        "num_layers": config["n_layer"],
        "mixer": {"kind": "attention", "num_heads": config["n_head"]},
        "position": "learned",
        "norm": {"kind": "layer", "eps": config["layer_norm_epsilon"]},
        "ffn": {
            "kind": translate_choice(config, "activation_function", MLPS),
            "hidden": config["n_inner"] or 4 * config["n_embd"],
        },
        "embedding": "tied" if config["tie_word_embeddings"] else "untied",
        "init": {"kind": "gpt2-scaled", "std": config["initializer_range"]},
        "bias": True,
        "dropout": rates["resid_pdrop"],
    }


def write_gpt2(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to GPT-2 settings."""
    return {
        "vocab_size": ours.get("vocab_size"),
        "n_positions": ours.get("seq_len"),
        "n_embd": ours.get("dim"),
        "n_layer": ours.get("num_layers"),
        "n_head": ours.get("mixer.num_heads", 1),
        "n_inner": ours.get("ffn.hidden"),
        "activation_function": choose_name(MLPS, ours.get("ffn.kind")),
        "layer_norm_epsilon": ours.get("norm.eps", 1e-5),
        "tie_word_embeddings": ours.get("embedding.kind") == "tied",
        **dict.fromkeys(DROPOUTS, ours.get("dropout", 0.0)),
    }


GPT2 = Family(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    about="GPT-2",
    prefix="transformer.",
    rules=RULES,
    settings={
        "n_embd": Required,
        "n_layer": Required,
        "n_head": Required,
        "n_positions": Required,
        "vocab_size": Required,
        "n_inner": None,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        **dict.fromkeys(DROPOUTS, 0.1),
    },
    read=read_gpt2,
    write=write_gpt2,
    fixed={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    # reorder_and_upcast_attn changes the precision of float16 only, n_ctx equals n_positions.
    harmless=(
        "n_ctx",
        "reorder_and_upcast_attn",
        "summary_type",
        "summary_use_proj",
        "summary_activation",
        "summary_proj_to_labels",
        "summary_first_dropout",
        "predict_special_tokens",
    ),
    ignored=r"\.attn\.(bias|masked_bias)$",
    choices={"ffn.kind": tuple(dict.fromkeys(MLPS.values()))},
    seq_len="n_positions",
)
