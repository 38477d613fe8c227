"""GPT-2.

The weight of Conv1D has the layout (in, out), as in taetpu. c_attn concatenates queries, keys and values. Files of
OpenAI contain attention masks and lack the head, which is tied to the embedding.

In checkpoints of nanoGPT, matrices are those of torch's Linear, and the config has nanoGPT's names.

Source: modeling_gpt2.py and configuration_gpt2.py in transformers; model.py in nanoGPT.
"""

from dataclasses import replace
from typing import Any

from pydantic import PositiveFloat

from taetpu.interop.families.base import Count, Exported, Family, FamilySettings, Settings, TokenNumbers
from taetpu.interop.families.layer_norms import GPT, GPT_ALIASES, MLP_CHOICES, SUMMARY, Rate
from taetpu.interop.layouts import LINEAR, PLAIN, Layout, Rule, layer_rules, module_rules

LAYER = "transformer.h.{i}"


def gpt2_rules(layout: Layout) -> tuple[Rule, ...]:
    """Return the rules of all tensors, in which matrices have the given layout."""
    return (
        Rule("transformer.wte.weight", "embedding.weight"),
        Rule("transformer.wpe.weight", "position.weight"),
        *layer_rules(f"{LAYER}.ln_1", "mixer_norm"),
        *layer_rules(f"{LAYER}.attn.c_attn", "mixer.wq mixer.wk mixer.wv", layout),
        *layer_rules(f"{LAYER}.attn.c_proj", "mixer.wo", layout),
        *layer_rules(f"{LAYER}.ln_2", "ffn_norm"),
        *layer_rules(f"{LAYER}.mlp.c_fc", "ffn.up", layout),
        *layer_rules(f"{LAYER}.mlp.c_proj", "ffn.down", layout),
        *module_rules("transformer.ln_f", "norm"),
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
    resid_pdrop: Rate = 0.1
    scale_attn_by_inverse_layer_idx: bool = False


def read_gpt2(config: Settings) -> dict[str, Any]:
    """Convert GPT-2 settings to the data of a `ModelConfig`."""
    made = {**GPT.read(config), "position": "learned"}
    made["init"]["kind"] = "gpt2-scaled"
    if config["scale_attn_by_inverse_layer_idx"]:
        scales = layer_scales(config["n_embd"] // config["n_head"], config["n_layer"])
        mixers = [{**made["mixer"], "scale": scale} for scale in scales]
        made |= {"mixer": mixers[0], "layers": {i: {"mixer": mixer} for i, mixer in enumerate(mixers) if i}}
    return made


def layer_scales(head_dim: int, num_layers: int) -> list[float]:
    """Return the scale of the scores of each layer with `scale_attn_by_inverse_layer_idx`."""
    return [head_dim**-0.5 / (i + 1) for i in range(num_layers)]


def write_gpt2(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to GPT-2 settings."""
    scales = [layer.get("mixer.scale") for layer in ours.layers]
    by_layer = len(scales) > 1 and scales[1] != scales[0]
    return {**GPT.write(ours), "scale_attn_by_inverse_layer_idx": by_layer}


GPT2 = Family(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    about="GPT-2",
    prefix="transformer.",
    rules=gpt2_rules(PLAIN),
    settings=GPT2Settings,
    read=read_gpt2,
    write=write_gpt2,
    fixed={"scale_attn_weights": True, "add_cross_attention": False},
    # reorder_and_upcast_attn changes the precision of float16 only, n_ctx equals n_positions.
    harmless=("n_ctx", "reorder_and_upcast_attn", "predict_special_tokens", *SUMMARY),
    aliases=GPT_ALIASES,
    ignored=r"\.attn\.(bias|masked_bias)$",
    choices=MLP_CHOICES,
    seq_len="n_positions",
)


# --- nanoGPT ---------------------------------------------------------------------------------------------------------


class NanoGPTSettings(FamilySettings):
    """The arguments of nanoGPT's model."""

    n_embd: Count
    n_layer: Count
    n_head: Count
    block_size: Count
    bias: bool = True
    dropout: Rate = 0.0
    tie_word_embeddings: bool = True


def read_nanogpt(config: Settings) -> dict[str, Any]:
    """Convert the arguments of nanoGPT's model to the data of a `ModelConfig`."""
    given = {
        "n_inner": None,
        "activation_function": "gelu",
        "layer_norm_epsilon": 1e-5,
        GPT.dropouts[0]: config["dropout"],
    }
    made = {**GPT.read({**config, **given}), "position": "learned", "bias": config["bias"]}
    made["init"]["kind"] = "gpt2-scaled"
    return made


NANOGPT = replace(
    GPT2,
    model_type="nanogpt",
    architecture="GPT",
    about="nanoGPT",
    rules=gpt2_rules(LINEAR),
    settings=NanoGPTSettings,
    read=read_nanogpt,
    fixed={"tie_word_embeddings": True},
    seq_len="block_size",
)
"""Checkpoints of nanoGPT are read; an export of such a model has the layout of GPT-2."""
