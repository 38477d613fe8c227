"""The description of a Hugging Face architecture, and checks of the settings in a `config.json`."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from taetpu.core.errors import UserError, suggest
from taetpu.interop.layouts import Rule

Settings = Mapping[str, Any]


class Required:
    """The default of a setting that has none: a positive integer, such as the number of layers."""


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


@dataclass(frozen=True)
class Family:
    """A Hugging Face architecture, identified by its `model_type`.

    Attributes:
        model_type: The value of `model_type` in `config.json`.
        architecture: The class name in `config.json`.
        about: The models of the architecture.
        prefix: The prefix of tensor names in a model with a head.
        rules: The parameters in all tensors.
        settings: The settings that change the results, with their defaults in the class of transformers.
        read: A function that converts Hugging Face settings, with all defaults, to the data of a `ModelConfig`.
        write: A function that converts the settings of a model to Hugging Face settings. Settings that the architecture
            does not support are left out; `interop.comparison` finds them.
        fixed: The settings for which only one value is supported, with this value.
        harmless: Further settings that do not change the results.
        renamed: Patterns of tensor names in files of other versions, and their replacements.
        ignored: The pattern of tensors that no model uses.
        choices: The values of taetpu's settings that the architecture supports, by dotted path, for error messages.
        seq_len: The setting with the maximum sequence length.
        head: The name of the tensor with the output embedding.
    """

    model_type: str
    architecture: str
    about: str
    prefix: str
    rules: tuple[Rule, ...]
    settings: Settings
    read: Callable[[Settings], dict[str, Any]]
    write: Callable[[Exported], dict[str, Any]]
    fixed: Settings = field(default_factory=dict)
    harmless: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    ignored: str = r"\.rotary_emb\.inv_freq$"
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    seq_len: str = "max_position_embeddings"
    head: str = "lm_head.weight"

    def rename(self, name: str) -> str:
        """Return the name of a tensor as in `rules`."""
        for pattern, replacement in self.renamed:
            name = re.sub(pattern, replacement, name)
        return name if name == self.head or name.startswith(self.prefix) else self.prefix + name


LARGEST = 2**24
"""The largest size that is read. It exceeds those of all models."""

HARMLESS = frozenset(
    """
    model_type architectures auto_map name_or_path transformers_version dtype torch_dtype prefix tokenizer_class
    use_cache cache_implementation return_dict output_attentions output_hidden_states output_scores torchscript
    return_dict_in_generate remove_invalid_values chunk_size_feed_forward problem_type id2label label2id num_labels
    bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id decoder_start_token_id forced_bos_token_id
    forced_eos_token_id suppress_tokens begin_suppress_tokens bad_words_ids task_specific_params finetuning_task
    initializer_range gradient_checkpointing is_decoder pretraining_tp classifier_dropout max_sequence_length
    max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p
    typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size num_return_sequences
    exponential_decay_length_penalty use_bfloat16 _name_or_path _commit_hash _attn_implementation
    _attn_implementation_autoset _experts_implementation transformers.js_config
    """.split()  # noqa: SIM905
)
"""Settings of all architectures that do not change the results of a forward pass."""


def complete_settings(family: Family, config: Settings) -> dict[str, Any]:
    """Return the settings of a `config.json` that change the results, with defaults for missing settings.

    Raises:
        UserError: If a setting is missing, unknown or not supported, or has the wrong type.
    """
    if config.get("quantization_config"):
        found = config["quantization_config"]
        method = found.get("quant_method") if isinstance(found, Mapping) else found
        remedy = "Load it with transformers and dequantize=True in the quantization config, and save the result."
        raise UserError(f"quantized weights ({method}) are not supported", path=("quantization_config",), remedy=remedy)
    known = {*family.settings, *family.fixed, *family.harmless, *HARMLESS}
    for name, value in config.items():
        if name not in known and (value or type(value) in (int, float)):  # none, false and empty lists say nothing
            problem = f"{name}={value!r} is not a known setting of {family.model_type} models"
            remedy = (
                f"{_near(name, family.settings)}Remove the setting if transformers' {family.architecture} ignores it."
            )
            raise UserError(problem, path=(name,), remedy=remedy)
    for name, value in family.fixed.items():
        if config.get(name) is not None and config[name] != value:
            problem, remedy = f"{name}={config[name]!r} is not supported", f"Use a model with {name}={value!r}."
            raise UserError(problem, path=(name,), remedy=remedy)
    required = [name for name, default in family.settings.items() if default is Required]
    for name in required:
        if config.get(name) is None:
            raise UserError(f"{name!r} is missing", path=(name,), remedy=f"Set all of {', '.join(required)}.")
    for name, default in family.settings.items():
        if config.get(name) is not None:
            _check_type(name, config[name], default)
    return {name: config.get(name, default) for name, default in family.settings.items()}


def _near(name: str, known: Iterable[str]) -> str:
    hint = suggest(name, known)
    return f"{hint.partition('?')[0]}? " if hint.startswith("Did") else ""


def _check_type(name: str, value: Any, default: Any) -> None:
    """Raise `UserError` if a value has another type than the default of its setting."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if default is Required:
        ok, expected = type(value) is int and 0 < value <= LARGEST, f"an integer from 1 to {LARGEST}"
    elif isinstance(default, bool):
        ok, expected = isinstance(value, bool), "true or false"
    elif isinstance(default, int | float):
        ok, expected = number, "a number"
    elif isinstance(default, str):
        ok, expected = isinstance(value, str), "a text"
    else:
        return
    if not ok:
        raise UserError(f"{name} is {value!r}, expected {expected}", path=(name,), remedy=f"Correct {name}.")


def translate_choice(settings: Settings, name: str, known: Mapping[str, str]) -> str:
    """Return taetpu's name for the value of a Hugging Face setting.

    Args:
        settings: The Hugging Face settings, with defaults.
        name: The name of the setting.
        known: taetpu's name for each supported value.

    Raises:
        UserError: If the value is not supported.
    """
    value = settings[name]
    if value not in known:
        raise UserError(f"{name}={value!r} is not supported", path=(name,), remedy=suggest(str(value), known))
    return known[value]


def choose_name(known: Mapping[str, str], ours: Any) -> str:
    """Return the first Hugging Face value with taetpu's name `ours`; the first value if there is none."""
    return next((theirs for theirs, kind in known.items() if kind == ours), next(iter(known)))


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
