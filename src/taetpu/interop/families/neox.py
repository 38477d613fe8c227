"""GPT-NeoX and Pythia.

Queries, keys and values are one projection whose outputs are ordered by head. RoPE rotates a share of each head. Files
of earlier versions name the head `embed_out` and contain attention masks.

Source: modeling_gpt_neox.py and configuration_gpt_neox.py in transformers.
"""

from typing import Annotated, Any

from pydantic import Field, PositiveFloat

from taetpu.interop.families.base import (
    DEFAULT_LENGTH,
    MLPS,
    Count,
    Exported,
    Family,
    Settings,
    TokenNumbers,
    choose_name,
    translate_choice,
)
from taetpu.interop.families.rope import RopeReader, RopeSettings, Share, write_plain_rope
from taetpu.interop.layouts import HEADS_FUSED, LINEAR, Rule

LAYER = "gpt_neox.layers.{i}"
RULES = (
    Rule("gpt_neox.embed_in.weight", "embedding.weight"),
    Rule(f"{LAYER}.input_layernorm.weight", "layers.{i}.mixer_norm.weight"),
    Rule(f"{LAYER}.input_layernorm.bias", "layers.{i}.mixer_norm.bias"),
    Rule(
        f"{LAYER}.attention.query_key_value.weight",
        "layers.{i}.mixer.wq layers.{i}.mixer.wk layers.{i}.mixer.wv",
        HEADS_FUSED,
    ),
    Rule(
        f"{LAYER}.attention.query_key_value.bias",
        "layers.{i}.mixer.bq layers.{i}.mixer.bk layers.{i}.mixer.bv",
        HEADS_FUSED,
    ),
    Rule(f"{LAYER}.attention.dense.weight", "layers.{i}.mixer.wo", LINEAR),
    Rule(f"{LAYER}.attention.dense.bias", "layers.{i}.mixer.bo"),
    Rule(f"{LAYER}.post_attention_layernorm.weight", "layers.{i}.ffn_norm.weight"),
    Rule(f"{LAYER}.post_attention_layernorm.bias", "layers.{i}.ffn_norm.bias"),
    Rule(f"{LAYER}.mlp.dense_h_to_4h.weight", "layers.{i}.ffn.up", LINEAR),
    Rule(f"{LAYER}.mlp.dense_h_to_4h.bias", "layers.{i}.ffn.up_bias"),
    Rule(f"{LAYER}.mlp.dense_4h_to_h.weight", "layers.{i}.ffn.down", LINEAR),
    Rule(f"{LAYER}.mlp.dense_4h_to_h.bias", "layers.{i}.ffn.down_bias"),
    Rule("gpt_neox.final_layer_norm.weight", "norm.weight"),
    Rule("gpt_neox.final_layer_norm.bias", "norm.bias"),
    Rule("embed_out.weight", "embedding.unembed", LINEAR),
)


ROPE = RopeReader(share=0.25, partial=True)


class NeoXSettings(RopeSettings):
    """The settings of GPT-NeoX."""

    bos_token_id: TokenNumbers = 0
    eos_token_id: TokenNumbers = 2
    hidden_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    intermediate_size: Count
    max_position_embeddings: Count | None = 2048
    hidden_act: str = "gelu"
    layer_norm_eps: PositiveFloat = 1e-5
    attention_bias: bool = True
    use_parallel_residual: bool = True
    hidden_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    rotary_emb_base: PositiveFloat | None = None
    rotary_pct: Share | None = None


def read_neox(config: Settings) -> dict[str, Any]:
    """Convert GPT-NeoX settings to the data of a `ModelConfig`.

    transformers reads the base and the share outside `rope_parameters` from `rotary_emb_base` and `rotary_pct` alone.
    The dropout rate is that of branches; that of attention is not read.
    """
    outside = {"rope_theta": config["rotary_emb_base"], "partial_rotary_factor": config["rotary_pct"]}
    parallel = "parallel-two-norms" if config["use_parallel_residual"] else "sequential"
    return {
        "dim": config["hidden_size"],
        "num_layers": config["num_hidden_layers"],
        "mixer": {
            "kind": "attention",
            "num_heads": config["num_attention_heads"],
            "bias": config["attention_bias"],
        },
        "position": ROPE.read({**config, **outside}, config["max_position_embeddings"] or DEFAULT_LENGTH),
        "norm": {"kind": "layer", "eps": config["layer_norm_eps"]},
        "ffn": {"kind": translate_choice(config, "hidden_act", MLPS), "hidden": config["intermediate_size"]},
        "order": parallel,
        "embedding": "tied" if config["tie_word_embeddings"] else "untied",
        "init": {"kind": "normal", "std": config["initializer_range"]},
        "bias": True,
        "dropout": config["hidden_dropout"],
    }


def write_neox(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to GPT-NeoX settings, for current and earlier versions of transformers."""
    rope = write_plain_rope(ours.model)
    share = ours.get("position.fraction", 1.0)
    rope["rope_parameters"]["partial_rotary_factor"] = share
    return {
        "vocab_size": ours.get("vocab_size"),
        "max_position_embeddings": ours.get("seq_len"),
        "hidden_size": ours.get("dim"),
        "num_hidden_layers": ours.get("num_layers"),
        "num_attention_heads": ours.get("mixer.num_heads", 1),
        "intermediate_size": ours.get("ffn.hidden", ours.get("dim")),
        "hidden_act": choose_name({"gelu": "gelu-erf", **MLPS}, ours.get("ffn.kind")),
        "layer_norm_eps": ours.get("norm.eps", 1e-5),
        "attention_bias": ours.get("mixer.bias", False) is not False,
        "use_parallel_residual": ours.get("order.kind") != "sequential",
        "tie_word_embeddings": ours.get("embedding.kind") == "tied",
        "hidden_dropout": ours.get("dropout", 0.0),
        "attention_dropout": ours.get("dropout", 0.0),
        "rotary_emb_base": rope["rope_theta"],
        "rotary_pct": share,
        **rope,
    }


NEOX = Family(
    model_type="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    about="GPT-NeoX, Pythia",
    prefix="gpt_neox.",
    rules=RULES,
    settings=NeoXSettings,
    read=read_neox,
    write=write_neox,
    renamed=((r"^lm_head\.", "embed_out."),),
    ignored=r"\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)$|\.rotary_emb\.inv_freq$",
    choices={"ffn.kind": tuple(dict.fromkeys(MLPS.values()))},
    head="embed_out.weight",
)
