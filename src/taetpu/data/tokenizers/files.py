"""Kinds that read a tokenizer instead of training one: from a file, or with the model that training starts from."""

import hashlib
import re
from abc import abstractmethod
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, PrivateAttr

from taetpu.core.errors import UserError, change_errors
from taetpu.core.json_files import RESTORE, read_bytes
from taetpu.core.registry import register
from taetpu.data.tokenizers.base import SAMPLE, Tokenizer, TokenizerConfig
from taetpu.data.tokenizers.crop import crop, mark_cropped
from taetpu.data.tokenizers.library import load_tokenizer

LARGEST = 3 * 2**24
"""The size up to which a tokenizer's file is read, in bytes. That of Gemma 3 has 33 MB."""
RANK = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\s")
FORMATS: dict[str, tuple[str, str]] = {
    "file": ("a tokenizer.json", "Set `kind: file`."),
    "tiktoken": ("a file of tiktoken's ranks", "Set `kind: tiktoken`, and `pattern`."),
    "sentencepiece": ("a SentencePiece model", "Set `kind: sentencepiece`."),
    "pickle": (
        "a pickle, which could execute any code and is never read",
        "If it is nanochat's tokenizer.pkl, write its ranks with Python, and set `kind: tiktoken`: "
        "ranks = pickle.load(open(PATH, 'rb'))._mergeable_ranks; open('ranks.tiktoken', 'wb').writelines("
        "base64.b64encode(token) + b' %d\\n' % rank for token, rank in ranks.items())",
    ),
    "archive": ("compressed", "Unpack it."),
    "utf-16": ("text in UTF-16", "Convert it to UTF-8."),
    "vocabulary": ("a JSON file without the `model` of a tokenizer", "Use the file tokenizer.json of the model."),
}
"""What a file may be that is not of the kind that was written, and the remedy."""


