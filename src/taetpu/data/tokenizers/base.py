"""The base of tokenizers and of the kinds of slot `tokenizer`."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers as hf
from tokenizers import models

from taetpu.core.config import Component
from taetpu.core.errors import UserError

SAMPLE = 2**26
"""Number of characters of training text of which a tokenizer is trained, if the corpus does not fit into memory."""
REFUSED = "Use another text, or another tokenizer. If every text fails, the tokenizer.json is damaged."


class Tokenizer(ABC):
    """A converter between text and token numbers.

    Attributes:
        rows: The number of tokens of the model that the tokenizer comes with, which may exceed its own.
        special_is_text: Whether special tokens that are written in a text are encoded as text.
        whole: The tokenizer from which `crop` made this one; None if it is not cropped.
        origin: The digest of the file from which the tokenizer was read, and its commit on the hub, by name.
        kept: The numbers that the tokens have in `whole`: int32 `(vocab_size,)`.
    """

    rows: int = 0
    special_is_text: bool = False
    whole: "Tokenizer | None" = None
    kept: np.ndarray | None = None
    origin: Mapping[str, str | int] = {}

    def __init__(self, inner: hf.Tokenizer):
        self._inner = inner

    @property
    def library(self) -> hf.Tokenizer:
        """The tokenizer of the `tokenizers` library."""
        return self._inner

    @property
    def vocab_size(self) -> int:
        """The number of different tokens: the largest number plus 1, since numbers may be unused, or `rows`."""
        return max(self.rows, self._numbers)

    @cached_property
    def _numbers(self) -> int:
        return max(self._inner.get_vocab().values(), default=-1) + 1

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """Return the token numbers of a text: int32 `(n,)`."""

    @property
    def start_tokens(self) -> np.ndarray:
        """The token numbers that `encode` adds before every text, such as that of `<bos>`: int32 `(n,)`."""
        return np.zeros(0, np.int32)

    @property
    def closing_tokens(self) -> np.ndarray:
        """The token numbers that `encode` adds after every text, such as that of `</s>`: int32 `(n,)`."""
        return np.zeros(0, np.int32)

    @property
    def unit(self) -> str:
        """A SHA-256 digest that is equal for tokenizers that encode all texts equally; see `Source.unit`."""
        form = self.to_json() + ", special tokens are text" * self.special_is_text
        return hashlib.sha256(form.encode()).hexdigest()

    @property
    def facts(self) -> dict[str, Any]:
        """What the facts of a task say about its tokenizer; see `origin`."""
        return {"tokenizer": dict(self.origin)} if self.origin else {}

    def set_parse_special(self, parse: bool) -> None:
        """Set whether special tokens that are written in a text are encoded as these tokens, or as text."""
        self._inner.encode_special_tokens = self.special_is_text = not parse

    def encode_plain(self, text: str) -> np.ndarray:
        """Return the token numbers of a text, without the special tokens that `encode` adds to every text."""
        return self.encode(text)

    def encode_all(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the results of `encode_plain` for all texts, one after another, and the length of each."""
        rows = [*map(self.encode_plain, texts)]
        return np.concatenate([np.zeros(0, np.int32), *rows]), np.array([*map(len, rows)], np.int64)

    def encode_part(self, text: str) -> np.ndarray:
        """Return the token numbers that a text has inside another text.

        They are those of `encode_plain`, without the token of a space that the tokenizer of Llama 2 adds before a text.
        """
        return self.encode_plain(text)

    def decode(self, ids: Any) -> str:
        """Return the text for token numbers. Invalid UTF-8 becomes U+FFFD."""
        with explain_library("the tokenizer cannot decode these tokens"):
            return self._inner.decode(np.asarray(ids).tolist(), skip_special_tokens=False)

    def token(self, number: int) -> str | None:
        """Return the entry of the vocabulary with a number, such as `</s>`; None if there is none."""
        return self._inner.id_to_token(number)

    def number(self, token: str) -> int | None:
        """Return the number of an entry of the vocabulary, such as `</s>`; None if there is none."""
        return self._inner.token_to_id(token)

    def find_unknown(self, text: str) -> list[str]:
        """Return the characters or words of a text that are not in the vocabulary, in order."""
        number = self.unknown
        if number is None:
            return []
        encoding = self._encoding(text, special=False)
        return [text[slice(*place)] for id_, place in zip(encoding.ids, encoding.offsets, strict=True) if id_ == number]

    @cached_property
    def special_numbers(self) -> tuple[int, ...]:
        """The numbers of the special tokens, such as that of `</s>`."""
        return tuple(n for n, token in self._inner.get_added_tokens_decoder().items() if token.special)

    @cached_property
    def unknown(self) -> int | None:
        """The number of the unknown token; None if there is none."""
        if isinstance(self._inner.model, models.Unigram):  # its attributes do not include the unknown token
            return json.loads(self.to_json())["model"]["unk_id"]
        unk: str | None = getattr(self._inner.model, "unk_token", None)
        return None if unk is None else self._inner.token_to_id(unk)

    def escape_bits(self, text: str) -> float | None:
        """Return the number of bits needed to restore `text` from its tokens: 0 if decoding the tokens restores it.

        Bits per byte include these bits, so that characters without a token have a cost. The bits must be code lengths
        (Kraft's inequality): the sum of 2^-bits over all texts with the same tokens and the same number of characters
        is at most 1. Without such a code, return None, and bits per byte are not measured.
        """
        return 0.0 if self.decode(self.encode(text)) == text else None

    def to_json(self) -> str:
        """Return the content of a `tokenizer.json`."""
        return self._inner.to_str()

    def _encoding(self, text: str, *, special: bool = True) -> hf.Encoding:
        """Return the library's encoding of a text, with or without the special tokens that it adds to every text.

        Raises:
            UserError: If the library rejects the text.
        """
        check_unicode(text)
        with explain_library("the tokenizer cannot encode the text"):
            return self._inner.encode(text, add_special_tokens=special)


