"""BERT and RoBERTa: masked language models, and classifiers of sequences.

Norms follow the sums, and another one follows the embeddings, to which vectors of positions and of token types are
added. A masked language model has a projection, an activation and a norm before its output embedding, which is the
table of tokens with a bias. In a classifier, a projection and tanh take their place; classes are predicted from the
first position. RoBERTa numbers positions from 2, the number after that of padding: the first two rows of its table are
not read, and are written as zeros.

Files of BERT may contain the pooler and the classifier of next sentences, which a masked language model does not use.

Source: modeling_bert.py, modeling_roberta.py and their configurations in transformers.
"""

from typing import Annotated, Any, ClassVar

from pydantic import Field, PositiveFloat

from taetpu.interop.families.base import MLPS, Count, Exported, Settings, TokenNumbers
from taetpu.interop.families.layer_norms import LayerNormFamily, Names, Rate
from taetpu.interop.layouts import LINEAR, PADDED, PLAIN, Layout, Rule, layer_rules, module_rules

OUTPUT_BIAS = {"kind": "tied", "bias": True}
CLASSES = {"kind": "untied", "bias": True}
"""The embeddings of masked language models and of classifiers."""


def encoder_rules(prefix: str, positions: Layout) -> tuple[Rule, ...]:
    """Return the rules of the tensors that masked language models and classifiers share."""
    inputs, layer = f"{prefix}.embeddings", f"{prefix}.encoder.layer.{{i}}"
    return (
        Rule(f"{inputs}.word_embeddings.weight", "embedding.weight"),
        Rule(f"{inputs}.position_embeddings.weight", "position.weight", positions),
        Rule(f"{inputs}.token_type_embeddings.weight", "types"),
        *module_rules(f"{inputs}.LayerNorm", "stem.norm"),
        *layer_rules(f"{layer}.attention.self.query", "mixer.wq"),
        *layer_rules(f"{layer}.attention.self.key", "mixer.wk"),
        *layer_rules(f"{layer}.attention.self.value", "mixer.wv"),
        *layer_rules(f"{layer}.attention.output.dense", "mixer.wo"),
        *layer_rules(f"{layer}.attention.output.LayerNorm", "mixer_norm"),
        *layer_rules(f"{layer}.intermediate.dense", "ffn.up"),
        *layer_rules(f"{layer}.output.dense", "ffn.down"),
        *layer_rules(f"{layer}.output.LayerNorm", "ffn_norm"),
    )


def head_rules(dense: str, norm: str, bias: str) -> tuple[Rule, ...]:
    """Return the rules of the head of a masked language model, given the names of its modules and of its bias."""
    return (
        *module_rules(dense, "readout.dense"),
        *module_rules(norm, "readout.norm"),
        Rule(bias, "embedding.bias"),
    )


def classifier_rules(dense: str, output: str) -> tuple[Rule, ...]:
    """Return the rules of the head of a classifier, given the names of its modules."""
    return (
        *module_rules(dense, "readout.pooler"),
        Rule(f"{output}.weight", "embedding.unembed", LINEAR),
        Rule(f"{output}.bias", "embedding.bias"),
    )


def masked_head(activation: str, norm: Settings, **more: Any) -> dict[str, Any]:
    """Return the data of the projection, activation and norm before the output embedding."""
    return {"kind": "dense", "activation": activation, "norm": dict(norm), **more}


