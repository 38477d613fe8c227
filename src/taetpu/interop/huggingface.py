"""Import of Hugging Face models, as arrays by name or as folders with safetensors files.

Unsupported settings, missing tensors and unknown tensors raise errors. They are never ignored silently. No weight is
changed: tensors are transposed, split and joined, and stored as float32.
"""

import math
import re
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import DataWarning, UserError, change_errors, dotted_path, locate_errors, suggest
from taetpu.core.model_interface import Interface
from taetpu.data.tokenizers.base import Tokenizer
from taetpu.interop.blank import blank_model
from taetpu.interop.families import (
    Family,
    Settings,
    TextModel,
    count_classes,
    find_text_model,
)
from taetpu.interop.families.base import complete_settings
from taetpu.interop.files import (
    CONFIG,
    read_config,
    read_generation_tokens,
)
from taetpu.interop.layouts import Conversion, expand_rules
from taetpu.interop.peft import read_adapter
from taetpu.interop.tokenizer_files import read_tokenizer
from taetpu.interop.weights import Tensors, read_tensors, to_float32, warn_of_not_finite
from taetpu.nn.lm import LM, LMConfig, ModelConfig
from taetpu.nn.named_arrays import named_parameters, with_parameters


@dataclass(frozen=True)
class ImportedModel:
    """An imported Hugging Face model.

    Attributes:
        family: The architecture.
        config: The config of the model.
        model: The model, with float32 parameters.
        vocab_size: The number of rows of the embedding. The tokenizer may have fewer or more tokens.
        seq_len: The maximum sequence length. Only learned positions depend on it.
        outputs: The number of classes; None if the outputs are the logits of tokens.
        tokenizer: The tokenizer; None if the folder has none, or the model is not from a folder.
        special_tokens: The settings in `SPECIAL_TOKENS`, without those that are missing.
    """

    family: type[Family]
    config: ModelConfig
    model: LM
    vocab_size: int
    seq_len: int
    outputs: int | None = None
    tokenizer: Tokenizer | None = None
    special_tokens: Mapping[str, Any] = field(default_factory=dict)

    @property
    def interface(self) -> Interface:
        """The sizes of inputs and outputs."""
        return Interface(self.vocab_size, outputs=self.outputs, pooling=self.family.pooling)


def from_huggingface(config: Settings, tensors: Tensors) -> tuple[ModelConfig, LM]:
    """Convert a Hugging Face model to a `ModelConfig` and a model with float32 parameters.

    Args:
        config: The content of `config.json`. That of a multimodal model contains the text model in `text_config`.
        tensors: The state dict. Tensor names may lack the prefix of a model with a head (`transformer.`, `model.`).
            NaN and infinite numbers are kept, with a warning.

    Raises:
        UserError: If the `model_type` or a setting is not supported, or if a tensor is missing, unknown, or has the
            wrong shape.
    """
    made = import_model(config, tensors)
    return made.config, made.model


def import_model(config: Settings, tensors: Tensors) -> ImportedModel:
    """Convert a Hugging Face model; see `from_huggingface`."""
    text, made = _blank_import(config)
    return _with_tensors(made, text, tensors)


def import_config(config: Settings) -> ModelConfig:
    """Convert the content of a `config.json` to a `ModelConfig`.

    Raises:
        UserError: If the `model_type` or a setting is not supported.
    """
    return _read_settings(find_text_model(config))[0]


def _read_settings(text: TextModel) -> tuple[ModelConfig, Family]:
    """Return the config of a model, and its Hugging Face settings with all defaults."""
    with locate_errors(*text.path):
        settings = complete_settings(text.family, text.settings)
        data = settings.read()
    with _in_our_config():
        return load_config(ModelConfig, data), settings


def _in_our_config() -> AbstractContextManager[None]:
    """Say that the place of a `UserError` in the `with` block is in the config of taetpu, not in `config.json`."""

    def name_place(error: UserError) -> UserError:
        place = f" (taetpu's {dotted_path(error.path)})" if error.path else ""
        return UserError(f"{error.problem}{place}", remedy=error.remedy)

    return change_errors(name_place)


