"""Parts of long texts that have the tokens of the whole. The library needs 80 bytes for each character of a text."""

import re
from collections.abc import Iterator

import tokenizers as hf
from tokenizers import models, pre_tokenizers

PART = 2**18
"""The number of characters from which a text is divided."""
# A word of these patterns never has a space before another character than white space inside, and white space before
# such a space is one word, whether the text ends there or not.
PATTERNS = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
}
"""The patterns of tiktoken's encodings `gpt2` and `cl100k_base`. `ByteLevel` of the library divides by the first."""
BORDER = re.compile(r" (?=\S)")


def divide_into_words(pattern: str) -> pre_tokenizers.PreTokenizer:
    """Return a pre-tokenizer whose words are the matches of a pattern, in the letters of byte-level tokenizers."""
    words = pre_tokenizers.Split(hf.Regex(pattern), "isolated")
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([words, spell])


def cut(text: str) -> Iterator[str]:
    """Yield the parts of a text, of about `PART` characters each. Parts after the first begin with a space."""
    start = 0
    while len(text) - start > PART and (border := BORDER.search(text, start + PART)):
        yield text[start : border.start()]
        start = border.start()
    yield text[start:]


def is_divisible(inner: hf.Tokenizer) -> bool:
    """Return whether the tokens of a text are those of its parts: in byte-level BPE with one of `PATTERNS`."""
    by_words = [divide_into_words(pattern) for pattern in PATTERNS.values()]
    known = {words.__getstate__() for words in (pre_tokenizers.ByteLevel(add_prefix_space=False), *by_words)}
    return (
        isinstance(inner.model, models.BPE)
        and inner.normalizer is None
        and inner.pre_tokenizer is not None
        and inner.pre_tokenizer.__getstate__() in known
        and not any(
            token.lstrip or token.rstrip or " " in token.content for token in inner.get_added_tokens_decoder().values()
        )
    )
