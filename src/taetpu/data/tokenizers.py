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

    @property
    def vocab_size(self) -> int:
        return self._inner.get_vocab_size()

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """Token numbers: int32 `(n,)`."""

    def decode(self, ids: Any) -> str:
        """Text of token numbers; bytes that are not UTF-8 become U+FFFD."""
        return self._inner.decode(np.asarray(ids).tolist(), skip_special_tokens=False)

    def escape_bits(self, text: str) -> float | None:
        """Return the bits that restore `text` once its tokens are known: 0 where decoding restores it.

        Bits per byte include them, so that text which no token expresses is never free. They must be the lengths of a
        code: over all texts of as many characters that have the same tokens, 2^-bits sums to at most 1. None, which
        says that there is no code, leaves bits per byte unmeasured.
        """
        return 0.0 if self.decode(self.encode(text)) == text else None

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
        _, ids, seen = self._found(text)
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

    def escape_bits(self, text: str) -> float | None:
        """Return 8 bits for each UTF-8 byte of the characters that share the unknown token.

        That token says where they stand. Nothing says so of dropped characters, for which there is no code.
        """
        if self._unk is None:
            return super().escape_bits(text)
        codes, ids, seen = self._found(text)
        escaped = ~seen | (ids == self._unk)  # U+FFFD itself is encoded as the unknown token, too
        restored = self.decode(self.encode(text)) == _text(np.where(escaped, ord(UNK), codes))
        return 8.0 * len(_text(codes[escaped]).encode("utf-8", "surrogatepass")) if restored else None

    def _found(self, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the characters' code points, their token numbers, and which of them have one."""
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<i4")
        place = np.minimum(np.searchsorted(self._codes, codes), len(self._codes) - 1)
        return codes, self._ids[place], self._codes[place] == codes


class ByteTokenizer(Tokenizer):
    """One token a byte of UTF-8; the number is the byte."""

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


class MergedTokenizer(Tokenizer):
    """Whatever else the library reads: here a trained byte-level BPE."""

    def encode(self, text: str) -> np.ndarray:
        return np.array(self._inner.encode(text, add_special_tokens=False).ids, np.int32)


def load_tokenizer(text: str) -> Tokenizer:
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
    is dropped (`drop`), or is an error (`error`). Bits per byte add 8 bits for each byte of a character that became the
    unknown token, and are not measured where characters of the evaluation text are dropped.
    """

    unseen: Literal["unk", "drop", "error"] = "unk"
    """What becomes of a character that the training split lacks: one shared token (`unk`), nothing (`drop`), or an
    error.
    """

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


def _text(codes: np.ndarray) -> str:
    """Return the text of code points."""
    return codes.astype("<i4").tobytes().decode("utf-32-le", "surrogatepass")
