"""Tokens that are characters or bytes.

They are looked up with numpy. This gives the same result as the library, about a hundred times faster.
"""

from typing import Literal

import numpy as np
import tokenizers as hf
from tokenizers import decoders, models, pre_tokenizers

from taetpu.core.errors import UserError
from taetpu.core.registry import register
from taetpu.data.tokenizers.base import Tokenizer, TokenizerConfig, check_unicode

UNK = "\ufffd"  # the text of the unknown token
REJECT = "<unseen character>"  # not in the vocabulary, so that the library also rejects unseen characters


class CharTokenizer(Tokenizer):
    """One token per character (Unicode code point). The stored model defines what unseen characters become."""

    def __init__(self, inner: hf.Tokenizer):
        super().__init__(inner)
        vocab = inner.get_vocab()
        table = sorted((ord(char), number) for char, number in vocab.items())
        self._codes, self._ids = (np.array(column, np.int32) for column in zip(*table, strict=True))
        unk: str | None = inner.model.unk_token  # pyright: ignore[reportAttributeAccessIssue]
        self._unk, self._rejects = vocab.get(unk or ""), unk == REJECT

    def encode(self, text: str) -> np.ndarray:
        """See `Tokenizer.encode`."""
        _, ids, known = self._look_up(text)
        if known.all():
            return ids
        if self._rejects:
            at = int(known.argmin())
            raise UserError(
                f"character {text[at]!r} (U+{ord(text[at]):04X}, at index {at} of the text) is not in the vocabulary",
                path=("unseen",),
                remedy="Set `unseen` to unk or drop, or use training text that contains the character.",
            )
        return ids[known] if self._unk is None else np.where(known, ids, np.int32(self._unk))

    def find_unknown(self, text: str) -> list[str]:
        """See `Tokenizer.find_unknown`."""
        codes, _, known = self._look_up(text)
        return list(_text_of(codes[~known]))

    def escape_bits(self, text: str) -> float | None:
        """Return 8 bits for each UTF-8 byte of the characters that are encoded as the unknown token.

        The unknown tokens show where these characters are. Dropped characters leave no trace in the tokens, so no code
        can restore them.
        """
        if self._unk is None:
            return super().escape_bits(text)
        codes, ids, known = self._look_up(text)
        escaped = ~known | (ids == self._unk)  # U+FFFD itself is encoded as the unknown token
        restored = self.decode(self.encode(text)) == _text_of(np.where(escaped, ord(UNK), codes))
        return 8.0 * len(_text_of(codes[escaped]).encode("utf-8", "surrogatepass")) if restored else None

    def _look_up(self, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the characters' code points, their token numbers, and a mask of the known characters."""
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<i4")
        place = np.minimum(np.searchsorted(self._codes, codes), len(self._codes) - 1)
        return codes, self._ids[place], self._codes[place] == codes


class ByteTokenizer(Tokenizer):
    """One token per UTF-8 byte; the token number is the byte."""

    def encode(self, text: str) -> np.ndarray:
        """See `Tokenizer.encode`."""
        check_unicode(text)
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


@register("tokenizer", "char")
class CharConfig(TokenizerConfig):
    """The characters of the training split, in code point order.

    Characters that are not in the training split become an unknown token that decodes to U+FFFD (`unseen: unk`), are
    dropped (`drop`), or are an error (`error`). Bits per byte include 8 bits for each byte of a character that becomes
    the unknown token. They are not measured if characters of the evaluation text are dropped.
    """

    unseen: Literal["unk", "drop", "error"] = "unk"
    """Characters that are not in the training split become one token (`unk`), are dropped (`drop`), or are an error."""

    def train(self, text: str) -> Tokenizer:
        """See `TokenizerConfig.train`."""
        chars = [*sorted(set(text) - {UNK}), UNK] if self.unseen == "unk" else sorted(set(text))
        vocab = {char: number for number, char in enumerate(chars)}
        unk = {"unk": UNK, "drop": None, "error": REJECT}[self.unseen]
        return CharTokenizer(library_characters(vocab, unk))


@register("tokenizer", "byte")
class ByteConfig(TokenizerConfig):
    """The 256 byte values. Nothing is trained, and no character is unknown."""

    @property
    def sample(self) -> int:
        """See `TokenizerConfig.sample`."""
        return 0

    def train(self, text: str) -> Tokenizer:
        """Return the byte tokenizer. `text` is not used."""
        return ByteTokenizer(library_bytes())


def library_characters(vocab: dict[str, int], unk: str | None) -> hf.Tokenizer:
    """Return a tokenizer with one token per character.

    BPE without merges is a table of characters, and the only model of the library that can drop unknown text.
    """
    inner = hf.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token=unk))
    inner.decoder = decoders.Fuse()
    return inner


def library_bytes() -> hf.Tokenizer:
    """Return a byte-level BPE tokenizer without merges, whose token numbers are the bytes."""
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner = hf.Tokenizer(models.BPE(vocab=byte_letters(), merges=[]))
    inner.pre_tokenizer, inner.decoder = spell, decoders.ByteLevel()
    return inner


def byte_letters() -> dict[str, int]:
    """Return the vocabulary of byte-level tokenizers: for each byte, the character that represents it.

    Printable Latin-1 bytes represent themselves. The other bytes are represented by characters from U+0100 on.

    Source: `bytes_to_unicode` in GPT-2.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(moved)}
    return dict(sorted(letters.items(), key=lambda pair: pair[1]))


def _text_of(codes: np.ndarray) -> str:
    """Return the text that consists of the given code points."""
    return codes.astype("<i4").tobytes().decode("utf-32-le", "surrogatepass")
