"""BLOOM and Falcon, whose queries, keys and values are one projection.

BLOOM has ALiBi and a norm of the embeddings. The first Falcon models have parallel branches after one norm and one
key-value head, later ones groups of heads, and norms for each branch.

Source: modeling_bloom.py, modeling_falcon.py and their configurations in transformers.
"""

from typing import Any

from pydantic import PositiveFloat

from taetpu.core.errors import UserError
from taetpu.interop.families.base import DEFAULT_LENGTH, Count, Exported, Family, FamilySettings, Settings, TokenNumbers
from taetpu.interop.families.layer_norms import MLP_CHOICES, Names, Rate
from taetpu.interop.families.rope import RopeReader, RopeSettings, write_plain_rope
from taetpu.interop.layouts import HEADS_FUSED, LINEAR, Rule, layer_rules, module_rules

LAYER = "transformer.h.{i}"
RULES = (
    Rule("transformer.word_embeddings.weight", "embedding.weight"),
    *layer_rules(f"{LAYER}.input_layernorm", "mixer_norm"),
    *layer_rules(f"{LAYER}.self_attention.query_key_value", "mixer.wq mixer.wk mixer.wv", HEADS_FUSED),
    *layer_rules(f"{LAYER}.self_attention.dense", "mixer.wo"),
    *layer_rules(f"{LAYER}.post_attention_layernorm", "ffn_norm"),
    *layer_rules(f"{LAYER}.mlp.dense_h_to_4h", "ffn.up"),
    *layer_rules(f"{LAYER}.mlp.dense_4h_to_h", "ffn.down"),
    *module_rules("transformer.ln_f", "norm"),
    Rule("lm_head.weight", "embedding.unembed", LINEAR),
)


# --- BLOOM -----------------------------------------------------------------------------------------------------------


BLOOM_NAMES = Names(num_layers="n_layer", num_heads="n_head", eps="layer_norm_epsilon", seq_len="seq_length")


class BloomSettings(FamilySettings):
    """The settings of BLOOM."""

    bos_token_id: TokenNumbers = 1
    eos_token_id: TokenNumbers = 2
    hidden_size: Count
    n_layer: Count
    n_head: Count
    seq_length: Count | None = None
    layer_norm_epsilon: PositiveFloat = 1e-5
    tie_word_embeddings: bool = True
    hidden_dropout: Rate = 0.0


def read_bloom(config: Settings) -> dict[str, Any]:
    """Convert BLOOM settings to the data of a `ModelConfig`."""
    made = BLOOM_NAMES.read({**config, "intermediate_size": None, "hidden_act": "gelu_new"})
    return {**made, "position": "alibi", "stem": {"kind": "norm", "norm": dict(made["norm"])}}


