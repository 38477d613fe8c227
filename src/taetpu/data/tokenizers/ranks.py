"""Tokenizers of tiktoken: byte-level BPE in a file of ranks, with a pattern that divides text into words."""

import binascii
from base64 import b64decode
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, ClassVar

import tokenizers as hf
from pydantic import Field
from tokenizers import decoders, models, pre_tokenizers

from taetpu.core.config import MAX_SIZE
from taetpu.core.errors import UserError, shorten
from taetpu.core.json_files import RESTORE
from taetpu.core.registry import register
from taetpu.data.tokenizers.base import Tokenizer
from taetpu.data.tokenizers.characters import byte_letters
from taetpu.data.tokenizers.crop import merge_steps
from taetpu.data.tokenizers.files import LocalTokenizerConfig
from taetpu.data.tokenizers.library import wrap_tokenizer

LETTERS = {byte: letter for letter, byte in byte_letters().items()}
PATTERNS = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
}
SPECIAL = {
    "gpt2": {"<|endoftext|>": 50256},
    "cl100k": {
        "<|endoftext|>": 100257,
        "<|fim_prefix|>": 100258,
        "<|fim_middle|>": 100259,
        "<|fim_suffix|>": 100260,
        "<|endofprompt|>": 100276,
    },
}
"""The patterns and special tokens of tiktoken's encodings `gpt2` and `cl100k_base`."""


@register("tokenizer", "tiktoken")
class TiktokenConfig(LocalTokenizerConfig):
    """Byte-level BPE from a file of ranks, as `tiktoken` writes it: a token in base64 and its number on each line.

    Source: `tiktoken_ext/openai_public.py` in tiktoken, for the patterns and special tokens.
    """

    format: ClassVar[str] = "tiktoken"
    example: ClassVar = {"path": "ranks.tiktoken", "pattern": "gpt2"}

    pattern: Annotated[str, Field(description="regular expression whose matches are words, or `gpt2` or `cl100k`")]
    special: dict[str, int] | None = None
    """Special tokens and their numbers; `none`: those of the encoding that `pattern` names."""

    def parse(self, data: bytes, place: str, text: str) -> Tokenizer:
        """See `LocalTokenizerConfig.parse`."""
        special = SPECIAL.get(self.pattern, {}) if self.special is None else self.special
        return wrap_tokenizer(_library_tokenizer(data, place, self.pattern, special))


def _library_tokenizer(data: bytes, place: str, pattern: str, special: Mapping[str, int]) -> hf.Tokenizer:
    """Return the tokenizer of the library that encodes texts as tiktoken does."""
    vocab, merges = _read_ranks(data, place)
    for name, number in special.items():
        if name in vocab or number in vocab.values() or not 0 <= number < MAX_SIZE:
            problem = f"special token {name!r} cannot have the number {number}, "
            problem += f"because {'it' if name in vocab else 'this number'} is among the ranks or out of range"
            raise UserError(problem, path=("special",), remedy=f"Use a number from {len(vocab)} on.")
    # A special token is in the vocabulary too, because the library ignores the stated numbers of other tokens. A word
    # that is in the vocabulary is a token even if no merges lead to it (`ignore_merges`), as in tiktoken.
    inner = hf.Tokenizer(models.BPE(vocab={**vocab, **special}, merges=[*merges], ignore_merges=True))
    try:
        words = pre_tokenizers.Split(hf.Regex(PATTERNS.get(pattern, pattern)), "isolated")
    except Exception as error:  # the library raises plain exceptions
        problem = f"not a regular expression: {shorten(pattern, 80)!r}: {error}"
        raise UserError(problem, path=("pattern",), remedy=f"Use {' or '.join(PATTERNS)}, or correct it.") from None
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Sequence([words, spell]), decoders.ByteLevel()
    for name, number in special.items():
        if inner.encode(name).ids == [number]:
            problem = f"special token {name!r} is a word of the pattern, so that the same text would be this token"
            raise UserError(problem, path=("special",), remedy="Use a name of several words, such as <|end|>.")
    inner.add_special_tokens([hf.AddedToken(name, special=True, normalized=False) for name in special])
    return inner


@lru_cache(maxsize=4)
def _read_ranks(data: bytes, place: str) -> tuple[Mapping[str, int], tuple[tuple[str, str], ...]]:
    """Return the vocabulary and the merges of a file of ranks, in the letters of byte-level tokenizers.

    tiktoken merges any two tokens that form a token. Only one such pair is ever merged to a given token: the last one
    when the token alone is encoded, because no merge reaches across the borders of a final token.

    Raises:
        UserError: If a line is damaged, a token or a number occurs twice, or the token of a byte is missing.
    """
    ranks: dict[str, int] = {}
    for line, entry in enumerate(data.splitlines(), 1):
        if not entry.strip():
            continue
        try:
            token, number = entry.split()
            name, rank = "".join(LETTERS[byte] for byte in b64decode(token, validate=True)), int(number)
        except (ValueError, binascii.Error):
            problem = f"{place}: line {line} is not a token in base64 and its number: {entry[:40]!r}"
            raise UserError(problem, remedy=RESTORE) from None
        if not name or name in ranks or not 0 <= rank < MAX_SIZE:
            problem = f"{place}: the token in line {line} is empty, occurs twice, or has a number out of range: {rank}"
            raise UserError(problem, remedy=RESTORE)
        ranks[name] = rank
    if len({*ranks.values()}) < len(ranks):
        raise UserError(f"{place}: two tokens have the same number", remedy=RESTORE)
    if missing := [byte for byte, letter in LETTERS.items() if letter not in ranks]:
        problem = f"{place}: {len(missing)} bytes have no token, such as 0x{missing[0]:02x}"
        raise UserError(problem, remedy=RESTORE)
    merges = []
    for name in sorted((name for name in ranks if len(name) > 1), key=lambda name: ranks[name]):
        steps = merge_steps([*name], lambda a, b: ranks.get(a + b))
        if steps and "".join(steps[-1]) == name:
            merges.append(steps[-1])
    return ranks, tuple(merges)
