"""The stored model whose parameters a run starts from (`train.start`)."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from glob import escape
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import model_validator
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors

from taetpu.core.config import Config
from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError, dotted_path
from taetpu.core.layer_names import fold_layers
from taetpu.data.base import Source
from taetpu.data.tokenizers.base import Tokenizer
from taetpu.data.tokenizers.library import load_tokenizer
from taetpu.nn.lm import LMConfig
from taetpu.nn.named_arrays import Shape
from taetpu.store.addresses import only_run, resolve
from taetpu.store.backend import Store, open_store
from taetpu.store.errors import NotStored

SEED = "{seed}"
FOLDERS = ("model/", "")
"""The places of a model's files: in the folder of a run, and in that of a checkpoint or a model."""
WEIGHTS, CONFIG = "model.safetensors", "config.json"
NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
"""The pattern of names of models on the hub."""
SHOWN = 40
"""Maximum length of the tokens of a task in a message."""
CONSTANT = "constant:"  # name prefix of stored arrays that are not trained
ADAPTER = "adapter_config.json"
Convert = Callable[[str, str | None], Path]
"""A function that returns the folder of a taetpu model, from that of a Hugging Face model or from its name on the hub
and a revision."""


class StartConfig(Config):
    """The stored model that training starts from. Parameters with the same name and shape are loaded."""

    folder: str
    """Address of a finished run (`STUDY/ARM/SEED`), or folder of a run, of a checkpoint (`RUN/checkpoints/STEP`) or of
    a model, relative to the study file or in a bucket (`gs://...`); with `revision`, name of a model on the hub.

    `{seed}` is replaced by the seed of the run. A local folder may contain `*`, which must match one folder.
    """
    revision: str | None = None
    """Branch, tag or commit of a model on the Hugging Face hub, e.g. main; `none`: `folder` is not on the hub."""
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
        about: The content of the `config.json` beside it; empty if it is damaged or missing.
    """

    where: str
    data: bytes
    tokenizer: Tokenizer | None
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> str:
        """The `Source.unit` of the task that the model was trained on; empty if it is not stored."""
        return str(self.about.get("tokens", ""))

    @property
    def vocab_size(self) -> int | None:
        """The number of tokens of the model; None if it is not stored."""
        size = self.about.get("vocab_size")
        return size if isinstance(size, int) else None

    @property
    def config(self) -> LMConfig:
        """The resolved config of the model.

        Raises:
            UserError: If it is not stored, or it has a kind of a plug-in that is not loaded.
        """
        if not isinstance(model := self.about.get("model"), Mapping):
            problem = f"no {CONFIG} beside {self.where} describes the model"
            raise UserError(problem, remedy="Use the folder of a run, or write the settings of the model.")
        try:
            return load_config(LMConfig, model)
        except UserError as error:
            problem = f"the config of {self.where} cannot be read: {dotted_path(error.path)}: {error.problem}"
            raise UserError(problem, remedy="If the model has kinds of a plug-in, list it in plugins.") from None

    @property
    def predicts_tokens(self) -> bool:
        """Whether the outputs of the model are the logits of its tokens."""
        interface = self.about.get("interface")
        return not isinstance(interface, Mapping) or interface.get("outputs") is None

    def fits(self, name: str, shape: Shape) -> bool:
        """Return whether a parameter with a name and a shape is stored."""
        return name in self.arrays and self.arrays[name].shape == shape

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

    def positions_to_cut(self, shapes: Mapping[str, tuple[Shape, Shape]]) -> frozenset[str]:
        """Return which parameters have more positions in the stored model than a task has tokens.

        Args:
            shapes: The shapes of these parameters (see `nn.named_arrays.position_parameters`).

        Raises:
            UserError: If a parameter has fewer positions. The error's path is relative to the run's config.
        """
        cut = set[str]()
        for name, (needed, longer) in shapes.items():
            stored = self.arrays[name].shape if name in self.arrays else ()
            axes = [axis for axis, size in enumerate(needed) if size != longer[axis]]
            if len(stored) != len(needed) or any(
                stored[axis] != size for axis, size in enumerate(needed) if axis not in axes
            ):
                continue  # the parameter is drawn
            for axis in axes:
                if stored[axis] < needed[axis]:
                    problem = f"{needed[axis]} tokens exceed the {stored[axis]} positions of {name} in {self.where}"
                    remedy = f"Use at most {stored[axis]}, or positions without parameters, such as rope."
                    raise UserError(problem, path=("task", "seq_len"), remedy=remedy)
                if stored[axis] > needed[axis]:
                    cut.add(name)
        return frozenset(cut)

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
                remedy = "Crop the tokenizer to the tokens that occur (`crop: true`), or use one that fits the model."
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
        name: The folder or address of the model, as written in the study.
        drawn: The logical names of parameters that are drawn although the model may have them.
        tokens: The numbers of the task's tokens in the stored model: int32 `(vocab_size,)`; None if they are equal.
        cut: The logical names of parameters that have more positions in the stored model than the task has tokens.
            The first ones are loaded.
        outputs: The logical names of parameters that are drawn although the model has them, because they lead to
            tokens in one of the two, and to other outputs in the other.
    """

    model: StoredModel
    name: str = ""
    drawn: frozenset[str] = frozenset()
    tokens: np.ndarray | None = None
    cut: frozenset[str] = frozenset()
    outputs: frozenset[str] = frozenset()

    @property
    def where(self) -> str:
        """The file of the parameters."""
        return self.model.where

    @property
    def digest(self) -> str:
        """A text that identifies the values: the SHA-256 of the file, and which parts of its arrays are loaded."""
        parts = [self.model.digest]
        if self.drawn:
            parts.append("vocabulary drawn")
        elif self.tokens is not None:
            parts.append(f"tokens {hashlib.sha256(self.tokens.astype('<i4').tobytes()).hexdigest()}")
        parts += ["first positions"] * bool(self.cut) + ["outputs drawn"] * bool(self.outputs)
        return ", ".join(parts)

    @property
    def special_tokens(self) -> dict[str, int | list[int]]:
        """The settings of the stored model about tokens that begin and end texts, as the task numbers these tokens."""
        stored = self.model.about.get("special_tokens")
        if self.drawn or not isinstance(stored, Mapping):
            return {}
        if self.tokens is None:
            return dict(stored)
        places = {number: place for place, number in enumerate(self.tokens.tolist())}
        listed = {name: value if isinstance(value, list) else [value] for name, value in stored.items()}
        kept = {name: [places[number] for number in numbers if number in places] for name, numbers in listed.items()}
        return {
            name: numbers if isinstance(stored[name], list) else numbers[0] for name, numbers in kept.items() if numbers
        }

    def facts(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        """Return which parameters are loaded and drawn, for plans, results and reports.

        Returns:
            The `name` of the model, the number of `loaded` parameters, and the names of parameters of tokens that are
            drawn on request (`vocabulary`), that the model lacks (`drawn`), that no parameter fits (`unused`), of which
            the first positions are loaded (`cut`), and that lead to other `outputs`. Layers are merged.

        Raises:
            UserError: As `fitting`.
        """
        loaded = self.fitting(shapes)
        known = {*loaded, *self.drawn, *self.outputs}
        names = {
            "vocabulary": sorted(self.drawn - self.outputs),
            "outputs": sorted(self.outputs),
            "drawn": [name for name in shapes if name not in known],
            "unused": [name for name in self.model.arrays if name not in known],
            "cut": sorted(self.cut & {*loaded}),
        }
        return {"name": self.name, "loaded": len(loaded), **{what: fold_layers(part) for what, part in names.items()}}

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
            if name in shapes and name not in self.drawn | self.outputs
            if (array := self._part(name, stored, shapes[name])).shape == shapes[name]
        }
        if not agreeing:
            problem = f"no parameter of the model has the name and shape of an array in {self.where}"
            remedy = "Use a model with the same sizes, or remove `start`."
            raise UserError(problem, path=("train", "start"), remedy=remedy)
        return agreeing

    def _part(self, name: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Return a stored array, or the part of it that is loaded into a parameter of the given shape."""
        if name in self.cut and array.ndim == len(shape):
            return array[tuple(map(slice, shape))]
        return self._select_tokens(array, shape)

    def _select_tokens(self, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Return an array with the rows of the task's tokens, if a parameter of the given shape has fewer of them."""
        if self.tokens is None or array.ndim != len(shape):
            return array
        axes = [axis for axis, size in enumerate(shape) if size != array.shape[axis]]
        fits = len(axes) == 1 and shape[axes[0]] == len(self.tokens) and array.shape[axes[0]] == self.model.vocab_size
        return np.take(array, self.tokens, axes[0]) if fits else array


def read_start(start: StartConfig, seed: int, folder: Path, convert: Convert | None = None) -> StoredModel:
    """Read the stored model that the run with a seed starts from.

    Args:
        start: The config.
        seed: The seed of the run.
        folder: The folder that relative paths are relative to.
        convert: A function that converts Hugging Face models; None if they are refused.

    Raises:
        UserError: If no model is stored in the folder, or an address or a pattern does not match exactly one. The path
            of the error is `folder`.
    """
    written = start.folder.replace(SEED, str(seed))
    if start.revision is not None:
        return _read_converted(written, start.revision, convert)
    place = written
    if not written.startswith("gs://"):
        matches = [folder / Path(written).expanduser()]
        if "*" in written:
            matches = sorted(Path(folder.anchor or ".").glob(str(Path(escape(str(folder))) / written).lstrip("/")))
        if len(matches) != 1:
            count = f"{len(matches)} folders match" if matches else "no folder matches"
            remedy = "Write a path, or a pattern that matches one folder."
            raise UserError(f"{count} {written!r}", path=("folder",), remedy=remedy)
        place = str(matches[0])
        if _is_huggingface(matches[0]):
            return _read_converted(place, None, convert)
    stored = _read_model(place)
    if stored is None and "*" not in written and (run := _find_run(written, folder)) is not None:
        place, stored = run, _read_model(run)
    if stored is None:
        problem, remedy = f"no model is stored in {place}", "Use a finished run, or the folder of a model."
        if NAME.fullmatch(written):
            remedy += f" For a model on the hub, write {{folder: {written}, revision: main}}."
        raise UserError(problem, path=("folder",), remedy=remedy)
    return stored


def _is_huggingface(folder: Path) -> bool:
    """Return whether a folder holds a Hugging Face model, or an adapter of PEFT."""
    return (folder / ADAPTER).is_file() or "model_type" in _parse(folder / CONFIG)


def _parse(file: Path) -> Mapping[str, Any]:
    """Return the JSON object in a file; empty if the file is missing or damaged."""
    try:
        return _as_object(file.read_bytes())
    except OSError:
        return {}


def _read_converted(place: str, revision: str | None, convert: Convert | None) -> StoredModel:
    """Return a Hugging Face model, which is converted first.

    Raises:
        UserError: If it cannot be converted, or models are not converted here. Errors in its files name the file.
    """
    if convert is None:
        remedy = f"Run `taetpu model import {place} -o FOLDER`, and name the new folder."
        raise UserError(f"{place} is a Hugging Face model", path=("folder",), remedy=remedy)
    try:
        stored = _read_model(str(convert(place, revision)))
    except UserError as error:
        file = error.file and (f"{error.file} at {dotted_path(error.path)}" if error.path else error.file)
        problem = f"{file}: {error.problem}" if file else error.problem
        raise UserError(problem, path=("folder",), remedy=error.remedy) from None
    if stored is None:
        raise UserError(f"{place} was converted to a folder without a model", path=("folder",))
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
        return StoredModel(store.where(key), data, _read_tokenizer(store, inside), _read_config(store, inside))
    return None


def _read_config(store: Store, inside: str) -> Mapping[str, Any]:
    """Return the content of the `config.json` beside stored parameters; empty if it is damaged or missing."""
    key = f"{inside}{CONFIG}"
    return _as_object(store.read(key)) if store.exists(key) else {}


def _as_object(content: bytes) -> Mapping[str, Any]:
    """Return a JSON object; empty if the content is damaged."""
    try:
        about = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}


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
