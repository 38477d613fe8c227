"""Slot `tokenizer`. Every kind is stored as a `tokenizer.json` file for the `tokenizers` library.

Characters and bytes are looked up with numpy. This gives the same result as the library, about a hundred times faster.
"""

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import tokenizers as hf
from pydantic import Field
from pydantic_core import from_json
from tokenizers import decoders, models, pre_tokenizers, trainers

from taetpu.core.config import MAX_SIZE, Component
from taetpu.core.errors import UserError
from taetpu.core.registry import register

UNK = "\ufffd"  # the text of the unknown token
SPACE = "▁"  # a space in the tokens of SentencePiece, from which the tokenizer of Llama 2 comes
REJECT = "<unseen character>"  # not in the vocabulary, so that the library also rejects unseen characters
LONGEST_WORD = 4096
"""The length in bytes from which training a BPE divides a word. Its time is quadratic in the length of words."""
RESTORE = "Copy or download the file again."
REFUSED = "Use another text, or another tokenizer. If every text fails, the tokenizer.json is damaged."
LONGEST_REPLACEMENT = 64
"""Maximum number of characters that a normalizer may insert in one place. Those of known models insert one or two."""
PROGRESS = 500_000
"""The number of characters from which training a BPE shows its progress in a terminal."""


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

    def encode_part(self, text: str) -> np.ndarray:
        """Return the token numbers that a text has inside another text.

        They are those of `encode_plain`, without the token of a space that the tokenizer of Llama 2 adds before a text.
        """
        return self.encode_plain(text)

    def decode(self, ids: Any) -> str:
        """Return the text for token numbers. Invalid UTF-8 becomes U+FFFD."""
        with _explained("the tokenizer cannot decode these tokens"):
            return self._inner.decode(np.asarray(ids).tolist(), skip_special_tokens=False)

    def token(self, number: int) -> str | None:
        """Return the entry of the vocabulary with a number, such as `</s>`; None if there is none."""
        return self._inner.id_to_token(number)

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
        with _explained("the tokenizer cannot encode the text"):
            return self._inner.encode(text, add_special_tokens=special)


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


class LibraryTokenizer(Tokenizer):
    """A tokenizer from the library whose tokens are neither characters nor bytes, such as a byte-level BPE.

    Texts are encoded with the special tokens that its post-processor adds, such as the `<bos>` of Gemma. The tokenizers
    that are trained here add none.
    """

    def encode(self, text: str) -> np.ndarray:
        """See `Tokenizer.encode`."""
        return np.array(self._encoding(text).ids, np.int32)

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
        return np.array(self._encoding(text, special=False).ids, np.int32)

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
    with _explained("not a tokenizer", RESTORE):
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
    if content == _bytes().to_str():
        return ByteTokenizer(inner)
    unk: str | None = getattr(inner.model, "unk_token", None)
    by_char = bool(vocab) and all(len(token) == 1 for token in vocab) and content == _characters(vocab, unk).to_str()
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


def check_unicode(text: str) -> None:
    """Raise `UserError` if a text has a surrogate that is not part of a pair, which UTF-8 cannot represent."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = f"the text contains U+{ord(text[error.start]):04X} (at index {error.start}), which is not a character"
        raise UserError(problem, remedy="Use text in UTF-8.") from None


@contextmanager
def _explained(problem: str, remedy: str = REFUSED) -> Iterator[None]:
    """Turn errors of the library in the `with` block into a `UserError`."""
    try:
        yield
    except BaseException as error:
        # The library raises plain exceptions. A panic of its Rust code, such as that of a regular expression that
        # backtracks without end, is a `BaseException` of a class that cannot be imported.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{problem}: {error}", remedy=remedy) from None


# --- kinds -----------------------------------------------------------------------------------------------------------


class TokenizerConfig(Component):
    """Base of the kinds of slot `tokenizer`."""

    @abstractmethod
    def train(self, text: str) -> Tokenizer:
        """Return a tokenizer trained on `text`, the nonempty training split."""


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
        return CharTokenizer(_characters(vocab, unk))


@register("tokenizer", "byte")
class ByteConfig(TokenizerConfig):
    """The 256 byte values. Nothing is trained, and no character is unknown."""

    def train(self, text: str) -> Tokenizer:
        """Return the byte tokenizer. `text` is not used."""
        return ByteTokenizer(_bytes())


@register("tokenizer", "bpe")
class BPEConfig(TokenizerConfig):
    """Byte-level BPE trained on the training split, with GPT-2's word splitting. Radford et al. 2019.

    All 256 bytes are in the vocabulary, so no character is unknown. A short text may yield fewer than `vocab_size`
    tokens. For training, words longer than 4,096 bytes, as in DNA or base64, are divided every 4,096 bytes, because the
    time is quadratic in the length of a word.

    Source: Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units", arXiv 1508.07909;
    Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
    """

    vocab_size: Annotated[int, Field(ge=256, le=MAX_SIZE, description="size of the vocabulary, including 256 bytes")]

    def train(self, text: str) -> Tokenizer:
        """See `TokenizerConfig.train`."""
        inner, words = hf.Tokenizer(models.BPE()), pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.FixedLength(length=LONGEST_WORD)])
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab_size,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=len(text) >= PROGRESS,
        )
        _run_interruptible(lambda: inner.train_from_iterator([text], trainer))
        inner.pre_tokenizer, inner.decoder = words, decoders.ByteLevel()
        return LibraryTokenizer(inner)


def _run_interruptible(work: Callable[[], None]) -> None:
    """Run native code that does not react to Ctrl-C in a thread, so that Ctrl-C stops the wait for it."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # raised again below
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)  # without a limit, the wait would not end with Ctrl-C on all platforms
    if errors:
        raise errors[0]


# --- characters ------------------------------------------------------------------------------------------------------


def _characters(vocab: dict[str, int], unk: str | None) -> hf.Tokenizer:
    """Return a tokenizer with one token per character.

    BPE without merges is a table of characters, and the only model of the library that can drop unknown text.
    """
    inner = hf.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token=unk))
    inner.decoder = decoders.Fuse()
    return inner


# --- bytes -----------------------------------------------------------------------------------------------------------


def _bytes() -> hf.Tokenizer:
    """Return a byte-level BPE tokenizer without merges, whose token numbers are the bytes."""
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner = hf.Tokenizer(models.BPE(vocab=_byte_letters(), merges=[]))
    inner.pre_tokenizer, inner.decoder = spell, decoders.ByteLevel()
    return inner


def _byte_letters() -> dict[str, int]:
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
