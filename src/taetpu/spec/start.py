"""The stored model whose parameters a run starts from (`train.start`)."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from glob import escape
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import model_validator
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors

from taetpu.core.config import Config
from taetpu.core.errors import UserError
from taetpu.data.tokenizers import Tokenizer, load_tokenizer
from taetpu.store.backend import Store, open_store
from taetpu.store.errors import NotStored

SEED = "{seed}"
FOLDERS = ("model/", "")
"""The places of a model's files: in the folder of a run, and in that of a checkpoint or a model."""
WEIGHTS = "model.safetensors"
CONSTANT = "constant:"  # name prefix of stored arrays that are not trained


class StartConfig(Config):
    """The stored model that training starts from. Parameters with the same name and shape are loaded."""

    folder: str
    """Folder of a finished run, of a kept checkpoint (`RUN/checkpoints/STEP`) or of a model, relative to the study file
    or in a bucket (`gs://...`).

    `{seed}` is replaced by the seed of the run. A local folder may contain `*`, which must match one folder.
    """
    vocabulary: Literal["loaded", "drawn"] = "loaded"
    """Parameters whose shape depends on the number of tokens: `loaded`, which requires the same tokenizer, or `drawn`.
    """

    @model_validator(mode="before")
    @classmethod
    def _text(cls, data: Any) -> Any:
        """Accept a folder in place of a mapping."""
        return {"folder": data} if isinstance(data, str) else data


@dataclass(frozen=True)
class StoredModel:
    """The files of a stored model.

    Attributes:
        where: The file of the parameters.
        data: The content of this file.
        tokenizer: The tokenizer; None if the tokens are not text.
    """

    where: str
    data: bytes
    tokenizer: Tokenizer | None

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the parameters' file."""
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """The trained arrays by logical name (see `nn.named_arrays.named_parameters`).

        Raises:
            UserError: If the file is damaged.
        """
        try:
            stored = load_tensors(self.data)
        except SafetensorError as error:
            remedy = "Copy the model again, or use another model."
            raise UserError(f"the stored model is damaged: {error}", file=self.where, remedy=remedy) from None
        return {name: array for name, array in stored.items() if not name.startswith(CONSTANT)}

    def check_tokenizer(self, tokenizer: Tokenizer | None) -> None:
        """Raise `UserError` if a tokenizer differs from that of the model. None is the tokenizer of other tokens."""
        # The task's tokenizer is read from its stored form too, because reading may complete the form.
        ours = None if tokenizer is None else load_tokenizer(tokenizer.to_json()).to_json()
        if ours != (None if self.tokenizer is None else self.tokenizer.to_json()):
            problem = f"the stored model has another tokenizer than the task: {_difference(self.tokenizer, tokenizer)}"
            remedy = (
                "Use a model with the task's tokenizer, or set train.start: {folder: ..., vocabulary: drawn}, which "
            )
            remedy += "draws the parameters of tokens and loads the others."
            raise UserError(problem, remedy=remedy)


def _difference(stored: Tokenizer | None, ours: Tokenizer | None) -> str:
    """Return a description of how the tokenizer of a stored model differs from that of the task."""
    if stored is None or ours is None:
        return f"{'the model' if stored is None else 'the task'} has none"
    if stored.vocab_size != ours.vocab_size:
        return f"{stored.vocab_size} tokens, and the task has {ours.vocab_size}"
    for number in range(ours.vocab_size):
        if stored.token(number) != ours.token(number):
            return f"token {number} is {stored.token(number)!r}, and {ours.token(number)!r} in the task"
    return "the tokens are equal, but texts are not divided in the same way"


@dataclass(frozen=True)
class StoredParameters:
    """The parameters of a stored model that a run may load.

    Attributes:
        model: The stored model.
        drawn: The logical names of parameters that are drawn although the model may have them.
    """

    model: StoredModel
    drawn: frozenset[str] = frozenset()

    @property
    def where(self) -> str:
        """The file of the parameters."""
        return self.model.where

    @property
    def digest(self) -> str:
        """A text that identifies the values: the SHA-256 of the file, and whether the vocabulary is drawn."""
        return f"{self.model.digest}, vocabulary drawn" if self.drawn else self.model.digest

    def fitting(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        """Return the arrays whose name and shape agree with a parameter of a model.

        Args:
            shapes: The shapes of the model's parameters by logical name.

        Raises:
            UserError: If no array agrees.
        """
        agreeing = {
            name: array
            for name, array in self.model.arrays.items()
            if shapes.get(name) == array.shape and name not in self.drawn
        }
        if not agreeing:
            problem = f"no parameter of the model has the name and shape of an array in {self.where}"
            remedy = "Use a model with the same sizes, or remove `start`."
            raise UserError(problem, path=("train", "start"), remedy=remedy)
        return agreeing


def read_start(start: StartConfig, seed: int, folder: Path) -> StoredModel:
    """Read the stored model that the run with a seed starts from.

    Args:
        start: The config.
        seed: The seed of the run.
        folder: The folder that relative paths are relative to.

    Raises:
        UserError: If no model is stored in the folder, or a pattern does not match exactly one folder. The path of the
            error is `folder`.
    """
    written = start.folder.replace(SEED, str(seed))
    place = written
    if not written.startswith("gs://"):
        matches = [folder / written]
        if "*" in written:
            matches = sorted(Path(folder.anchor or ".").glob(str(Path(escape(str(folder))) / written).lstrip("/")))
        if len(matches) != 1:
            count = f"{len(matches)} folders match" if matches else "no folder matches"
            remedy = "Write a path, or a pattern that matches one folder."
            raise UserError(f"{count} {written!r}", path=("folder",), remedy=remedy)
        place = str(matches[0])
    store = open_store(place)
    for inside in FOLDERS:
        try:
            key = f"{inside}{WEIGHTS}"
            data = store.read(key)
        except NotStored:
            continue
        _check_format(store, inside, place)
        return StoredModel(store.where(key), data, _read_tokenizer(store, inside))
    _check_format(store, "", place)
    problem = f"no model is stored in {place}"
    raise UserError(problem, path=("folder",), remedy="Use the folder of a finished run, or of a model.")


def _check_format(store: Store, inside: str, place: str) -> None:
    """Raise `UserError` if a folder holds the files of a Hugging Face model."""
    config = store.read(f"{inside}config.json") if store.exists(f"{inside}config.json") else b""
    try:
        about = json.loads(config)
    except ValueError:  # damaged or missing: the arrays decide
        return
    if isinstance(about, dict) and "model_type" in about:
        remedy = f"Run `taetpu model import {place} -o FOLDER`, and name the new folder."
        raise UserError(f"{place} is a Hugging Face model", path=("folder",), remedy=remedy)


def _read_tokenizer(store: Store, inside: str) -> Tokenizer | None:
    """Return the tokenizer beside stored parameters; None if there is none."""
    key = f"{inside}tokenizer.json"
    if not store.exists(key):
        return None
    try:
        return load_tokenizer(store.read(key).decode())
    except (UnicodeDecodeError, UserError) as error:
        problem = error.problem if isinstance(error, UserError) else "not a tokenizer: the text is not UTF-8"
        raise UserError(problem, file=store.where(key), remedy="Copy the model again.") from None
