"""Trained models as files: weights by logical name (safetensors), the architecture and the tokenizer."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field
from pydantic_core import from_json
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from taetpu.core.config import Config, iter_components, to_data
from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.core.keys import root_key
from taetpu.core.model_interface import Interface
from taetpu.core.registry import kinds, slots
from taetpu.core.short_repr import short_repr
from taetpu.data.tokenizers.base import Tokenizer
from taetpu.data.tokenizers.library import load_tokenizer
from taetpu.nn.edited import check_unedited
from taetpu.nn.lm import LM, LMConfig, build_model
from taetpu.nn.named_arrays import named_constants, named_parameters, with_constants, with_parameters
from taetpu.train.model_cost import model_shapes

WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
MAX_SIZE = 2**24
CONSTANT = "constant:"  # name prefix of arrays that are not trained; their values may be random


@dataclass(frozen=True)
class SavedModel:
    """A trained model with its config and tokenizer.

    Attributes:
        model: the model.
        config: the config of the model.
        interface: the sizes of inputs and outputs.
        seq_len: the sequence length.
        tokenizer: the tokenizer; None if the tokens are not text.
        special_tokens: the settings of a Hugging Face model about tokens that begin and end texts, such as
            `eos_token_id`; empty for other models.
    """

    __repr__ = short_repr

    model: LM
    config: LMConfig
    interface: Interface
    seq_len: int
    tokenizer: Tokenizer | None
    special_tokens: Mapping[str, Any] = field(default_factory=dict)

    @property
    def vocab_size(self) -> int:
        """The number of different tokens; 0 if inputs are real."""
        return self.interface.vocab_size


def to_files(
    model: LM,
    config: LMConfig,
    *,
    interface: Interface,
    seq_len: int,
    tokenizer: Tokenizer | None,
    special_tokens: Mapping[str, Any] | None = None,
    tokens: str = "",
) -> dict[str, bytes]:
    """Return the files of a model by name. `tokens` is the `Source.unit` of its task, if its tokens are not text.

    Raises:
        UserError: if the model has active edits.
    """
    check_unedited(model)
    constants = {CONSTANT + name: array for name, array in named_constants(model).items()}
    weights = {name: np.asarray(array) for name, array in {**named_parameters(model), **constants}.items()}
    about = {
        "format": "taetpu",
        "model": to_data(config),
        "plugins": sorted({component.plugin for component in iter_components(config)} - {""}),  # sha256 digests
        "vocab_size": interface.vocab_size,
        "seq_len": seq_len,
        **({} if interface.is_language_model else {"interface": _interface_record(interface)}),
        **({"special_tokens": dict(special_tokens)} if special_tokens else {}),
        **({"tokens": tokens} if tokens else {}),
    }
    files = {
        WEIGHTS: save_tensors(weights),
        CONFIG: (json.dumps(about, indent=2, sort_keys=True) + "\n").encode(),
    }
    return files if tokenizer is None else {**files, TOKENIZER: tokenizer.to_json().encode()}


def from_files(files: Mapping[str, bytes], where: str = "", live: frozenset[str] = frozenset()) -> SavedModel:
    """Return the model stored in files from `to_files`.

    Args:
        files: the files by name.
        where: the folder of the files, for error messages.
        live: the fields of the config that are arrays in the model although they are neutral, such as masks of ones
            (see `nn.lm.build_model`).

    Raises:
        UserError: if a file is missing, the weights do not match the architecture, or a plug-in is not loaded.
    """
    for name in (CONFIG, WEIGHTS):
        if name not in files:
            remedy = "Use the folder of a finished run or of a model."
            raise UserError(f"no {name} is stored here", file=where, remedy=remedy)
    about = _read_record(files[CONFIG], where)
    _check_plugins(about.plugins, where)
    config = load_config(LMConfig, about.model)
    try:
        stored = load_tensors(files[WEIGHTS])
    except SafetensorError as error:
        problem = f"not a complete safetensors file: {error}"
        raise UserError(problem, file=f"{where}/{WEIGHTS}", remedy="Copy the model again.") from None
    constants = {name.removeprefix(CONSTANT): a for name, a in stored.items() if name.startswith(CONSTANT)}
    weights = {name: a for name, a in stored.items() if not name.startswith(CONSTANT)}
    interface = Interface(about.vocab_size) if about.interface is None else about.interface.build()
    blank = _blank(config, interface, about.seq_len, set(constants), live)
    return SavedModel(
        model=with_constants(with_parameters(blank, weights), constants),
        config=config,
        interface=interface,
        seq_len=about.seq_len,
        tokenizer=_read_tokenizer(files[TOKENIZER], where) if TOKENIZER in files else None,
        special_tokens=about.special_tokens,
    )


def _interface_record(interface: Interface) -> dict[str, Any]:
    """Return the stored form of an interface, without labels and pooling if it has none."""
    return {name: value for name, value in asdict(interface).items() if name not in ("labels", "pooling") or value}


class InterfaceRecord(Config):
    """A stored `Interface`."""

    vocab_size: Annotated[int, Field(ge=0, le=MAX_SIZE)]
    outputs: Annotated[int, Field(ge=1, le=MAX_SIZE)] | None = None
    features: Annotated[int, Field(ge=0, le=MAX_SIZE)] = 0
    types: Annotated[int, Field(ge=1, le=MAX_SIZE)] = 1
    labels: tuple[str, ...] = ()
    pooling: Literal["", "first", "last", "mean"] = ""

    def build(self) -> Interface:
        """Return the interface."""
        return Interface(**dict(self))


class ModelRecord(Config):
    """The content of a model's `config.json`. Later versions may add settings."""

    model: dict[str, Any]
    vocab_size: Annotated[int, Field(ge=0, le=MAX_SIZE)]
    seq_len: Annotated[int, Field(ge=1, le=MAX_SIZE)]
    interface: InterfaceRecord | None = None
    plugins: tuple[str, ...] = ()
    special_tokens: dict[str, int | list[int]] = Field(default_factory=dict)


