"""OPT.

The first two rows of the table of positions belong to padding. They are not read, and are written as zeros.

Source: modeling_opt.py and configuration_opt.py in transformers.
"""

from typing import Any

from taetpu.core.errors import UserError
from taetpu.interop.families.base import Count, Exported, Family, FamilySettings, NotNegative, Settings, TokenNumbers
from taetpu.interop.families.layer_norms import MLP_CHOICES, Names, Rate
from taetpu.interop.layouts import LINEAR, PADDED, Rule, layer_rules, module_rules

LAYER = "model.decoder.layers.{i}"
NAMES = Names(hidden="ffn_dim", act="activation_function", std="init_std", dropouts=("dropout", "attention_dropout"))


class OPTSettings(FamilySettings):
    """The settings of OPT."""

    bos_token_id: TokenNumbers = 2
    eos_token_id: TokenNumbers = 2
    pad_token_id: TokenNumbers = 1
    hidden_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    ffn_dim: Count
    max_position_embeddings: Count = 2048
    word_embed_proj_dim: Count | None = None
    activation_function: str = "relu"
    do_layer_norm_before: bool = True
    enable_bias: bool = True
    layer_norm_elementwise_affine: bool = True
    init_std: NotNegative = 0.02
    tie_word_embeddings: bool = True
    dropout: Rate = 0.1


def read_opt(config: Settings) -> dict[str, Any]:
    """Convert OPT settings to the data of a `ModelConfig`.

    Raises:
        UserError: If the embeddings have another width than the model, as in OPT 350M.
    """
    size = config["word_embed_proj_dim"]
    if size not in (None, config["hidden_size"]):
        problem = f"word_embed_proj_dim={size} is not supported: embeddings are projected to {config['hidden_size']}"
        remedy = f"Use a model with word_embed_proj_dim={config['hidden_size']}, which all OPT models but 350M have."
        raise UserError(problem, path=("word_embed_proj_dim",), remedy=remedy)
    made = NAMES.read({**config, NAMES.eps: 1e-5})
    made["norm"] |= {
        "placement": "pre" if config["do_layer_norm_before"] else "post",
        "bias": config["layer_norm_elementwise_affine"],
        "affine": config["layer_norm_elementwise_affine"],
    }
    return {**made, "position": "learned", "bias": config["enable_bias"]}


def write_opt(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to OPT settings."""
    made = NAMES.write(ours)
    del made[NAMES.eps]
    return {
        **made,
        "word_embed_proj_dim": ours.get("dim"),
        "do_layer_norm_before": ours.get("norm.placement") != "post",
        "enable_bias": bool(ours.get("mixer.bias", False)),
        "layer_norm_elementwise_affine": ours.get("norm.affine", True),
    }


OPT = Family(
    model_type="opt",
    architecture="OPTForCausalLM",
    about="OPT",
    rules=(
        Rule("model.decoder.embed_tokens.weight", "embedding.weight"),
        Rule("model.decoder.embed_positions.weight", "position.weight", PADDED),
        *(rule for x in "qkv" for rule in layer_rules(f"{LAYER}.self_attn.{x}_proj", f"mixer.w{x}")),
        *layer_rules(f"{LAYER}.self_attn.out_proj", "mixer.wo"),
        *layer_rules(f"{LAYER}.self_attn_layer_norm", "mixer_norm"),
        *layer_rules(f"{LAYER}.fc1", "ffn.up"),
        *layer_rules(f"{LAYER}.fc2", "ffn.down"),
        *layer_rules(f"{LAYER}.final_layer_norm", "ffn_norm"),
        *module_rules("model.decoder.final_layer_norm", "norm"),
        Rule("lm_head.weight", "embedding.unembed", LINEAR),
    ),
    settings=OPTSettings,
    read=read_opt,
    write=write_opt,
    fixed={"_remove_final_layer_norm": False},
    harmless=("layerdrop",),
    choices=MLP_CHOICES,
    std="init_std",
)
