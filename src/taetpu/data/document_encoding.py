"""Blocks of documents become tokens: every document is encoded by itself, and its split depends on its text alone."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from taetpu.data.splitting import collapse, hashed_split
from taetpu.data.tokenizers.base import Tokenizer


class Job(NamedTuple):
    """What all blocks of a corpus have in common.

    Attributes:
        tokenizer: content of the `tokenizer.json`.
        special_is_text: see `Tokenizer.special_is_text`.
        dtype: type of the written tokens.
        before, after: numbers of the tokens before and after each document, `(0,)` or `(1,)`.
        separator_text: text after each document.
        val, test: shares of the training corpus.
        held_out: digests of evaluation documents, which are not trained; see `digest_words`.
    """

    tokenizer: str
    special_is_text: bool
    dtype: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    separator_text: str
    val: float
    test: float
    held_out: frozenset[bytes]


class Block(NamedTuple):
    """Documents of one corpus.

    Attributes:
        name: the corpus: `train`, `val` or `test`.
        texts: the documents.
        full: splits that take no more documents.
    """

    name: str
    texts: list[str]
    full: frozenset[str]


class Encoded(NamedTuple):
    """The documents of a block that belong to one split.

    Attributes:
        places: index of each document in its block.
        tokens: tokens of all documents, with those around them.
        lengths: number of tokens of each document, int64 `(n,)`.
        characters: number of characters of each document with the text after it, int64 `(n,)`.
        bytes: number of UTF-8 bytes of the same text, int64 `(n,)`.
        escape_bits: see `Tokenizer.escape_bits`; only of evaluation splits.
        digest: SHA-256 digest of the texts.
        unknown: characters and words that became the unknown token, with their counts, by place of the document.
    """

    places: list[int]
    tokens: np.ndarray
    lengths: np.ndarray
    characters: np.ndarray
    bytes: np.ndarray
    escape_bits: list[float | None]
    digest: str
    unknown: dict[int, Counter[str]]


def digest_words(text: str) -> bytes:
    """Return a digest that texts share if they differ in white space only."""
    return hashlib.sha256(collapse(text).encode("utf-8", "surrogatepass")).digest()[:16]


class Encoder:
    """Divides documents into splits and encodes them."""

    def __init__(self, job: Job, tokenizer: Tokenizer):
        self.job, self.tokenizer = job, tokenizer

    def encode(self, block: Block) -> dict[str, Encoded]:
        """Return the documents of a block by split, without splits that are full."""
        places: dict[str, list[int]] = {}
        for i, text in enumerate(block.texts):
            split = block.name if block.name != "train" else hashed_split(text, self.job.val, self.job.test)
            if split in block.full or (split == block.name == "train" and self.is_held_out(text)):
                continue
            places.setdefault(split, []).append(i)
        return {split: self.encode_split(split, chosen, block.texts) for split, chosen in places.items()}

    def is_held_out(self, text: str) -> bool:
        """Return whether a training document is also an evaluation document."""
        return bool(self.job.held_out) and digest_words(text) in self.job.held_out

    def encode_split(self, split: str, places: list[int], block: list[str]) -> Encoded:
        """Return the documents of a block that belong to a split, given their places."""
        texts = [block[i] + self.job.separator_text for i in places]
        tokens, lengths = encode_documents(self.tokenizer, texts, self.job.before, self.job.after)
        unknown = dict[int, Counter[str]]()
        if (number := self.tokenizer.unknown) is not None and (tokens == number).any():
            for i, text, row in zip(places, texts, split_rows(tokens, lengths), strict=True):
                if (row == number).any():
                    unknown[i] = Counter(self.tokenizer.find_unknown(text))
        return Encoded(
            places,
            tokens.astype(self.job.dtype),
            lengths,
            np.array([*map(len, texts)], np.int64),
            np.array([len(text) if text.isascii() else len(text.encode()) for text in texts], np.int64),
            [] if split == "train" else [*map(self.tokenizer.escape_bits, texts)],
            hashlib.sha256("".join(texts).encode()).hexdigest(),
            unknown,
        )


def encode_documents(
    tokenizer: Tokenizer, texts: Sequence[str], before: Sequence[int] = (), after: Sequence[int] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of all texts, int32, each with the tokens `before` and `after` it, and the length of each."""
    ids, lengths = tokenizer.encode_all(texts)
    whole = lengths + len(before) + len(after)
    if not (before or after):
        return ids, whole
    ends = np.cumsum(whole)
    tokens = np.empty(whole.sum(), np.int32)
    tokens[np.arange(len(ids)) + np.repeat(ends - whole + len(before) - (np.cumsum(lengths) - lengths), lengths)] = ids
    for i, token in enumerate(before):
        tokens[ends - whole + i] = token
    for i, token in enumerate(after):
        tokens[ends - len(after) + i] = token
    return tokens, whole


def split_rows(tokens: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """Return the tokens of each document, as views."""
    return np.split(tokens, np.cumsum(lengths[:-1])) if len(lengths) else []