class TokenizerConfig(Component):
    """Base of the kinds of slot `tokenizer`."""

    @abstractmethod
    def train(self, text: str) -> Tokenizer:
        """Return a tokenizer trained on `text`, the nonempty training split."""

    @property
    def sample(self) -> int:
        """The number of characters at the start of the training text that `prepare` reads at most."""
        return SAMPLE

    def prepare(self, text: str, folder: Path) -> Tokenizer:
        """Return the tokenizer of a task. By default, it is trained on `text`.

        Args:
            text: The nonempty training split; of a corpus in the cache, its first `sample` characters.
            folder: The folder of the study file, to which paths are relative.

        Raises:
            UserError: If the tokenizer cannot be read or trained. The error's path is relative to the tokenizer.
        """
        return self.train(text)

    def content(self, folder: Path) -> str:
        """Return the stored form of the tokenizer that is read; empty if it is trained."""
        return ""

    def reopen(self, stored: Tokenizer, folder: Path) -> Tokenizer:
        """Return the result of `prepare` from its stored form."""
        return stored


def check_unicode(text: str) -> None:
    """Raise `UserError` if a text has a surrogate that is not part of a pair, which UTF-8 cannot represent."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = f"the text contains U+{ord(text[error.start]):04X} (at index {error.start}), which is not a character"
        raise UserError(problem, remedy="Use text in UTF-8.") from None


@contextmanager
def explain_library(problem: str, remedy: str = REFUSED) -> Iterator[None]:
    """Turn errors of the library in the `with` block into a `UserError`."""
    try:
        yield
    except BaseException as error:
        # The library raises plain exceptions. A panic of its Rust code, such as that of a regular expression that
        # backtracks without end, is a `BaseException` of a class that cannot be imported.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{problem}: {error}", remedy=remedy) from None
