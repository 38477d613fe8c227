"""Tokenizers of texts that are documents of their own: a token begins each text, and one ends it."""

import json
from collections.abc import Iterable
from copy import copy
from functools import cached_property
from typing import Any

import tokenizers as hf

from taetpu.core.errors import UserError
from taetpu.data.tokenizers.base import Tokenizer

END = "<|endoftext|>"
"""Name of the token that begins and ends documents, unless the study names others."""


def with_borders(tokenizer: Tokenizer, begin: str, end: str, *, add: bool) -> Tokenizer:
    """Return a tokenizer that encodes each text with the token `begin` before it, and has the token `end`.

    Generated texts then begin as documents do. With the stored form, other programs encode prompts in the same way.

    Args:
        tokenizer: The tokenizer.
        begin: The token before each text.
        end: The token that ends a document.
        add: Whether tokens that the tokenizer lacks are added to its vocabulary, after all others.
    """
    stored: dict[str, Any] = json.loads((with_tokens(tokenizer, (begin, end)) if add else tokenizer).to_json())
    start, text = {"SpecialToken": {"id": begin, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    numbers = {token["content"]: token["id"] for token in stored["added_tokens"]}
    first = numbers.get(begin, tokenizer.number(begin))
    stored["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [start, text],
        "pair": [start, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {begin: {"id": begin, "ids": [first], "tokens": [begin]}},
    }
    bordered = _of_content(tokenizer, json.dumps(stored, ensure_ascii=False))
    if not add:  # the parameters of a stored model belong to the tokenizer as it was read
        bordered.whole = tokenizer.whole or tokenizer
    bordered.set_parse_special(not (add or tokenizer.special_is_text))
    return bordered


def with_tokens(tokenizer: Tokenizer, names: Iterable[str]) -> Tokenizer:
    """Return a tokenizer with special tokens: those that it lacks are added to its vocabulary, after all others.

    Raises:
        UserError: If an added token gets the number of another one, because the numbers of the vocabulary have gaps.
    """
    extended = _of_content(tokenizer, tokenizer.to_json())
    extended.library.add_special_tokens([name for name in dict.fromkeys(names) if tokenizer.number(name) is None])
    if tokenizer.special_is_text:  # not part of the content
        extended.set_parse_special(False)
    if len(set(extended.library.get_vocab().values())) < len(extended.library.get_vocab()):
        problem = f"no token can be added to the vocabulary, because its {tokenizer.vocab_size:,} numbers have gaps"
        raise UserError(problem, remedy="Name tokens that it has.")
    return extended


def _of_content(tokenizer: Tokenizer, content: str) -> Tokenizer:
    """Return a copy of a tokenizer with another content of its `tokenizer.json`."""
    made = copy(tokenizer)
    for cls in type(tokenizer).__mro__:
        for name, value in vars(cls).items():
            if isinstance(value, cached_property):
                vars(made).pop(name, None)
    made._inner = hf.Tokenizer.from_str(content)
    return made