def _blank_import(config: Settings) -> tuple[TextModel, ImportedModel]:
    """Return a model before its parameters are read."""
    text = find_text_model(config)
    ours, settings = _read_settings(text)
    vocab_size, seq_len = settings.vocab_size, settings.length
    outputs = count_classes(text.settings) if text.family.pooling else None
    with _in_our_config():
        model = blank_model(ours.resolve(), Interface(vocab_size, outputs=outputs), seq_len)
    special = settings.numbers()
    return text, ImportedModel(text.family, ours, model, vocab_size, seq_len, outputs, special_tokens=special)


def _with_tensors(made: ImportedModel, text: TextModel, tensors: Tensors) -> ImportedModel:
    """Return a model with the parameters in Hugging Face tensors."""
    used = {name: array for name, array in tensors.items() if not re.search(text.ignored, name)}
    parameters = read_parameters(made.family, used, made.model, made.config.resolve())
    warn_of_not_finite(used)
    return replace(made, model=with_parameters(made.model, parameters))


def read_parameters(family: type[Family], tensors: Tensors, model: LM, config: LMConfig) -> dict[str, np.ndarray]:
    """Return the parameters of a model by logical name, taken from Hugging Face tensors.

    Args:
        family: The architecture.
        tensors: The tensors, without those that no model uses.
        model: The model.
        config: The config of the model.

    Raises:
        UserError: If a tensor is missing, unknown, or has the wrong shape.
    """
    left = _main_names(family, tensors)
    shapes = parameter_shapes(model)
    head_dim = width_of_heads(config)
    parameters: dict[str, np.ndarray] = {}
    for rule in expand_rules(family.rules, len(config.layers)):
        if rule.ours[0] in shapes:
            parameters |= _read_tensor(rule, _take(family, rule, left, shapes), shapes, head_dim)
    _check_tied_head(family, left, parameters)
    if left:
        problem = f"{len(left)} tensors do not belong to this {family.model_type} model, e.g. {min(left)!r}"
        remedy = "Remove these tensors, or use the `config.json` of the model that contains them."
        raise UserError(problem, remedy=remedy)
    return parameters


def _take(
    family: type[Family], rule: Conversion, left: dict[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]
) -> np.ndarray:
    """Remove and return the tensor of a rule, or that which joins the tensors of all experts.

    Raises:
        UserError: If a tensor is missing, or those of two experts have different shapes.
    """
    names = rule.names(shapes[rule.ours[0]])
    for name in names:
        if name not in left:
            raise _missing_tensor(family, name, left)
    tensors = [left.pop(name) for name in names]
    for name, tensor in zip(names, tensors, strict=True):
        if tensor.shape != tensors[0].shape:
            problem = f"tensor {name!r} has shape {tensor.shape}, and {names[0]!r} has {tensors[0].shape}"
            raise UserError(problem, remedy="Use the tensors of one model.")
    return tensors[0] if names == [rule.theirs] else np.stack(tensors)


def _main_names(family: type[Family], tensors: Tensors) -> dict[str, np.ndarray]:
    """Return tensors by the names in the rules of an architecture.

    Raises:
        UserError: If two tensors have the same name there, such as one with the prefix and one without it.
    """
    named: dict[str, np.ndarray] = {}
    first: dict[str, str] = {}
    for name, array in tensors.items():
        main = family.rename(name)
        if main in named:
            problem = f"tensor {main!r} is stored twice, as {first[main]!r} and as {name!r}"
            raise UserError(problem, remedy="Remove one of the two tensors.")
        named[main], first[main] = array, name
    for copy, main in family.copies.items():
        if (array := named.pop(copy, None)) is not None and not np.array_equal(
            array, named.setdefault(main, array), equal_nan=True
        ):
            problem = f"tensors {copy!r} and {main!r} differ, which {family.architecture} has as one"
            raise UserError(problem, remedy="Remove the one that the model was not trained with.")
    return named


def _missing_tensor(family: type[Family], name: str, have: Tensors) -> UserError:
    """Return the error about a tensor that a model lacks."""
    remedy = f"{suggest(name, have)} " if have else ""
    remedy += "Or use the config.json of the model with these tensors."
    if name == family.head:
        remedy = "If the embedding is also the head, set tie_word_embeddings to true in config.json. "
        remedy += "Otherwise, use a file of a model with a head."
    return UserError(f"tensor {name!r} is missing", remedy=remedy)


def parameter_shapes(model: LM) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's parameters by logical name."""
    return {name: tuple(array.shape) for name, array in jax.eval_shape(named_parameters, model).items()}


