"""The description of a Hugging Face architecture, and checks of the settings in a `config.json`."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator

from taetpu.core.config import Config
from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError, suggest
from taetpu.interop.layouts import LINEAR, Rule

Settings = Mapping[str, Any]
Count = Annotated[int, Field(ge=1, le=2**24)]
"""A size that is read. The limit exceeds those of all models."""
NotNegative = Annotated[float, Field(ge=0)]
TokenNumber = Annotated[int, Field(ge=0, lt=2**31)]
TokenNumbers = TokenNumber | tuple[TokenNumber, ...] | None


DEFAULT_LENGTH = 2048
"""The sequence length of a model whose settings contain none. Only learned positions depend on it."""


class SpecialTokens(Config):
    """The tokens that begin, end and fill up texts."""

    bos_token_id: TokenNumbers = None
    eos_token_id: TokenNumbers = None
    pad_token_id: TokenNumbers = None

    @field_validator("bos_token_id", "eos_token_id", "pad_token_id", mode="before")
    @classmethod
    def _minus_one(cls, value: Any) -> Any:
        """Return None in place of -1, as the first Llama states that it has no token for padding."""
        return None if type(value) is int and value == -1 else value

    def numbers(self) -> dict[str, Any]:
        """Return the settings that are present, as plain data."""
        given = {name: getattr(self, name) for name in SpecialTokens.model_fields}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in given.items() if v is not None}


@dataclass(frozen=True)
class Exported:
    """The settings of a model that is exported.

    Attributes:
        model: The settings of the model and of its first layer, by dotted path (see `interop.comparison`).
        layers: The settings of every layer, by dotted path.
    """

    model: Settings
    layers: Sequence[Settings]

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting of the model or of its first layer; `default` if it is missing or none."""
        value = self.model.get(name)
        return default if value is None else value


class Family(SpecialTokens):
    """A Hugging Face architecture, identified by its `model_type`.

    The fields are the settings that change the results, with their defaults in the class of transformers.

    Attributes:
        model_type: The value of `model_type` in `config.json`.
        architecture: The class name in `config.json`.
        about: The models of the architecture.
        prefix: The prefix of tensor names in a model with a head.
        rules: The parameters in all tensors.
        fixed: The settings for which only one value is supported, with this value.
        harmless: Further settings that do not change the results, or those of training alone.
        aliases: Other names of settings, which transformers also reads.
        renamed: Patterns of tensor names in files of other versions, and their replacements.
        ignored: The pattern of tensors that no model uses.
        choices: The values of taetpu's settings that the architecture supports, by dotted path, for error messages.
        seq_len: The setting with the maximum sequence length.
        head: The name of the tensor with the output embedding.
        copies: The names of tensors that transformers stores twice, with the name in `rules`.
        spare_positions: The number of rows of the table of positions that no token has.
        std: The setting with the standard deviation of initial weights.
        pooling: The position of which a classifier reads the outputs: `first` or `last`; empty for language models.
    """

    model_type: ClassVar[str]
    architecture: ClassVar[str]
    about: ClassVar[str]
    rules: ClassVar[tuple[Rule, ...]]
    prefix: ClassVar[str] = "model."
    fixed: ClassVar[Settings] = {}
    harmless: ClassVar[tuple[str, ...]] = ()
    aliases: ClassVar[Mapping[str, str]] = {}
    renamed: ClassVar[tuple[tuple[str, str], ...]] = ()
    ignored: ClassVar[str] = r"\.rotary_emb\.inv_freq$"
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    seq_len: ClassVar[str] = "max_position_embeddings"
    head: ClassVar[str] = "lm_head.weight"
    copies: ClassVar[Mapping[str, str]] = {}
    spare_positions: ClassVar[int] = 0
    std: ClassVar[str] = "initializer_range"
    pooling: ClassVar[str] = ""

    vocab_size: Count
    initializer_range: NotNegative = 0.02
    tie_word_embeddings: bool = False

    def read(self) -> dict[str, Any]:
        """Convert the settings to the data of a `ModelConfig`."""
        raise NotImplementedError

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """Convert the settings of a model to Hugging Face settings.

        Settings that the architecture does not support are left out; `interop.comparison` finds them.
        """
        raise NotImplementedError

    @classmethod
    def rename(cls, name: str) -> str:
        """Return the name of a tensor as in `rules`.

        torch puts `module.` before the names of a model in DataParallel, and `_orig_mod.` before those of a compiled
        model.
        """
        name = re.sub(r"^((module|_orig_mod)\.)+", "", name)
        for pattern, replacement in cls.renamed:
            name = re.sub(pattern, replacement, name)
        inside = not name.startswith((cls.head.removesuffix("weight"), cls.prefix))
        return cls.prefix + name if inside and name not in (rule.theirs for rule in cls.rules) else name

    def spell(self, name: str) -> str:
        """Return the name of a tensor in a model with these settings, from its name in `rules`."""
        return name

    @property
    def length(self) -> int:
        """The maximum sequence length, `DEFAULT_LENGTH` if the settings contain none."""
        return (getattr(self, self.seq_len) or DEFAULT_LENGTH) - self.spare_positions

    @property
    def data_around(self) -> dict[str, Any]:
        """The embedding and the initial weights, as data of a `ModelConfig`."""
        std = getattr(self, self.std)
        return {"embedding": "tied" if self.tie_word_embeddings else "untied", "init": {"kind": "normal", "std": std}}


