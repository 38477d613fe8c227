"""The base of tokenizers and of the kinds of slot `tokenizer`."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import tokenizers as hf
from tokenizers import models

from taetpu.core.config import Component
from taetpu.core.errors import UserError

REFUSED = "Use another text, or another tokenizer. If every text fails, the tokenizer.json is damaged."


class Tokenizer(ABC):
    """A converter between text and token numbers."""

    def __init__(self, inner: hf.Tokenizer):
        self._inner = inner

    @property
    def vocab_size(self) -> int:
        """The number of different tokens."""
        return self._inner.get_vocab_size()

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

    def encode_plain(self, text: str) -> np.ndarray:
        """Return the token numbers of a text, without the special tokens that `encode` adds to every text."""
        return self.encode(text)

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the result of `encode_plain` for each text."""
        return [*map(self.encode_plain, texts)]

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
        number = self._unknown
        if number is None:
            return []
        encoding = self._encoding(text, special=False)
        return [text[slice(*place)] for id_, place in zip(encoding.ids, encoding.offsets, strict=True) if id_ == number]

    @cached_property
    def _unknown(self) -> int | None:
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