def _read_record(content: bytes, where: str) -> ModelRecord:
    """Return the content of `config.json`; `from_json` of pydantic limits the depth and the length of integers."""
    file, remedy = f"{where}/{CONFIG}", "Copy the model again."
    try:
        data = from_json(content)
        if not isinstance(data, dict):
            raise UserError(f"expected a JSON object, got {type(data).__name__}", file=file, remedy=remedy)
        return load_config(ModelRecord, {name: data[name] for name in ModelRecord.model_fields if name in data})
    except UserError as error:
        raise error.within(file=file) from None
    except ValueError as error:
        raise UserError(f"not JSON: {error}", file=file, remedy=remedy) from None


def _read_tokenizer(content: bytes, where: str) -> Tokenizer:
    try:
        return load_tokenizer(content.decode())
    except (UnicodeDecodeError, UserError) as error:
        problem = error.problem if isinstance(error, UserError) else "not a tokenizer: the text is not UTF-8"
        raise UserError(problem, file=f"{where}/{TOKENIZER}", remedy="Copy the model again.") from None


def _blank(config: LMConfig, interface: Interface, seq_len: int, constants: set[str], live: frozenset[str]) -> LM:
    """Return a model to be filled with stored arrays.

    The model holds zeros, which need no compilation. If the files do not store all constants, the model is initialised
    instead. Files never store random keys, and files of earlier versions store no constants.
    """
    model = model_shapes(config, interface, seq_len, live)
    has_keys = any(jnp.issubdtype(a.dtype, jax.dtypes.prng_key) for a in jax.tree.leaves(model))
    if has_keys or set(jax.eval_shape(named_constants, model)) - constants:
        return build_model(config, interface, seq_len, key=root_key(0), live=live)
    return jax.tree.map(lambda a: jax.device_put(np.zeros(a.shape, a.dtype)), model)


def _check_plugins(digests: Iterable[str], where: str) -> None:
    """Raise `UserError` for the first plug-in that is not loaded in the version with which the model was trained."""
    loaded = {cls.plugin for slot in slots() for cls in kinds(slot).values()}
    for digest in digests:
        if digest not in loaded:
            problem = f"this model was trained with a plug-in that is not loaded (sha256 {digest[:8]})"
            remedy = f"Call open_run(..., plugins=[FILE]). The study has a copy: plugins/*-{digest[:8]}.py."
            raise UserError(problem, file=where, remedy=remedy)
