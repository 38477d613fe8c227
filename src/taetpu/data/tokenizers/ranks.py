"""Tokenizers of tiktoken: byte-level BPE in a file of ranks, with a pattern that divides text into words."""

import binascii
from base64 import b64decode
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, ClassVar

import tokenizers as hf
from pydantic import Field
from tokenizers import decoders, models

from taetpu.core.config import MAX_SIZE
from taetpu.core.errors import UserError, shorten
from taetpu.core.json_files import RESTORE
from taetpu.core.registry import register
from taetpu.data.tokenizers.base import Tokenizer
from taetpu.data.tokenizers.characters import byte_letters
from taetpu.data.tokenizers.crop import Pair, merge_steps
from taetpu.data.tokenizers.cutting import PATTERNS, divide_into_words
from taetpu.data.tokenizers.files import LocalTokenizerConfig
from taetpu.data.tokenizers.library import wrap_tokenizer

LETTERS = {byte: letter for letter, byte in byte_letters().items()}
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
"""The special tokens of tiktoken's encodings `gpt2` and `cl100k_base`."""


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
        ranks, first = len(_read_ranks(data, place)[0]), min(special.values(), default=0)
        if self.special is None and first > ranks:
            problem = f"{place} has {ranks:,} ranks, and {self.pattern} of tiktoken has {first:,} before its first "
            problem += "special token, so that numbers between them would have no token"
            remedy = f"Set special, such as {{<|endoftext|>: {ranks}}}, or to {{}} for none."
            raise UserError(problem, path=("special",), remedy=remedy)
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
        inner.pre_tokenizer = divide_into_words(PATTERNS.get(pattern, pattern))
    except Exception as error:  # the library raises plain exceptions
        problem = f"not a regular expression: {shorten(pattern, 80)!r}: {error}"
        raise UserError(problem, path=("pattern",), remedy=f"Use {' or '.join(PATTERNS)}, or correct it.") from None
    inner.decoder = decoders.ByteLevel()
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
            name, rank = b64decode(token, validate=True).decode("latin-1").translate(LETTERS), int(number)
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
    return ranks, tuple(find_merges(ranks).values())


def find_merges(ranks: Mapping[str, int]) -> dict[str, Pair]:
    """Return the pair from which each token is merged, by token in the order of ranks.

    Tokens that no pair is merged to, such as single letters, are left out. If parts have lower ranks than their token,
    as in every BPE that was trained, a pair is found without encoding the token: by `_stay_apart`.

    Args:
        ranks: the rank of each token.
    """
    pairs: dict[str, Pair] = {}
    for name in sorted((name for name in ranks if len(name) > 1), key=ranks.__getitem__):
        rank = ranks[name]
        for i in range(1, len(name)):
            a, b = name[:i], name[i:]
            if ranks.get(a, rank) < rank and ranks.get(b, rank) < rank and _stay_apart(a, b, ranks, pairs):
                pairs[name] = a, b
                break
        else:
            if _merged_pair(name, ranks):  # a part has a higher rank
                tokens = sorted(ranks, key=ranks.__getitem__)
                return {token: pair for token in tokens if (pair := _merged_pair(token, ranks))}
    return pairs


def _merged_pair(name: str, ranks: Mapping[str, int]) -> Pair | None:
    """Return the pair that is merged last if a token alone is encoded; None if its letters do not become the token."""
    steps = merge_steps([*name], lambda a, b: ranks.get(a + b))
    return steps[-1] if steps and "".join(steps[-1]) == name else None


def _stay_apart(a: str, b: str, ranks: Mapping[str, int], pairs: Mapping[str, Pair]) -> bool:
    """Return whether the letters of two neighbouring tokens become these two tokens before any other merge.

    The merges of both are undone from the last to the first. Before each of them, the neighbours at the border must
    not be merged first: they have a higher rank, or the same rank and come later in the text.

    Source: van Antwerpen and Neubeck 2024, "So many tokens, so little time", GitHub blog, and their crate `bpe`.
    """
    while True:
        left, right = pairs.get(a), pairs.get(b)
        if left is None and right is None:
            return len(a) == len(b) == 1
        if right is None or (left is not None and ranks[a] > ranks[b]):
            assert left is not None
            limit, a = ranks[a], left[1]
        else:
            limit, b = ranks[b] + 1, right[0]
        if ranks.get(a + b, limit) < limit:
            return False
