"""Slot `tokenizer`: text to numbers and back. Every kind is stored as a `tokenizer.json` of the `tokenizers` library.

Characters and bytes are looked up by numpy, which gives what the library would give, some hundred times faster.
"""

from abc import ABC, abstractmethod
from typing import Annotated, Any, Literal

import numpy as np
import tokenizers as hf
from pydantic import Field
from tokenizers import decoders, models, pre_tokenizers, trainers

from taetpu.core.config import MAX_SIZE, Component
from taetpu.core.errors import UserError
from taetpu.core.registry import register

UNK = "\ufffd"  # what an unseen character decodes to
REFUSED = "<unseen character>"  # named as the unknown token but never in the vocabulary: the library then refuses, too


class Tokenizer(ABC):
    """Text to token numbers and back."""

    def __init__(self, inner: hf.Tokenizer):
        self._inner = inner
        self._byte_lengths = _byte_lengths(inner)

    @property
    def vocab_size(self) -> int:
        return self._inner.get_vocab_size()

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """Token numbers: int32 `(n,)`."""

    def decode(self, ids: Any) -> str:
        """Text of token numbers; bytes that are not UTF-8 become U+FFFD."""
        return self._inner.decode(np.asarray(ids).tolist(), skip_special_tokens=False)

    def num_bytes(self, ids: np.ndarray) -> int:
        """UTF-8 bytes of text that the tokens stand for.

        Only what decoding gives back counts: a dropped character and the unknown token are worth no byte, while
        predicting the unknown token still costs bits. So a small vocabulary never flatters bits per byte.
        """
        return int(self._byte_lengths[ids].sum())

    def to_json(self) -> str:
        """The text of a `tokenizer.json`."""
        return self._inner.to_str()


class CharTokenizer(Tokenizer):
    """One token a character (Unicode code point). Reads the policy for unseen characters off the stored model."""

    def __init__(self, inner: hf.Tokenizer):
        super().__init__(inner)
        vocab = inner.get_vocab()
        known = sorted((ord(char), number) for char, number in vocab.items())
        self._codes, self._ids = (np.array(column, np.int32) for column in zip(*known, strict=True))
        unk: str | None = inner.model.unk_token  # pyright: ignore[reportAttributeAccessIssue]
        self._unk, self._refuses = vocab.get(unk or ""), unk == REFUSED

    def encode(self, text: str) -> np.ndarray:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<i4")
        place = np.minimum(np.searchsorted(self._codes, codes), len(self._codes) - 1)
        ids, seen = self._ids[place], self._codes[place] == codes
        if seen.all():
            return ids
        if self._refuses:
            at = int(seen.argmin())
            raise UserError(
                f"character {text[at]!r} (U+{ord(text[at]):04X}, number {at} of the text) is not in the vocabulary",
                path=("unseen",),
                remedy="set unseen to unk or drop, or let the training split hold the character",
            )
        return ids[seen] if self._unk is None else np.where(seen, ids, np.int32(self._unk))


class ByteTokenizer(Tokenizer):
    """One token a byte of UTF-8; the number is the byte."""

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


class MergedTokenizer(Tokenizer):
    """Whatever else the library reads: here a trained byte-level BPE."""

    def encode(self, text: str) -> np.ndarray:
        return np.array(self._inner.encode(text, add_special_tokens=False).ids, np.int32)


def from_json(text: str) -> Tokenizer:
    """The tokenizer of a `tokenizer.json`."""
    inner = hf.Tokenizer.from_str(text)
    if inner.to_str() == _bytes().to_str():
        return ByteTokenizer(inner)
    by_char = isinstance(inner.decoder, decoders.Fuse) and all(len(token) == 1 for token in inner.get_vocab())
    return (CharTokenizer if by_char else MergedTokenizer)(inner)


# --- kinds -----------------------------------------------------------------------------------------------------------


class TokenizerConfig(Component):
    """Base of the kinds of slot `tokenizer`."""

    @abstractmethod
    def train(self, text: str) -> Tokenizer:
        """A tokenizer whose vocabulary comes from `text` (not empty), the training split, alone."""


@register("tokenizer", "char")
class CharConfig(TokenizerConfig):
    """The characters of the training split, in code point order.

    A character that the training split does not hold becomes one more token that decodes to U+FFFD (`unseen: unk`),
    vanishes (`drop`), or is an error (`error`).
    """

    unseen: Literal["unk", "drop", "error"] = "unk"

    def train(self, text: str) -> Tokenizer:
        chars = [*sorted(set(text) - {UNK}), UNK] if self.unseen == "unk" else sorted(set(text))
        vocab = {char: number for number, char in enumerate(chars)}
        unk = {"unk": UNK, "drop": None, "error": REFUSED}[self.unseen]
        # BPE without merges is a table of characters, the one model of the library that can drop what it lacks.
        inner = hf.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token=unk))
        inner.decoder = decoders.Fuse()
        return CharTokenizer(inner)


@register("tokenizer", "byte")
class ByteConfig(TokenizerConfig):
    """The 256 bytes of UTF-8. Nothing is trained and nothing is ever unseen."""

    def train(self, text: str) -> Tokenizer:
        return ByteTokenizer(_bytes())


@register("tokenizer", "bpe")
class BPEConfig(TokenizerConfig):
    """Byte-level BPE trained on the training split, with GPT-2's rule for words. Radford et al. 2019.

    All 256 bytes are in the vocabulary, so nothing is ever unseen. A short text may yield fewer than `vocab_size`.
    """

    vocab_size: Annotated[int, Field(ge=256, le=MAX_SIZE, description="tokens to train, 256 bytes included")]

    def train(self, text: str) -> Tokenizer:
        inner = hf.Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        )
        inner.train_from_iterator([text], trainer)
        return MergedTokenizer(inner)


# --- bytes -----------------------------------------------------------------------------------------------------------


def _bytes() -> hf.Tokenizer:
    """Byte-level BPE without merges, numbered by byte."""
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner = hf.Tokenizer(models.BPE(vocab=_byte_letters(), merges=[]))
    inner.pre_tokenizer, inner.decoder = spell, decoders.ByteLevel()
    return inner


def _byte_letters() -> dict[str, int]:
    """The letter by which byte-level tokenizers write each byte: printable Latin-1 as it is, the rest from U+0100 on.

    The table of GPT-2's `bytes_to_unicode`.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(moved)}
    return dict(sorted(letters.items(), key=lambda pair: pair[1]))


def _byte_lengths(inner: hf.Tokenizer) -> np.ndarray:
    """UTF-8 bytes that each token stands for; 0 for an unknown token and for added ones."""
    spelled = isinstance(inner.decoder, decoders.ByteLevel)  # a letter then stands for one byte
    lengths = np.zeros(inner.get_vocab_size(), np.int64)
    for token, number in inner.get_vocab(with_added_tokens=False).items():
        lengths[number] = len(token) if spelled else len(token.encode())
    unk = inner.model.unk_token if isinstance(inner.model, models.BPE) else None
    if unk is not None and (number := inner.token_to_id(unk)) is not None:
        lengths[number] = 0
    return lengths
