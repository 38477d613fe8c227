"""ModernBERT: a masked language model with RoPE and layers with windows on both sides, and classifiers of sequences.

`local_attention` is twice the number of positions on each side. By default, the first layer and
every third one after it attend to all positions, and RoPE has another base there. The mixer of the first layer has no
norm, because the embeddings have one.

Source: modeling_modernbert.py and configuration_modernbert.py in transformers; Warner et al. 2024, arXiv 2412.13663.
"""

from dataclasses import replace
from typing import Any

from pydantic import PositiveFloat

from taetpu.interop.families.base import (
    GATED,
    MLPS,
    Count,
    Exported,
    Family,
    Settings,
    TokenNumbers,
    choose_name,
    translate_choice,
)
from taetpu.interop.families.bert import masked_head
from taetpu.interop.families.layer_norms import Rate
from taetpu.interop.families.rope import RopeSettings, read_positions_by_type, write_positions_by_type
from taetpu.interop.families.windows import (
    FULL,
    SLIDING,
    read_layer_types,
    with_positions,
    with_windows,
    write_windows,
)
from taetpu.interop.layouts import LINEAR, Rule, layer_rules, module_rules

LAYER = "model.layers.{i}"
BASES = {FULL: 160_000.0, SLIDING: 10_000.0}
FIRST_ORDER = "sequential-one-norm"


class ModernBertSettings(RopeSettings):
    """The settings of ModernBERT."""

    bos_token_id: TokenNumbers = 50281
    eos_token_id: TokenNumbers = 50282
    pad_token_id: TokenNumbers = 50283
    vocab_size: Count = 50368
    hidden_size: Count = 768
    num_hidden_layers: Count = 22
    num_attention_heads: Count = 12
    intermediate_size: Count = 1152
    max_position_embeddings: Count = 8192
    hidden_activation: str = "gelu"
    classifier_activation: str = "gelu"
    norm_eps: PositiveFloat = 1e-5
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    classifier_bias: bool = False
    decoder_bias: bool = True
    local_attention: Count = 128
    layer_types: tuple[str, ...] | None = None
    global_attn_every_n_layers: Count = 3
    global_rope_theta: PositiveFloat | None = None
    local_rope_theta: PositiveFloat | None = None
    mlp_dropout: Rate = 0.0
    tie_word_embeddings: bool = True


def read_modernbert(config: Settings) -> dict[str, Any]:
    """Convert ModernBERT settings to the data of a `ModelConfig`."""
    every, number = config["global_attn_every_n_layers"], config["num_hidden_layers"]
    types = read_layer_types(config, [SLIDING if i % every else FULL for i in range(number)])
    norm = {"kind": "layer", "eps": config["norm_eps"], "bias": config["norm_bias"]}
    activation = translate_choice(config, "classifier_activation", MLPS)
    made = {
        "dim": config["hidden_size"],
        "num_layers": number,
        "mixer": {"kind": "attention", "num_heads": config["num_attention_heads"], "bias": config["attention_bias"]},
        "norm": norm,
        "ffn": {
            "kind": translate_choice(config, "hidden_activation", GATED),
            "hidden": config["intermediate_size"],
            "bias": config["mlp_bias"],
        },
        "stem": {"kind": "norm", "norm": dict(norm)},
        "readout": masked_head(activation, norm, bias=config["classifier_bias"]),
        "embedding": {"kind": "tied", "bias": config["decoder_bias"]},
        "init": {"kind": "normal", "std": config["initializer_range"]},
        "dropout": config["mlp_dropout"],
        "types": 0,
    }
    if SLIDING in types:
        made = with_windows(made, types, config["local_attention"], kind="local")
    else:
        made["mixer"] |= {"causal": False}
    positions = read_positions_by_type(
        config, BASES, {FULL: config["global_rope_theta"], SLIDING: config["local_rope_theta"]}
    )
    made = with_positions(made, types, positions)
    layers = made.get("layers", {})
    return {**made, "layers": {**layers, 0: {**layers.get(0, {}), "order": FIRST_ORDER}}}


