"""Tokenizers of texts that are documents of their own: a token begins each text, and one ends it."""

import json
from copy import copy
from functools import cached_property
from typing import Any

import tokenizers as hf

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
    stored: dict[str, Any] = json.loads(tokenizer.to_json())
    number = tokenizer.vocab_size
    for name in dict.fromkeys((begin, end)) if add else ():
        if tokenizer.number(name) is None:
            plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            stored["added_tokens"].append({"id": number, "content": name, **plain, "special": True})
            number += 1
    start, text = {"SpecialToken": {"id": begin, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    numbers = {token["content"]: token["id"] for token in stored["added_tokens"]}
    first = numbers.get(begin, tokenizer.number(begin))
    stored["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [start, text],
        "pair": [start, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {begin: {"id": begin, "ids": [first], "tokens": [begin]}},
    }
    bordered = copy(tokenizer)
    for cls in type(tokenizer).__mro__:
        for name, value in vars(cls).items():
            if isinstance(value, cached_property):
                vars(bordered).pop(name, None)
    bordered._inner = hf.Tokenizer.from_str(json.dumps(stored, ensure_ascii=False))
    if not add:  # the parameters of a stored model belong to the tokenizer as it was read
        bordered.whole = tokenizer.whole or tokenizer
    bordered.set_parse_special(not (add or tokenizer.special_is_text))
    return bordered