def write_bloom(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to BLOOM settings."""
    made = BLOOM_NAMES.write(ours)
    return {name: value for name, value in made.items() if name not in ("intermediate_size", "hidden_act")}


BLOOM = Family(
    model_type="bloom",
    architecture="BloomForCausalLM",
    about="BLOOM",
    prefix="transformer.",
    rules=(
        *RULES,
        *module_rules("transformer.word_embeddings_layernorm", "stem.norm"),
    ),
    settings=BloomSettings,
    read=read_bloom,
    write=write_bloom,
    fixed={"apply_residual_connection_post_layernorm": False, "n_inner": None},
    harmless=(
        "slow_but_exact", "attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "offset_alibi",
        "skip_bias_add", "skip_bias_add_qkv",
    ),
    aliases={"n_embed": "hidden_size", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
    seq_len="seq_length",
)  # fmt: skip


# --- Falcon ----------------------------------------------------------------------------------------------------------


FALCON_NAMES = Names(hidden="ffn_hidden_size", act="activation", eps="layer_norm_epsilon")


class FalconSettings(RopeSettings):
    """The settings of Falcon."""

    bos_token_id: TokenNumbers = 11
    eos_token_id: TokenNumbers = 11
    hidden_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    num_kv_heads: Count | None = None
    ffn_hidden_size: Count | None = None
    max_position_embeddings: Count | None = 2048
    activation: str = "gelu"
    layer_norm_epsilon: PositiveFloat = 1e-5
    alibi: bool = False
    new_decoder_architecture: bool = False
    multi_query: bool = True
    parallel_attn: bool = True
    num_ln_in_parallel_attn: Count | None = None
    bias: bool = False
    tie_word_embeddings: bool = True
    hidden_dropout: Rate = 0.0


def read_falcon(config: Settings) -> dict[str, Any]:
    """Convert Falcon settings to the data of a `ModelConfig`.

    Raises:
        UserError: If the model has ALiBi, or norms that transformers does not compute.
    """
    new, norms = config["new_decoder_architecture"], config["num_ln_in_parallel_attn"]
    if config["alibi"]:
        problem = "alibi=True is not supported: Falcon rounds the slopes to bfloat16, and taetpu has no such kind"
        raise UserError(problem, path=("alibi",), remedy="Use a Falcon model with RoPE, such as Falcon 7B.")
    norms = (2 if new else 1) if norms is None else norms
    if norms not in ((1, 2) if new else (1,)) or (new and not config["parallel_attn"]):
        problem = f"num_ln_in_parallel_attn={norms} and parallel_attn={config['parallel_attn']} are not supported"
        remedy = f"transformers does not compute such a model with new_decoder_architecture={new}. Correct the config."
        raise UserError(problem, path=("num_ln_in_parallel_attn",), remedy=remedy)
    made = FALCON_NAMES.read(config)
    made["mixer"]["num_kv_heads"] = 1 if config["multi_query"] and not new else config["num_kv_heads"]
    if not new and not config["multi_query"]:
        made["mixer"]["num_kv_heads"] = None
    made["norm"]["bias"] = True
    order = "sequential" if not config["parallel_attn"] else "parallel" if norms == 1 else "parallel-two-norms"
    position = RopeReader().read(config, config["max_position_embeddings"] or DEFAULT_LENGTH)
    return {**made, "position": position, "order": order, "bias": config["bias"]}


def write_falcon(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to Falcon settings."""
    heads, order = ours.get("mixer.num_heads", 1), ours.get("order.kind")
    kv_heads = ours.get("mixer.num_kv_heads", heads)
    new = order == "parallel-two-norms" or (order == "parallel" and kv_heads not in (1, heads))
    return {
        **FALCON_NAMES.write(ours),
        **write_plain_rope(ours.model),
        "num_kv_heads": kv_heads,
        "new_decoder_architecture": new,
        "multi_query": kv_heads == 1 and not new,
        "parallel_attn": order != "sequential",
        "num_ln_in_parallel_attn": (2 if order == "parallel-two-norms" else 1) if new else None,
        "bias": bool(ours.get("mixer.bias", False)),
    }


NORMS = {"input_layernorm": "ln_attn", "post_attention_layernorm": "ln_mlp"}
"""The names of norms where each of two parallel branches has one."""


def spell_falcon(settings: Settings, name: str) -> str:
    """Return the name of a tensor in a model with the given settings."""
    if settings["num_ln_in_parallel_attn"] == 2:
        for ours, theirs in NORMS.items():
            name = name.replace(ours, theirs)
    return name


FALCON = Family(
    model_type="falcon",
    architecture="FalconForCausalLM",
    about="Falcon 7B, 40B and 180B",
    prefix="transformer.",
    rules=RULES,
    settings=FalconSettings,
    read=read_falcon,
    write=write_falcon,
    spell=spell_falcon,
    aliases={"n_embed": "hidden_size"},
    renamed=tuple((rf"\.{theirs}\.", f".{ours}.") for ours, theirs in NORMS.items()),
    choices=MLP_CHOICES,
)