def read_classifier(config: Settings) -> dict[str, Any]:
    """Convert the settings of a classifier to the data of a `ModelConfig`."""
    return {**read_modernbert(config), "embedding": {"kind": "untied", "bias": True}}


def write_modernbert(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to ModernBERT settings, for current and earlier versions of transformers."""
    types, width = write_windows(ours)
    positions = write_positions_by_type(ours, types, BASES)
    bases = positions["rope_parameters"]
    return {
        "vocab_size": ours.get("vocab_size"),
        "max_position_embeddings": ours.get("seq_len"),
        "hidden_size": ours.get("dim"),
        "num_hidden_layers": ours.get("num_layers"),
        "num_attention_heads": ours.get("mixer.num_heads", 1),
        "intermediate_size": ours.get("ffn.hidden", ours.get("dim")),
        "hidden_activation": choose_name(GATED, ours.get("ffn.kind")),
        "classifier_activation": choose_name(MLPS, ours.get("readout.activation", "gelu-erf")),
        "norm_eps": ours.get("norm.eps", 1e-5),
        "norm_bias": bool(ours.get("norm.bias", False)),
        "attention_bias": ours.get("mixer.bias", False) is not False,
        "mlp_bias": bool(ours.get("ffn.bias", False)),
        "classifier_bias": bool(ours.get("readout.bias", False)),
        "decoder_bias": bool(ours.get("embedding.bias", False)),
        "local_attention": width or 128,
        "layer_types": types,
        "rope_parameters": bases,
        "global_rope_theta": bases[FULL]["rope_theta"],
        "local_rope_theta": bases[SLIDING]["rope_theta"],
        "attention_dropout": 0.0,
        "embedding_dropout": ours.get("dropout", 0.0),
        "mlp_dropout": ours.get("dropout", 0.0),
        "tie_word_embeddings": True,
    }


RULES = (
    Rule("model.embeddings.tok_embeddings.weight", "embedding.weight"),
    *module_rules("model.embeddings.norm", "stem.norm"),
    *layer_rules(f"{LAYER}.attn_norm", "mixer_norm"),
    *layer_rules(f"{LAYER}.attn.Wqkv", "mixer.wq mixer.wk mixer.wv"),
    *layer_rules(f"{LAYER}.attn.Wo", "mixer.wo"),
    *layer_rules(f"{LAYER}.mlp_norm", "ffn_norm"),
    *layer_rules(f"{LAYER}.mlp.Wi", "ffn.gate ffn.up"),
    *layer_rules(f"{LAYER}.mlp.Wo", "ffn.down"),
    *module_rules("model.final_norm", "norm"),
    *module_rules("head.dense", "readout.dense"),
    *module_rules("head.norm", "readout.norm"),
)
MODERNBERT = Family(
    model_type="modernbert",
    architecture="ModernBertForMaskedLM",
    about="ModernBERT",
    rules=(*RULES, Rule("decoder.bias", "embedding.bias")),
    settings=ModernBertSettings,
    read=read_modernbert,
    write=write_modernbert,
    # rope_scaling would act in both types of layers.
    fixed={"is_causal": False, "is_decoder": False, "tie_word_embeddings": True, "rope_scaling": None},
    harmless=(
        *("initializer_cutoff_factor", "classifier_pooling", "sparse_prediction", "sparse_pred_ignore_index"),
        *("deterministic_flash_attn", "reference_compile", "repad_logits_with_grad", "layer_norm_eps"),
        "position_embedding_type",
    ),
    choices={"ffn.kind": tuple(dict.fromkeys(GATED.values()))},
    head="decoder.weight",
)
MODERNBERT_CLASSIFIER = replace(
    MODERNBERT,
    architecture="ModernBertForSequenceClassification",
    about="classifiers of ModernBERT",
    rules=(*RULES, Rule("classifier.weight", "embedding.unembed", LINEAR), Rule("classifier.bias", "embedding.bias")),
    read=read_classifier,
    fixed={**MODERNBERT.fixed, "classifier_pooling": "cls"},
    head="classifier.weight",
    pooling="first",
)