HARMLESS = frozenset(
    """
    model_type architectures auto_map name_or_path transformers_version dtype torch_dtype prefix tokenizer_class
    use_cache cache_implementation return_dict output_attentions output_hidden_states output_scores torchscript
    return_dict_in_generate remove_invalid_values chunk_size_feed_forward problem_type id2label label2id num_labels
    sep_token_id unk_token_id cls_token_id mask_token_id decoder_start_token_id bos_token eos_token pad_token unk_token
    forced_bos_token_id forced_eos_token_id suppress_tokens begin_suppress_tokens bad_words_ids task_specific_params
    finetuning_task gradient_checkpointing is_decoder pretraining_tp max_sequence_length model_max_length
    max_length min_length max_new_tokens min_new_tokens do_sample early_stopping num_beams num_beam_groups
    diversity_penalty temperature top_k top_p min_p typical_p epsilon_cutoff eta_cutoff repetition_penalty
    encoder_repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size num_return_sequences
    exponential_decay_length_penalty num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold
    assistant_lookbehind target_lookbehind use_bfloat16 output_past tf_legacy_loss xla_device loss_type
    n_special _num_labels attn_implementation use_flash_attention use_flash_attn use_flash_attention_2
    _flash_attn_2_enabled _name_or_path _commit_hash _attn_implementation _attn_implementation_autoset
    _attn_implementation_internal _experts_implementation unsloth_fixed unsloth_version transformers.js_config
    custom_pipelines
    attention_dropout hidden_dropout resid_pdrop embd_pdrop attn_pdrop residual_dropout embedding_dropout mlp_dropout
    classifier_dropout attention_probs_dropout_prob hidden_dropout_prob dropout
    """.split()  # noqa: SIM905
)
"""Settings of all architectures that do not change the results of a forward pass: names and versions, generation,
classification, the implementation of attention, and, in the last lines, dropout."""


