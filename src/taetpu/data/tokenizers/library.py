"""Tokenizers of the `tokenizers` library, and their stored form, the content of a `tokenizer.json`."""

import json
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import tokenizers as hf
from pydantic_core import from_json
from tokenizers import models

from taetpu.core.config import MAX_SIZE
from taetpu.core.errors import UserError
from taetpu.core.json_files import RESTORE
from taetpu.data.tokenizers.base import Tokenizer, check_unicode, explain_library
from taetpu.data.tokenizers.characters import (
    REJECT,
    ByteTokenizer,
    CharTokenizer,
    library_bytes,
    library_characters,
)
from taetpu.data.tokenizers.cutting import PART, cut, is_divisible

SPACE = "▁"  # a space in the tokens of SentencePiece, from which the tokenizer of Llama 2 comes
AT_ONCE = 16
"""Number of parts of a long text that are encoded at once."""
DOCUMENTS_AT_ONCE = 256
"""Number of documents that are encoded at once. The library keeps much for each token until all are encoded."""
LONGEST_REPLACEMENT = 64
"""Maximum number of characters that a normalizer may insert in one place. Those of known models insert one or two."""


class LibraryTokenizer(Tokenizer):
    """A tokenizer from the library whose tokens are neither characters nor bytes, such as a byte-level BPE.

    Texts are encoded with the special tokens that its post-processor adds, such as the `<bos>` of Gemma. The tokenizers
    that are trained here add none.
    """

    def encode(self, text: str) -> np.ndarray:
        """See `Tokenizer.encode`."""
        if len(text) > PART and self._divisible:
            return np.concatenate([self.start_tokens, self.encode_plain(text), self.closing_tokens])
        return np.array(self._encoding(text).ids, np.int32)

    @cached_property
    def _divisible(self) -> bool:
        return is_divisible(self._inner)

    @property
    def start_tokens(self) -> np.ndarray:
        """See `Tokenizer.start_tokens`."""
        return self._added[0]

    @property
    def closing_tokens(self) -> np.ndarray:
        """See `Tokenizer.closing_tokens`."""
        return self._added[1]

    @cached_property
    def _added(self) -> tuple[np.ndarray, np.ndarray]:
        """The token numbers that the post-processor adds before and after every text."""
        alone = hf.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))  # encodes "a" as one token
        alone.post_processor = self._inner.post_processor
        encoding = alone.encode("a")
        place = (*encoding.special_tokens_mask, 0).index(0)
        return np.array(encoding.ids[:place], np.int32), np.array(encoding.ids[place + 1 :], np.int32)

    def encode_plain(self, text: str) -> np.ndarray:
        """See `Tokenizer.encode_plain`."""
        if len(text) > PART and self._divisible:
            parts = [*cut(text)]
            groups = (parts[i : i + AT_ONCE] for i in range(0, len(parts), AT_ONCE))
            return np.concatenate([self.encode_all(group)[0] for group in groups])
        return np.array(self._encoding(text, special=False).ids, np.int32)

    def encode_all(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """See `Tokenizer.encode_all`. Texts are divided over the cores."""
        parts, lengths = [np.zeros(0, np.int32)], list[int]()
        for start in range(0, len(texts), DOCUMENTS_AT_ONCE):
            some = [*texts[start : start + DOCUMENTS_AT_ONCE]]
            try:
                with explain_library("the tokenizer cannot encode the text"):
                    rows = [each.ids for each in self._inner.encode_batch_fast(some, add_special_tokens=False)]
            except UserError:
                for text in some:
                    check_unicode(text)
                raise
            parts.append(np.array([*chain.from_iterable(rows)], np.int32))
            lengths += map(len, rows)
        return np.concatenate(parts), np.array(lengths, np.int64)

    def encode_part(self, text: str) -> np.ndarray:
        """See `Tokenizer.encode_part`."""
        ids = self.encode_plain(text)
        alone = len(ids) > 1 and self._inner.id_to_token(int(ids[0])) == SPACE
        return ids[1:] if alone and self._adds_space() else ids

    def _adds_space(self) -> bool:
        """Return whether a space is added before each text."""
        return self._encoding("a", special=False).tokens[:1] in ([SPACE], [f"{SPACE}a"])

    def escape_bits(self, text: str) -> float | None:
        """Return 0 if decoding the tokens restores the text, without the special tokens that are added to it."""
        return 0.0 if self.decode(self.encode_plain(text)) == text else None


def load_tokenizer(text: str) -> Tokenizer:
    """Load a tokenizer from the content of a `tokenizer.json`.

    Whole texts are encoded, each time as the same tokens: stored settings of truncation and padding are removed, as in
    transformers, and so is the dropout of BPE.

    Raises:
        UserError: If the text is not the content of a `tokenizer.json`, a token's number is too large or used twice,
            the unknown token is missing, or the normalizer inserts long texts.
    """
    return wrap_tokenizer(read_content(text))


def read_content(text: str) -> hf.Tokenizer:
    """Return the tokenizer of the library in the content of a `tokenizer.json`.

    Raises:
        UserError: If the text is not such a content, or a token's number is too large or used twice.
    """
    with explain_library("not a tokenizer", RESTORE):
        inner = hf.Tokenizer.from_str(text)
    # The library gives an added token the next number, whatever number the file states.
    stored = {token["content"]: token["id"] for token in from_json(text).get("added_tokens") or ()}
    _check_numbers({**inner.get_vocab(), **stored})
    return inner


def wrap_tokenizer(inner: hf.Tokenizer) -> Tokenizer:
    """Return a tokenizer of the library as a `Tokenizer`; see `load_tokenizer`."""
    vocab = inner.get_vocab()
    _check_numbers(vocab)
    _check_unknown(inner)
    if inner.normalizer is not None:
        _check_normalizer(json.loads(inner.normalizer.__getstate__()))  # as in a `tokenizer.json`
    inner.no_truncation()
    inner.no_padding()
    if getattr(inner.model, "dropout", None) is not None:
        inner.model.dropout = None  # pyright: ignore[reportAttributeAccessIssue]
    content = inner.to_str()
    if content == library_bytes().to_str():
        return ByteTokenizer(inner)
    unk: str | None = getattr(inner.model, "unk_token", None)
    by_char = (
        bool(vocab) and all(len(token) == 1 for token in vocab) and content == library_characters(vocab, unk).to_str()
    )
    return (CharTokenizer if by_char else LibraryTokenizer)(inner)


def _check_numbers(vocab: dict[str, int]) -> None:
    """Raise `UserError` if a token's number is too large, or the number of another token."""
    tokens: dict[int, str] = {}
    for token, number in vocab.items():
        if number >= MAX_SIZE:
            problem = f"token {token!r} of the tokenizer has the number {number}, but numbers must be below {MAX_SIZE}"
            raise UserError(problem, remedy=RESTORE)
        if number in tokens:
            first, second = sorted((tokens[number], token))
            raise UserError(f"tokens {first!r} and {second!r} both have the number {number}", remedy=RESTORE)
        tokens[number] = token


def _check_unknown(inner: hf.Tokenizer) -> None:
    """Raise `UserError` if the unknown token is not in the vocabulary, and a text may need it."""
    unk: str | None = getattr(inner.model, "unk_token", None)
    byte_level = "ByteLevel" in str(inner.pre_tokenizer) or getattr(inner.model, "byte_fallback", False)
    if unk not in (None, REJECT) and inner.token_to_id(unk) is None and not byte_level:
        raise UserError(f"the unknown token {unk!r} of the tokenizer is not in its vocabulary", remedy=RESTORE)


def _check_normalizer(stored: dict[str, Any]) -> None:
    """Raise `UserError` if a normalizer replaces nothing or inserts long texts, which makes the library fail.

    Args:
        stored: The normalizer, or a part of it, as in a `tokenizer.json`.
    """
    for part in stored.get("normalizers", ()):
        _check_normalizer(part)
    if stored.get("pattern") == {"String": ""}:  # the library then fails for every text
        raise UserError("the tokenizer's normalizer replaces the empty text", remedy=RESTORE)
    for name in ("content", "prepend"):
        length = len(stored.get(name, ""))
        if length > LONGEST_REPLACEMENT:
            problem = f"the tokenizer's normalizer inserts {length:,} characters at once, but the limit is "
            raise UserError(f"{problem}{LONGEST_REPLACEMENT}", remedy=RESTORE)
