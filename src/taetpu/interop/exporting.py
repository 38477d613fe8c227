"""Export of models to Hugging Face's formats, as arrays by name or as folders with safetensors files.

Models that no architecture of transformers represents are refused. No weight is changed: tensors are transposed, split
and joined.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError, suggest
from taetpu.core.model_interface import Interface
from taetpu.core.output_files import check_new_folder
from taetpu.data.labelled.sequences import frame_of
from taetpu.data.tokenizers.base import Tokenizer
from taetpu.interop.blank import blank_model
from taetpu.interop.comparison import Comparable, Difference
from taetpu.interop.families import CLASSIFIERS, COMMON, FAMILIES, Family
from taetpu.interop.families.base import DEFAULT_LENGTH, complete_settings
from taetpu.interop.files import SPECIAL_TOKENS, write_model
from taetpu.interop.huggingface import parameter_shapes, width_of_heads
from taetpu.interop.layouts import expand_rules
from taetpu.interop.plain import to_plain
from taetpu.interop.weights import Tensors, warn_of_not_finite
from taetpu.nn.edited import check_unedited
from taetpu.nn.lm import LM, LMConfig, ModelConfig
from taetpu.nn.named_arrays import named_parameters
from taetpu.store.flat_config import format_value


def to_huggingface(
    config: ModelConfig | LMConfig,
    model: LM,
    *,
    seq_len: int = DEFAULT_LENGTH,
    family: str | None = None,
    special_tokens: Mapping[str, Any] | None = None,
    interface: Interface | None = None,
) -> tuple[dict[str, Any], Tensors]:
    """Convert a model to the content of a Hugging Face `config.json` and a state dict.

    If the model lacks biases that the architecture requires, they are written as zeros. Settings of training, such as
    the dropout rate, are written only if the architecture has them. Adapters are added to the weights, and layers that
    are dropped are left out.

    Args:
        config: The config of the model.
        model: The model.
        seq_len: The maximum sequence length. With learned positions, the size of their table is used.
        family: The `model_type` of the architecture; by default, the first one that supports the model.
        special_tokens: The settings in `SPECIAL_TOKENS`; null by default.
        interface: The sizes of inputs and outputs; by default, those of a model of tokens with these parameters, whose
            classes are those of the position that the architecture reads.

    Raises:
        UserError: If no architecture supports all settings. The error is about the architecture with the fewest
            unsupported settings. Or if the model has active edits, or outputs at each position that are not tokens.
    """
    check_unedited(model)
    resolved = config.resolve() if isinstance(config, ModelConfig) else config
    for name in resolved.heads:
        problem = f"Hugging Face's formats have no place for the head {name!r}, which is used in training only"
        raise UserError(problem, path=("heads", name), remedy="Export a model that was trained without heads.")
    shapes = parameter_shapes(model)
    at = find_interface(shapes) if interface is None else interface
    if at.features:
        problem = f"Hugging Face's formats have no place for {at.features} real inputs"
        raise UserError(problem, remedy="Export a model of tokens.")
    if interface is not None and at.outputs and not at.pooling:
        problem = f"the model has {at.outputs} outputs at each position, and the exported classes have one result"
        remedy = "Export a model of tokens, or of a task whose rows have one label each, such as classification."
        raise UserError(problem, path=("task",), remedy=remedy)
    if "types" in shapes:
        resolved = resolved.model_copy(update={"types": shapes["types"][0]})
    special = {**dict.fromkeys(SPECIAL_TOKENS), **(special_tokens or {})}
    resolved, model = to_plain(resolved, model, at, shapes.get("position.weight", (seq_len,))[0])
    given = _Given(resolved, model, at, seq_len, special)
    best = _candidate(family, given) if family else _closest_family(given)
    if best.differences:
        raise best.error()
    about = {"model_type": best.family.model_type, "architectures": [best.family.architecture], "dtype": "float32"}
    if at.outputs is not None:
        names = at.labels or [f"LABEL_{number}" for number in range(at.outputs)]
        about["id2label"] = {str(number): name for number, name in enumerate(names)}
    tensors = _write_tensors(best, given)
    warn_of_not_finite(tensors)
    return {**about, **special, **best.settings}, tensors


def find_interface(shapes: Mapping[str, tuple[int, ...]]) -> Interface:
    """Return the sizes of the inputs and outputs of a model of tokens, from the shapes of its parameters."""
    table, output = (shapes.get(f"embedding.{name}") for name in ("weight", "unembed"))
    tokens = table[0] if table else 1
    return Interface(tokens, outputs=output[-1] if output and output[-1] != tokens else None)


@dataclass(frozen=True)
class _Given:
    """A model that is exported, with its config, interface, sequence length and special tokens."""

    config: LMConfig
    model: LM
    interface: Interface
    seq_len: int
    special_tokens: Mapping[str, Any]


@dataclass(frozen=True)
class _Candidate:
    """An architecture for an export.

    Attributes:
        family: The architecture with the settings.
        settings: The Hugging Face settings, as they are written.
        config: The config that is read from these settings.
        differences: The settings that the architecture does not support.
        zeros: The number of settings for which biases are written as zeros.
    """

    family: Family
    settings: dict[str, Any]
    config: LMConfig
    differences: list[Difference]
    zeros: int

    def error(self) -> UserError:
        """Return an error about the first setting that is not supported."""
        first, name = self.differences[0], self.family.model_type
        allowed = self.family.choices.get(first.path, (format_value(first.theirs),))
        path, problem = tuple(first.path.split(".")), f"Hugging Face's {name} does not support {first.text}"
        problem += f", nor {len(self.differences) - 1} other settings" * (len(self.differences) > 1)
        remedy = f"Use {first.path}: {' or '.join(allowed)} for {name}. Supported families: {', '.join(FAMILIES)}."
        return UserError(problem, path=("layers", first.layer, *path) if first.layer else path, remedy=remedy)


def _closest_family(given: _Given) -> _Candidate:
    """Return the first architecture that supports a model, or else the one with the fewest unsupported settings.

    Of the architectures in `COMMON`, and else of the others, one that adds the fewest biases is preferred.
    """
    candidates = [_candidate(name, given) for name in (CLASSIFIERS if given.interface.outputs else FAMILIES)]
    return min(candidates, key=lambda made: (len(made.differences), type(made.family) not in COMMON, made.zeros))


def _candidate(name: str, given: _Given) -> _Candidate:
    """Return how an architecture represents a model.

    Raises:
        UserError: If the architecture is unknown.
    """
    known = CLASSIFIERS if given.interface.outputs else FAMILIES
    if name not in known:
        what = f" for {given.interface.outputs} classes" if given.interface.outputs else ""
        raise UserError(f"model type {name!r} is not supported{what}", path=("family",), remedy=suggest(name, known))
    family, config, shapes = known[name], given.config, parameter_shapes(given.model)
    ours = Comparable(config, shapes)
    positions = shapes.get("position.weight", (given.seq_len,))[0]
    vocab_size = shapes.get("embedding.weight", (1,))[0]
    sizes = {"vocab_size": vocab_size, "seq_len": positions, "dropout": config.dropout}
    settings = family.write(ours.exported(**sizes))
    if (std := getattr(config.init, "std", None)) is not None:
        settings[family.std] = std
    completed = complete_settings(family, settings)
    again = load_config(ModelConfig, completed.read()).resolve()
    differences = ours.differences(Comparable(again))
    differences += [
        Difference(name, 0, given.special_tokens[name], family.fixed[name])
        for name in SPECIAL_TOKENS
        if name in family.fixed and given.special_tokens[name] != family.fixed[name]
    ]
    if (pooling := given.interface.pooling) not in ("", family.pooling):
        differences.append(Difference("task.pooling", 0, pooling, family.pooling))
    unsupported = [difference for difference in differences if not difference.adds_bias]
    return _Candidate(completed, settings, again, unsupported, len(differences) - len(unsupported))


def _write_tensors(chosen: _Candidate, given: _Given) -> dict[str, np.ndarray]:
    """Return the tensors of a model. Biases that the architecture requires and the model lacks are zeros."""
    have, config = named_parameters(given.model), given.config
    head_dim = width_of_heads(config)
    expected = parameter_shapes(blank_model(chosen.config, given.interface, chosen.family.length))
    tensors: dict[str, np.ndarray] = {}
    for rule in expand_rules(chosen.family.rules, len(config.layers)):
        if rule.ours[0] in expected:
            parts = [np.asarray(have.get(name, np.zeros(expected[name])), np.float32) for name in rule.ours]
            tensor = rule.layout.write(parts, head_dim)
            names = [chosen.family.spell(name) for name in rule.names(parts[0].shape)]
            several = tensor if "{e}" in rule.theirs else [tensor]
            tensors |= {name: np.ascontiguousarray(part) for name, part in zip(names, several, strict=True)}
    return tensors


def save_folder(
    path: str | Path,
    config: ModelConfig | LMConfig,
    model: LM,
    *,
    seq_len: int = DEFAULT_LENGTH,
    family: str | None = None,
    tokenizer: Tokenizer | None = None,
    special_tokens: Mapping[str, Any] | None = None,
    interface: Interface | None = None,
) -> None:
    """Save a model as a folder that `from_pretrained` in transformers can read.

    Args:
        path: The folder, which must be empty or missing. It appears with all files, or not at all.
        config: The config of the model.
        model: The model.
        seq_len: The maximum sequence length; see `to_huggingface`.
        family: The `model_type` of the architecture; see `to_huggingface`.
        tokenizer: The tokenizer, if it is saved too.
        special_tokens: See `to_huggingface`.
        interface: See `to_huggingface`.

    Raises:
        UserError: If the folder contains files, the disk is full or not writable, or the model cannot be converted
            (see `to_huggingface`).
    """
    folder = Path(path)
    check_new_folder(folder)
    special = dict(special_tokens or {})
    last = interface is not None and interface.pooling == "last"
    if last and tokenizer is not None and special.get("pad_token_id") in frame_of(tokenizer, 1).special[-1].tolist():
        special["pad_token_id"] = None  # transformers would read the outputs of the token before it
    settings, tensors = to_huggingface(
        config, model, seq_len=seq_len, family=family, special_tokens=special, interface=interface
    )
    write_model(folder, settings, tensors, tokenizer)