class Encoder(LayerNormFamily):
    """What BERT, RoBERTa and their classifiers share."""

    names = Names(dropouts=("hidden_dropout_prob", "attention_probs_dropout_prob"))
    fixed: ClassVar = {
        "is_causal": False,
        "is_decoder": False,
        "add_cross_attention": False,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
    }
    harmless = (
        *("attention_probs_dropout_prob", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"),
        *("pooler_size_per_head", "pooler_type", "directionality"),
    )
    renamed = ((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias"))

    pad_token_id: TokenNumbers = 0
    vocab_size: Count = 30522
    hidden_size: Count = 768
    num_hidden_layers: Count = 12
    num_attention_heads: Count = 12
    intermediate_size: Count = 3072
    max_position_embeddings: Count = 512
    type_vocab_size: Count = 2
    hidden_act: str = "gelu"
    layer_norm_eps: PositiveFloat = 1e-12
    hidden_dropout_prob: Rate = 0.1
    tie_word_embeddings: bool = True

    def read(self) -> dict[str, Any]:
        """Convert the settings to the data of a `ModelConfig`, without what comes after the last layer."""
        made = super().read()
        made["mixer"]["causal"] = False
        return {
            **made,
            "norm": {**made["norm"], "placement": "post"},
            "position": "learned",
            "stem": {"kind": "norm", "norm": dict(made["norm"])},
            "types": self.type_vocab_size,
        }

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """See `Family.write`."""
        return {**super().write(ours), "type_vocab_size": ours.get("types") or 1, "tie_word_embeddings": True}


class ClassifierFamily(Encoder):
    """What classifiers share."""

    pooling = "first"

    def read(self) -> dict[str, Any]:
        """See `Family.read`."""
        return {**super().read(), "readout": "pooler", "embedding": CLASSES}


class Bert(Encoder):
    """BERT."""

    model_type = "bert"
    architecture = "BertForMaskedLM"
    about = "BERT"
    prefix = "bert."
    rules = (
        *encoder_rules("bert", PLAIN),
        *head_rules("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"),
    )
    ignored = r"(^|\.)embeddings\.position_ids$|^(bert\.)?pooler\.|^cls\.seq_relationship\."
    head = "cls.predictions.decoder.weight"
    copies: ClassVar = {"cls.predictions.decoder.bias": "cls.predictions.bias"}

    def read(self) -> dict[str, Any]:
        """See `Family.read`."""
        made = super().read()
        return {**made, "readout": masked_head(made["ffn"]["kind"], made["stem"]["norm"]), "embedding": OUTPUT_BIAS}


class BertClassifier(ClassifierFamily):
    """Classifiers of BERT."""

    model_type = "bert"
    architecture = "BertForSequenceClassification"
    about = "classifiers of BERT"
    prefix = "bert."
    rules = (*encoder_rules("bert", PLAIN), *classifier_rules("bert.pooler.dense", "classifier"))
    ignored = r"(^|\.)embeddings\.position_ids$"
    head = "classifier.weight"


class RobertaFamily(Encoder):
    """What RoBERTa and its classifiers share."""

    model_type = "roberta"
    prefix = "roberta."
    fixed: ClassVar = {**Encoder.fixed, "pad_token_id": 1}
    ignored = r"(^|\.)embeddings\.position_ids$|^(roberta\.)?pooler\."
    spare_positions = 2

    bos_token_id: TokenNumbers = 0
    eos_token_id: TokenNumbers = 2
    pad_token_id: TokenNumbers = 1
    vocab_size: Count = 50265
    max_position_embeddings: Annotated[int, Field(ge=3, le=2**24)] = 512

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """See `Family.write`."""
        return {**super().write(ours), cls.seq_len: ours.get("seq_len") + 2}


class Roberta(RobertaFamily):
    """RoBERTa. The activation of the head is always GELU."""

    architecture = "RobertaForMaskedLM"
    about = "RoBERTa"
    rules = (
        *encoder_rules("roberta", PADDED),
        *head_rules("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    )
    head = "lm_head.decoder.weight"
    copies: ClassVar = {"lm_head.decoder.bias": "lm_head.bias"}

    def read(self) -> dict[str, Any]:
        """See `Family.read`."""
        made = super().read()
        return {**made, "readout": masked_head(MLPS["gelu"], made["stem"]["norm"]), "embedding": OUTPUT_BIAS}


class RobertaClassifier(RobertaFamily, ClassifierFamily):
    """Classifiers of RoBERTa."""

    architecture = "RobertaForSequenceClassification"
    about = "classifiers of RoBERTa"
    rules = (*encoder_rules("roberta", PADDED), *classifier_rules("classifier.dense", "classifier.out_proj"))
    head = "classifier.out_proj.weight"