def recognise(data: bytes) -> str | None:
    """Return the key in `FORMATS` of a file with the given content; None if it is not known."""
    start = data[:4096].lstrip()
    if start.startswith(b"{"):
        return "file" if b'"model"' in data or b'"added_tokens"' in start else "vocabulary"
    if RANK.match(start):
        return "tiktoken"
    if data.startswith((b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd")):
        return "archive"
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    if data[:1] == b"\x80" and data[1:2] in b"\x02\x03\x04\x05":
        return "pickle"
    return "sentencepiece" if data.startswith(b"\n") and b"\0" in data else None


class ReadTokenizerConfig(TokenizerConfig):
    """Base of the kinds that read a tokenizer instead of training one."""

    crop: bool = False
    """Whether tokens are removed that the training text does not contain, and that no token in it is merged from."""
    parse_special: bool = False
    """Whether special tokens that are written in the text, such as `<|endoftext|>`, are these tokens; else text."""

    @property
    def sample(self) -> int:
        """See `TokenizerConfig.sample`."""
        return SAMPLE if self.crop else 0

    @abstractmethod
    def read(self, text: str, folder: Path) -> Tokenizer:
        """Return the tokenizer before it is cropped. The arguments are those of `prepare`."""

    def train(self, text: str) -> Tokenizer:
        """Return the tokenizer. Paths are relative to the current folder."""
        return self.prepare(text, Path())

    def prepare(self, text: str, folder: Path) -> Tokenizer:
        """See `TokenizerConfig.prepare`."""
        tokenizer = self.read(text, folder)
        tokenizer.set_parse_special(self.parse_special)
        return crop(tokenizer, text) if self.crop else tokenizer

    def content(self, folder: Path) -> str:
        """See `TokenizerConfig.content`."""
        tokenizer = self.read("", folder)
        return f"{tokenizer.to_json()} {tokenizer.rows}"

    def reopen(self, stored: Tokenizer, folder: Path) -> Tokenizer:
        """See `TokenizerConfig.reopen`."""
        whole = self.read("", folder)
        if self.crop:
            mark_cropped(stored, whole)
        tokenizer = stored if self.crop else whole
        tokenizer.set_parse_special(self.parse_special)
        return tokenizer


class LocalTokenizerConfig(ReadTokenizerConfig):
    """Base of the kinds that read a file.

    Attributes:
        format: The key of the file's format in `FORMATS`.
    """

    format: ClassVar[str] = "file"

    path: Annotated[str, Field(description="path of the file, relative to the study file")]

    @abstractmethod
    def parse(self, data: bytes, place: str, text: str) -> Tokenizer:
        """Return the tokenizer in the content of the file, before it is cropped.

        Args:
            data: The content.
            place: The path of the file, for messages.
            text: The training split.
        """

    def read(self, text: str, folder: Path) -> Tokenizer:
        """See `ReadTokenizerConfig.read`."""
        data, place = self._content(folder), str(folder / Path(self.path).expanduser())
        with change_errors(lambda error: error if error.path else error.within("path")):
            tokenizer = self.parse(data, place, text)
            if not tokenizer.vocab_size:
                raise UserError(f"{place}: the tokenizer has no tokens", remedy=RESTORE)
        tokenizer.origin = {"sha256": hashlib.sha256(data).hexdigest()}
        return tokenizer

    def _content(self, folder: Path) -> bytes:
        """Return the content of the file.

        Raises:
            UserError: If the file is missing, too large, or of another format.
        """
        file = folder / Path(self.path).expanduser()
        with change_errors(partial(name_file, "path")):
            if file.is_dir() and self.format == "file":
                problem = f"{file} is a folder"
                raise UserError(problem, remedy=f"Write {Path(self.path) / 'tokenizer.json'}.")
            data = read_bytes(file, "Use a path relative to the study's folder.", LARGEST)
            check_format(data, self.format, str(file))
        return data


def name_file(field: str, error: UserError) -> UserError:
    """Return an error at a field of the study file, with the file as a part of the problem."""
    problem = f"{error.file}: {error.problem}" if error.file else error.problem
    return UserError(problem, path=(field,), remedy=error.remedy)


def check_format(data: bytes, wanted: str, place: str) -> None:
    """Raise `UserError` if the content of a file is recognised as another format than the wanted one, or is empty."""
    if not data.strip():
        raise UserError(f"{place} is empty", remedy=RESTORE)
    actual = recognise(data)
    if actual not in (None, wanted):
        what, remedy = FORMATS[actual]
        raise UserError(f"{place} is {what}, not {FORMATS[wanted][0]}", remedy=remedy)


def read_library_file(data: bytes, place: str) -> Tokenizer:
    """Return the tokenizer in the content of a `tokenizer.json`.

    Raises:
        UserError: If the content is damaged.
    """
    try:
        return load_tokenizer(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise UserError(f"{place}: not a tokenizer: the text is not UTF-8", remedy=RESTORE) from None
    except UserError as error:
        raise UserError(f"{place}: {error.problem}", remedy=error.remedy) from None


@register("tokenizer", "file")
class FileConfig(LocalTokenizerConfig):
    """The `tokenizer.json` of a Hugging Face model, or of a run.

    Special tokens that its post-processor adds to a text, such as `<s>`, are added to each document, unless the task's
    `separator` names a token.
    """

    example: ClassVar = {"path": "tokenizer.json"}

    def parse(self, data: bytes, place: str, text: str) -> Tokenizer:
        """See `LocalTokenizerConfig.parse`."""
        return read_library_file(data, place)


@register("tokenizer", "start")
class StartTokenizerConfig(ReadTokenizerConfig):
    """The tokenizer of the model in `train.start`.

    If the model has more tokens than its tokenizer, as in Pythia, so has the task.
    """

    example: ClassVar = {"train.start": "pythia"}
    _stored: tuple[str, int] | None = PrivateAttr(None)

    folder: str | None = None
    """The model, as in `train.start.folder`, also if an arm starts from no model; `none`: that of `train.start`."""
    revision: str | None = None
    """As in `train.start.revision`, if `folder` is a model on the hub."""

    @property
    def is_read(self) -> bool:
        """Whether the config is that of a stored model (see `of_model`)."""
        return self._stored is not None

    def of_model(self, content: str, rows: int) -> "StartTokenizerConfig":
        """Return this config for a stored model.

        Args:
            content: The content of the model's `tokenizer.json`.
            rows: The model's number of tokens.
        """
        config = self.model_copy()
        config._stored = content, rows
        return config

    def read(self, text: str, folder: Path) -> Tokenizer:
        """See `ReadTokenizerConfig.read`."""
        if self._stored is None:
            problem = "`tokenizer: start` is the tokenizer of the model in `train.start`, which is not set"
            raise UserError(problem, remedy="Set train.start, or another tokenizer.")
        content, rows = self._stored
        tokenizer = load_tokenizer(content)
        tokenizer.rows = rows
        tokenizer.origin = {"sha256": hashlib.sha256(content.encode()).hexdigest()}
        return tokenizer
