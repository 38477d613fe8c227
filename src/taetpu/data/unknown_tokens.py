"""How much of a text became unknown tokens, and which characters they were."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from taetpu.data.tokenizers.base import Tokenizer

SHOWN = 10
"""Number of unknown characters that facts name."""
SEARCHED = 2**20
"""Number of characters at the start of each split's text in which unknown characters are counted."""


def unknown_facts(counts: Mapping[str, int], tokens: Mapping[str, int], texts: Mapping[str, int]) -> dict[str, Any]:
    """Return the share of unknown tokens in each split, and the commonest unknown characters; empty without any.

    Args:
        counts: number of unknown tokens by split.
        tokens: number of tokens by split.
        texts: unknown characters or words, with their counts.
    """
    if not any(counts.values()):
        return {}
    commonest = sorted(texts.items(), key=lambda item: (-item[1], item[0]))[:SHOWN]
    shares = {name: count / tokens[name] for name, count in counts.items() if tokens[name]}
    return {"unknown": shares, "commonest_unknown": {ascii(text)[1:-1]: count for text, count in commonest}}


def find_unknown(texts: Mapping[str, str], streams: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the facts of `unknown_facts` about texts in memory.

    Args:
        texts: the text of each split.
        streams: the tokens of each split, int32 `(n,)`.
        tokenizer: the tokenizer.
    """
    number = tokenizer.unknown
    if number is None:
        return {}
    counts = {name: int((stream == number).sum()) for name, stream in streams.items()}
    unknown = Counter(
        part for name, text in texts.items() if counts[name] for part in tokenizer.find_unknown(text[:SEARCHED])
    )
    return unknown_facts(counts, {name: len(stream) for name, stream in streams.items()}, unknown)
