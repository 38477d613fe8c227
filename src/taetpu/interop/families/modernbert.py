"""ModernBERT: a masked language model with RoPE and layers with windows on both sides, and classifiers of sequences.

`local_attention` is twice the number of positions on each side. By default, the first layer and
every third one after it attend to all positions, and RoPE has another base there. The mixer of the first layer has no
norm, because the embeddings have one.

Source: modeling_modernbert.py and configuration_modernbert.py in transformers; Warner et al. 2024, arXiv 2412.13663.
"""

from typing import Any, ClassVar

from pydantic import PositiveFloat

from taetpu.interop.families.base import GATED, MLPS, Count, Exported, TokenNumbers, choose_name, translate_choice
from taetpu.interop.families.bert import CLASSES, masked_head
from taetpu.interop.families.layer_norms import LayerNormFamily, Names, Rate
from taetpu.interop.families.llama import LAYER, LlamaLike
from taetpu.interop.families.rope import RopeFamily, read_positions_by_type, write_positions_by_type
from taetpu.interop.families.windows import (
    FULL,
    SLIDING,
    read_layer_types,
    with_positions,
    with_windows,
    write_windows,
)
from taetpu.interop.layouts import LINEAR, Rule, layer_rules, module_rules

BASES = {FULL: 160_000.0, SLIDING: 10_000.0}
FIRST_ORDER = "sequential-one-norm"


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


class ModernBert(LayerNormFamily, RopeFamily):
    """ModernBERT."""

    model_type = "modernbert"
    architecture = "ModernBertForMaskedLM"
    about = "ModernBERT"
    rules = (*RULES, Rule("decoder.bias", "embedding.bias"))
    names = Names(act="hidden_activation", eps="norm_eps", dropouts=("mlp_dropout", "embedding_dropout"))
    networks = GATED
    choices = LlamaLike.choices
    fixed: ClassVar = {"is_causal": False, "is_decoder": False, "tie_word_embeddings": True, "rope_scaling": None}
    harmless = (
        *("initializer_cutoff_factor", "classifier_pooling", "sparse_prediction", "sparse_pred_ignore_index"),
        *("deterministic_flash_attn", "reference_compile", "repad_logits_with_grad", "layer_norm_eps"),
        "position_embedding_type",
    )
    head = "decoder.weight"

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

    def read(self) -> dict[str, Any]:
        """See `Family.read`."""
        every, number = self.global_attn_every_n_layers, self.num_hidden_layers
        types = read_layer_types(self, [SLIDING if i % every else FULL for i in range(number)])
        activation = translate_choice("classifier_activation", self.classifier_activation, MLPS)
        made = super().read()
        made["mixer"]["bias"], made["ffn"]["bias"] = self.attention_bias, self.mlp_bias
        norm = {**made["norm"], "bias": self.norm_bias}
        made |= {
            "norm": norm,
            "stem": {"kind": "norm", "norm": dict(norm)},
            "readout": masked_head(activation, norm, bias=self.classifier_bias),
            "embedding": {"kind": "tied", "bias": self.decoder_bias},
            "bias": False,
            "types": 0,
        }
        if SLIDING in types:
            made = with_windows(made, types, self.local_attention, kind="local")
        else:
            made["mixer"] |= {"causal": False}
        given = {FULL: self.global_rope_theta, SLIDING: self.local_rope_theta}
        made = with_positions(made, types, read_positions_by_type(self, BASES, given))
        layers = made.get("layers", {})
        return {**made, "layers": {**layers, 0: {**layers.get(0, {}), "order": FIRST_ORDER}}}

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """See `Family.write`. The settings are those of current and earlier versions of transformers."""
        types, width = write_windows(ours)
        bases = write_positions_by_type(ours, types, BASES)["rope_parameters"]
        return {
            **super().write(ours),
            "classifier_activation": choose_name(MLPS, ours.get("readout.activation", "gelu-erf")),
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
            "tie_word_embeddings": True,
        }


class ModernBertClassifier(ModernBert):
    """Classifiers of ModernBERT."""

    architecture = "ModernBertForSequenceClassification"
    about = "classifiers of ModernBERT"
    rules = (*RULES, Rule("classifier.weight", "embedding.unembed", LINEAR), Rule("classifier.bias", "embedding.bias"))
    fixed: ClassVar = {**ModernBert.fixed, "classifier_pooling": "cls"}
    head = "classifier.weight"
    pooling = "first"

    def read(self) -> dict[str, Any]:
        """See `Family.read`."""
        return {**super().read(), "embedding": CLASSES}