def width_of_heads(config: LMConfig) -> int:
    """Return the width of a head of the first layer; 1 if its mixer has no heads."""
    heads = config.layers[0].typed_mixer.heads(config.dims(0, 0))
    return 1 if heads is None else heads.head_dim


def _read_tensor(
    rule: Conversion, tensor: np.ndarray, shapes: Mapping[str, tuple[int, ...]], head_dim: int
) -> dict[str, np.ndarray]:
    """Return the parameters in a tensor, by logical name."""
    expected = [shapes[name] for name in rule.ours]
    try:
        parts = rule.layout.read(to_float32(rule.theirs, tensor), expected, head_dim)
    except ValueError:
        parts = []
    if [part.shape for part in parts] != expected:
        problem = f"tensor {rule.theirs!r} has shape {tensor.shape}"
        if sum(map(math.prod, expected)) <= LARGEST_SHOWN:
            empty = [np.broadcast_to(np.float32(0), shape) for shape in expected]
            problem += f", not {rule.layout.write(empty, head_dim).shape}"
        else:
            problem += f", which does not hold parameters of shape {' and '.join(map(str, expected))}"
        raise UserError(problem, remedy="Use the config.json of the model that contains the tensor.")
    return dict(zip(rule.ours, parts, strict=True))


LARGEST_SHOWN = 2**24
"""The number of elements up to which a tensor is built to state its shape in a message."""


def _check_tied_head(family: type[Family], left: dict[str, np.ndarray], parameters: Mapping[str, np.ndarray]) -> None:
    """Remove the head from the tensors of a model with a tied head, whose files may contain it."""
    head = left.pop(family.head, None) if "embedding.unembed" not in parameters else None
    if head is not None and not np.array_equal(
        to_float32(family.head, head), parameters["embedding.weight"], equal_nan=True
    ):
        problem, path = f"{family.head!r} differs from the embedding", ("tie_word_embeddings",)
        raise UserError(problem, path=path, remedy="Set tie_word_embeddings to false.")


# --- folders ---------------------------------------------------------------------------------------------------------


def load_folder(path: str | Path) -> tuple[ModelConfig, LM]:
    """Load a Hugging Face model from a folder with `config.json` and `model.safetensors` or indexed shards.

    Args:
        path: The model's folder.

    Raises:
        UserError: If a file is missing or damaged, or the model cannot be converted (see `from_huggingface`). The error
            names the file.
    """
    made = import_folder(path, tokenizer=False)
    return made.config, made.model


def import_folder(path: str | Path, *, tokenizer: bool = True) -> ImportedModel:
    """Load a Hugging Face model from a folder, with its tokenizer.

    Args:
        path: The model's folder, or that of a LoRA adapter of PEFT, which is added to the weights of its base model.
        tokenizer: Whether the tokenizer is read.

    Raises:
        UserError: As `load_folder`; also if the tokenizer is damaged or in files that are not read.
    """
    folder = Path(path)
    adapter = read_adapter(folder)
    base = folder if adapter is None else adapter.base
    config = read_config(base)
    with locate_errors(file=base / CONFIG):
        text, made = _blank_import(config)
    tensors, place = read_tensors(base, text.ignored)
    if adapter is not None:
        tensors = adapter.merge(tensors, text.family.rename, transposed=text.family.model_type == "gpt2")
    try:
        made = _with_tensors(made, text, tensors)
    except UserError as error:
        raise error.within(file=base / CONFIG if error.path else place) from None
    special = {**made.special_tokens, **read_generation_tokens(base)}
    _warn_of_absent_end(special.get("eos_token_id"), made.vocab_size)
    stored = (read_tokenizer(folder) or read_tokenizer(base)) if tokenizer else None
    return replace(made, tokenizer=stored, special_tokens=special)


def _warn_of_absent_end(end: int | list[int] | None, vocab_size: int) -> None:
    """Warn of tokens at which samples should end, but which the model cannot produce."""
    absent = [
        number for number in (end if isinstance(end, list) else [end]) if number is not None and number >= vocab_size
    ]
    if absent:
        problem = (
            f"eos_token_id contains {', '.join(map(str, absent))}, but the model's tokens are 0 to {vocab_size - 1}"
        )
        warnings.warn(f"{problem}: samples cannot end there", DataWarning, stacklevel=3)