def complete_settings(family: type[Family], config: Settings) -> Family:
    """Return the settings of a `config.json` that change the results, with defaults for missing settings.

    Raises:
        UserError: If a setting is missing, unknown or not supported, or has the wrong type or an impossible value.
    """
    _refuse_quantized(config)
    config = _without_aliases(family, config)
    fields, fixed = family.model_fields, {"is_causal": True, **family.fixed}
    known = {*fields, *fixed, *family.harmless, *HARMLESS}
    for name, value in config.items():
        if name not in known and (value or type(value) in (int, float)):  # none, false and empty lists say nothing
            problem = f"{name}={value!r} is not a known setting of {family.model_type} models"
            remedy = f"{_near(name, fields)}Remove the setting if transformers' {family.architecture} ignores it."
            raise UserError(problem, path=(name,), remedy=remedy)
    for name, value in fixed.items():
        if config.get(name) is not None and _plain(config[name]) != value:
            problem, remedy = f"{name}={config[name]!r} is not supported", f"Use a model with {name}={value!r}."
            raise UserError(problem, path=(name,), remedy=remedy)
    # null means a missing setting where the architecture has no default
    given = {
        n: value for n, value in config.items() if n in fields and (value is not None or not fields[n].is_required())
    }
    return load_config(family, given)


def _plain(value: Any) -> Any:
    """Return a value with lists for tuples, and numbers for those that transformers writes as `{"__float__": ...}`."""
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, Mapping) and value.keys() == {"__float__"}:
        return {"Infinity": math.inf, "-Infinity": -math.inf}.get(str(value["__float__"]), value)
    return value


def _refuse_quantized(config: Settings) -> None:
    if quantization := config.get("quantization_config"):
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
        remedy = "Load it with transformers and dequantize=True in the quantization config, and save the result."
        raise UserError(f"quantized weights ({method}) are not supported", path=("quantization_config",), remedy=remedy)


def _without_aliases(family: type[Family], config: Settings) -> dict[str, Any]:
    """Return a config in which each setting has its main name.

    Raises:
        UserError: If a setting has different values under two names.
    """
    result = dict(config)
    for alias, name in family.aliases.items():
        value = result.pop(alias, None)
        if value is not None and result.setdefault(name, value) != value:
            problem = f"{alias}={value!r} and {name}={result[name]!r} are the same setting"
            raise UserError(problem, path=(alias,), remedy=f"Remove {alias} or {name}.")
    return result


def _near(name: str, known: Iterable[str]) -> str:
    hint = suggest(name, known)
    return f"{hint.partition('?')[0]}? " if hint.startswith("Did") else ""


def translate_choice(name: str, value: str, known: Mapping[str, str]) -> str:
    """Return taetpu's name for the value of a Hugging Face setting.

    Args:
        name: The name of the setting.
        value: The value.
        known: taetpu's name for each supported value.

    Raises:
        UserError: If the value is not supported.
    """
    if value not in known:
        raise UserError(f"{name}={value!r} is not supported", path=(name,), remedy=suggest(value, known))
    return known[value]


def choose_name(known: Mapping[str, str], ours: Any) -> str:
    """Return the first Hugging Face value with taetpu's name `ours`; the first value if there is none."""
    return next((theirs for theirs, kind in known.items() if kind == ours), next(iter(known)))


def last_token_classifier(family: type[Family]) -> type[Family]:
    """Return the architecture with a matrix of classes, without bias, in place of the head of a language model.

    In transformers, the last token that is not padding is scored.

    Source: GenericForSequenceClassification in modeling_layers.py, and modeling_gpt2.py in transformers.
    """

    class LastTokenClassifier(family):
        architecture = f"{re.split('LMHeadModel|ForCausalLM', family.architecture)[0]}ForSequenceClassification"
        about = f"classifiers of {family.about}"
        head = "score.weight"
        rules = (
            *(rule for rule in family.rules if rule.theirs != family.head),
            Rule(head, "embedding.unembed", LINEAR),
        )
        pooling = "last"

        def read(self) -> dict[str, Any]:
            return family.read(self.model_copy(update={"tie_word_embeddings": False}))

    return LastTokenClassifier


MLPS = {
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu": "gelu-erf",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
}
"""The feed-forward networks with two matrices, by the activation in transformers."""

GATED = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_pytorch_tanh": "geglu-tanh",
    "gelu_new": "geglu-tanh",
    "relu": "reglu",
    "sigmoid": "glu",
    "linear": "bilinear",
}
"""The feed-forward networks with a gate, by the activation in transformers."""
