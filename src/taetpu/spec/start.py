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
from taetpu.data.base import Source
from taetpu.data.tokenizers import Tokenizer, load_tokenizer
from taetpu.store.addresses import only_run, resolve
from taetpu.store.backend import Store, open_store
from taetpu.store.errors import NotStored

SEED = "{seed}"
FOLDERS = ("model/", "")
"""The places of a model's files: in the folder of a run, and in that of a checkpoint or a model."""
WEIGHTS = "model.safetensors"
SHOWN = 40
"""Maximum length of the tokens of a task in a message."""
CONSTANT = "constant:"  # name prefix of stored arrays that are not trained


class StartConfig(Config):
    """The stored model that training starts from. Parameters with the same name and shape are loaded."""

    folder: str
    """Address of a finished run (`STUDY/ARM/SEED`), or folder of a run, of a checkpoint (`RUN/checkpoints/STEP`) or of
    a model, relative to the study file or in a bucket (`gs://...`).

    `{seed}` is replaced by the seed of the run. A local folder may contain `*`, which must match one folder.
    """
    vocabulary: Literal["loaded", "drawn"] = "loaded"
    """Parameters whose shape depends on the number of tokens: `loaded`, which requires the same tokens, or `drawn`."""

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
        tokens: The `Source.unit` of the task that the model was trained on; empty if it is not stored.
        vocab_size: The number of tokens of the model; None if it is not stored.
    """

    where: str
    data: bytes
    tokenizer: Tokenizer | None
    tokens: str = ""
    vocab_size: int | None = None

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

    def check_vocabulary(self, source: Source) -> None:
        """Raise `UserError` if the tokens of a task differ from those of the model.

        Texts have the same tokens if their tokenizers are equal, and other tasks if they have an equal `Source.unit`.
        Models of earlier versions do not state it, and are accepted for such tasks. A cropped tokenizer is compared as
        it was before.
        """
        if self.tokenizer is None and source.tokenizer is None:
            if self.tokens and self.tokens != source.unit:
                both = f"those of the model are {_brief(self.tokens)}, and those of the task {_brief(source.unit)}"
                raise UserError(f"the stored model has other tokens than the task: {both}", remedy=_remedy("tokens"))
            return
        tokenizer = source.tokenizer
        whole = tokenizer if tokenizer is None or tokenizer.whole is None else tokenizer.whole
        # The task's tokenizer is read from its stored form too, because reading may complete the form.
        ours = None if whole is None else load_tokenizer(whole.to_json()).to_json()
        if ours != (None if self.tokenizer is None else self.tokenizer.to_json()):
            problem = f"the stored model has another tokenizer than the task: {_difference(self.tokenizer, whole)}"
            raise UserError(problem, remedy=_remedy("tokenizer"))
        if self.vocab_size is None or tokenizer is None:
            return
        size = source.vocab_size if tokenizer.kept is None else int(tokenizer.kept.max()) + 1
        if size > self.vocab_size or (size < self.vocab_size and tokenizer.kept is None):
            problem = f"the stored model has {self.vocab_size} tokens, and its tokenizer {size}"
            remedy = "Set `tokenizer: start`, so that the task has the tokens of the model."
            if size > self.vocab_size:
                remedy = "Set `crop: true` in the tokenizer, or use a model with all tokens of its tokenizer."
            raise UserError(problem, remedy=remedy)


def _remedy(what: str) -> str:
    """Return the remedy for a model with other tokens than the task."""
    remedy = f"Use a model with the task's {what}, or set train.start: {{folder: ..., vocabulary: drawn}}, which "
    return remedy + "draws the parameters of tokens and loads the others."


def _brief(tokens: str) -> str:
    """Return the tokens of a task, or their start, in quotes."""
    return repr(tokens if len(tokens) <= SHOWN else f"{tokens[:SHOWN]}...")


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
        tokens: The numbers of the task's tokens in the stored model: int32 `(vocab_size,)`; None if they are equal.
    """

    model: StoredModel
    drawn: frozenset[str] = frozenset()
    tokens: np.ndarray | None = None

    @property
    def where(self) -> str:
        """The file of the parameters."""
        return self.model.where

    @property
    def digest(self) -> str:
        """A text that identifies the values: the SHA-256 of the file, and which parameters of tokens are loaded."""
        if self.drawn:
            return f"{self.model.digest}, vocabulary drawn"
        if self.tokens is None:
            return self.model.digest
        return f"{self.model.digest}, tokens {hashlib.sha256(self.tokens.astype('<i4').tobytes()).hexdigest()}"

    def fitting(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        """Return the arrays whose name and shape agree with a parameter of a model.

        If the task has some of the model's tokens only, arrays have the rows of these tokens.

        Args:
            shapes: The shapes of the model's parameters by logical name.

        Raises:
            UserError: If no array agrees.
        """
        agreeing = {
            name: array
            for name, stored in self.model.arrays.items()
            if name in shapes and name not in self.drawn
            if (array := self._select_tokens(stored, shapes[name])).shape == shapes[name]
        }
        if not agreeing:
            problem = f"no parameter of the model has the name and shape of an array in {self.where}"
            remedy = "Use a model with the same sizes, or remove `start`."
            raise UserError(problem, path=("train", "start"), remedy=remedy)
        return agreeing

    def _select_tokens(self, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Return an array with the rows of the task's tokens, if a parameter of the given shape has fewer of them."""
        if self.tokens is None or array.ndim != len(shape):
            return array
        axes = [axis for axis, size in enumerate(shape) if size != array.shape[axis]]
        fits = len(axes) == 1 and shape[axes[0]] == len(self.tokens) and array.shape[axes[0]] == self.model.vocab_size
        return np.take(array, self.tokens, axes[0]) if fits else array


def read_start(start: StartConfig, seed: int, folder: Path) -> StoredModel:
    """Read the stored model that the run with a seed starts from.

    Args:
        start: The config.
        seed: The seed of the run.
        folder: The folder that relative paths are relative to.

    Raises:
        UserError: If no model is stored in the folder, or an address or a pattern does not match exactly
            one. The path of the
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
    stored = _read_model(place)
    if stored is None and "*" not in written and (run := _find_run(written, folder)) is not None:
        place, stored = run, _read_model(run)
    if stored is None:
        problem = f"no model is stored in {place}"
        raise UserError(problem, path=("folder",), remedy="Use a finished run, or the folder of a model.")
    return stored


def _find_run(address: str, folder: Path) -> str | None:
    """Return the folder of the run with an address; None if no study has it.

    Raises:
        UserError: If several runs match, or the study has no such arm or seed.
    """
    try:
        match = resolve(address, folder=folder, finished=True)
        return only_run(match.runs(), address, match.place).where
    except NotStored:
        return None
    except UserError as error:
        raise UserError(error.problem, path=("folder",), remedy=error.remedy) from None


def _read_model(place: str) -> StoredModel | None:
    """Return the model in a folder; None if there is none."""
    store = open_store(place)
    for inside in FOLDERS:
        try:
            key = f"{inside}{WEIGHTS}"
            data = store.read(key)
        except NotStored:
            continue
        config = _read_config(store, inside, place)
        size = config.get("vocab_size")
        size = size if isinstance(size, int) else None
        return StoredModel(store.where(key), data, _read_tokenizer(store, inside), str(config.get("tokens", "")), size)
    _read_config(store, "", place)
    return None


def _read_config(store: Store, inside: str, place: str) -> Mapping[str, Any]:
    """Return the content of the `config.json` beside stored parameters; empty if it is damaged or missing.

    Raises:
        UserError: If it is that of a Hugging Face model.
    """
    content = store.read(f"{inside}config.json") if store.exists(f"{inside}config.json") else b""
    try:
        about = json.loads(content)
    except ValueError:  # damaged or missing: the arrays decide
        return {}
    if not isinstance(about, dict):
        return {}
    if "model_type" in about:
        remedy = f"Run `taetpu model import {place} -o FOLDER`, and name the new folder."
        raise UserError(f"{place} is a Hugging Face model", path=("folder",), remedy=remedy)
    return about


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
