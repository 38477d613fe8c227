"""GPT-NeoX and Pythia.

Queries, keys and values are one projection whose outputs are ordered by head. RoPE rotates a share of each head. Files
of earlier versions name the head `embed_out` and contain attention masks.

Source: modeling_gpt_neox.py and configuration_gpt_neox.py in transformers.
"""

from typing import Any

from pydantic import PositiveFloat

from taetpu.interop.families.base import (
    DEFAULT_LENGTH,
    MLPS,
    Count,
    Exported,
    Family,
    Settings,
    TokenNumbers,
    choose_name,
)
from taetpu.interop.families.layer_norms import MLP_CHOICES, Names, Rate
from taetpu.interop.families.rope import RopeReader, RopeSettings, Share, write_plain_rope
from taetpu.interop.layouts import HEADS_FUSED, LINEAR, Rule, layer_rules, module_rules

LAYER = "gpt_neox.layers.{i}"
RULES = (
    Rule("gpt_neox.embed_in.weight", "embedding.weight"),
    *layer_rules(f"{LAYER}.input_layernorm", "mixer_norm"),
    *layer_rules(f"{LAYER}.attention.query_key_value", "mixer.wq mixer.wk mixer.wv", HEADS_FUSED),
    *layer_rules(f"{LAYER}.attention.dense", "mixer.wo"),
    *layer_rules(f"{LAYER}.post_attention_layernorm", "ffn_norm"),
    *layer_rules(f"{LAYER}.mlp.dense_h_to_4h", "ffn.up"),
    *layer_rules(f"{LAYER}.mlp.dense_4h_to_h", "ffn.down"),
    *module_rules("gpt_neox.final_layer_norm", "norm"),
    Rule("embed_out.weight", "embedding.unembed", LINEAR),
)


NAMES = Names()
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
    hidden_dropout: Rate = 0.0
    rotary_emb_base: PositiveFloat | None = None
    rotary_pct: Share | None = None


def read_neox(config: Settings) -> dict[str, Any]:
    """Convert GPT-NeoX settings to the data of a `ModelConfig`.

    transformers reads the base and the share outside `rope_parameters` from `rotary_emb_base` and `rotary_pct` alone.
    """
    outside = {"rope_theta": config["rotary_emb_base"], "partial_rotary_factor": config["rotary_pct"]}
    made = NAMES.read(config)
    made["mixer"]["bias"] = config["attention_bias"]
    position = ROPE.read({**config, **outside}, config["max_position_embeddings"] or DEFAULT_LENGTH)
    order = "parallel-two-norms" if config["use_parallel_residual"] else "sequential"
    return {**made, "position": position, "order": order}


def write_neox(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to GPT-NeoX settings, for current and earlier versions of transformers."""
    rope = write_plain_rope(ours.model, partial=True)
    return {
        **NAMES.write(ours),
        "hidden_act": choose_name({"gelu": "gelu-erf", **MLPS}, ours.get("ffn.kind")),
        "attention_bias": ours.get("mixer.bias", False) is not False,
        "use_parallel_residual": ours.get("order.kind") != "sequential",
        "rotary_emb_base": rope["rope_theta"],
        "rotary_pct": rope["partial_rotary_factor"],
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
    choices=MLP_CHOICES,
    head="embed_out.weight",
)
