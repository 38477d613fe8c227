"""GPT-2.

The weight of Conv1D has the layout (in, out), as in taetpu. c_attn concatenates queries, keys and values. Files of
OpenAI contain attention masks and lack the head, which is tied to the embedding.

Source: modeling_gpt2.py and configuration_gpt2.py in transformers.
"""

from typing import Annotated, Any

from pydantic import Field, PositiveFloat

from taetpu.interop.families.base import (
    MLPS,
    Count,
    Exported,
    Family,
    FamilySettings,
    Settings,
    TokenNumbers,
    choose_name,
    translate_choice,
)
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


class GPT2Settings(FamilySettings):
    """The settings of GPT-2."""

    bos_token_id: TokenNumbers = 50256
    eos_token_id: TokenNumbers = 50256
    n_embd: Count
    n_layer: Count
    n_head: Count
    n_positions: Count
    n_inner: Count | None = None
    activation_function: str = "gelu_new"
    layer_norm_epsilon: PositiveFloat = 1e-5
    tie_word_embeddings: bool = True
    resid_pdrop: Annotated[float, Field(ge=0, lt=1)] = 0.1


def read_gpt2(config: Settings) -> dict[str, Any]:
    """Convert GPT-2 settings to the data of a `ModelConfig`.

    The dropout rate is that of branches. The other rates act in training alone, like this one, and are not read.
    """
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
        "dropout": config["resid_pdrop"],
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
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), ours.get("dropout", 0.0)),
    }


GPT2 = Family(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    about="GPT-2",
    prefix="transformer.",
    rules=RULES,
    settings=GPT2Settings,
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
        "summary_last_dropout",
        "predict_special_tokens",
    ),
    aliases={
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    ignored=r"\.attn\.(bias|masked_bias)$",
    choices={"ffn.kind": tuple(dict.fromkeys(MLPS.values()))},
    seq_len="n_positions",
)
