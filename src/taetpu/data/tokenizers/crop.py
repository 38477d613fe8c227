"""Removal of the tokens that a text does not need, such that the text is encoded as before."""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import tokenizers as hf

from taetpu.core.errors import UserError
from taetpu.data.tokenizers.base import Tokenizer
from taetpu.data.tokenizers.characters import byte_letters
from taetpu.data.tokenizers.library import wrap_tokenizer

Pair = tuple[str, str]


def merge_steps(symbols: Sequence[str], rank: Callable[[str, str], float | None]) -> list[Pair]:
    """Return the pairs that BPE merges in a sequence of symbols, in order.

    The pair with the lowest rank is merged first, of equal ones the leftmost. The pairs that are merged within a token
    of a text are those that are merged in the token alone: no merge reaches across the borders of a final token.

    Args:
        symbols: The symbols, such as characters.
        rank: A function that returns the rank of a pair; None if it is not merged.
    """
    parts, steps = list(symbols), list[Pair]()
    ranks = [rank(a, b) for a, b in pairwise(parts)]
    while known := [number for number in ranks if number is not None]:
        i = ranks.index(min(known))
        steps.append((parts[i], parts[i + 1]))
        parts[i : i + 2] = ["".join(steps[-1])]
        start = max(i - 1, 0)
        ranks[start : i + 2] = [rank(a, b) for a, b in pairwise(parts[start : i + 2])]
    return steps


def crop(tokenizer: Tokenizer, text: str) -> Tokenizer:
    """Return a tokenizer without the tokens that a text does not need.

    Kept are the tokens of the text, the tokens that they are merged from, special tokens, the unknown token and the
    tokens of bytes. Other texts may be encoded as more and shorter tokens than before.

    Raises:
        UserError: If the text would be encoded in another way.
    """
    stored, ids = json.loads(tokenizer.to_json()), tokenizer.encode(text)
    model = stored["model"]
    merges = (pair.split(" ") if isinstance(pair, str) else pair for pair in model.get("merges", ()))
    pairs = [(a, b) for a, b in merges]
    ranks = {pair: rank for rank, pair in enumerate(pairs)}
    names = _kept_always(tokenizer, stored)
    for number in map(int, np.unique(ids)):
        name = tokenizer.token(number) or ""
        names |= {name} if name in names else {name, *_parts(name, ranks)}
    numbers = {name: number for name in names if (number := tokenizer.library.token_to_id(name)) is not None}
    unigram = isinstance(model["vocab"], list)
    scores = dict(map(tuple, model["vocab"])) if unigram else model["vocab"]
    order = sorted(numbers, key=lambda name: (name not in scores, numbers[name]))
    new = {name: number for number, name in enumerate(order)}
    if unigram:
        model["unk_id"] = None if model["unk_id"] is None else new[model["vocab"][model["unk_id"]][0]]
        model["vocab"] = [[name, scores[name]] for name in order if name in scores]
    else:
        model["vocab"] = {name: new[name] for name in order if name in scores}
    if "merges" in model:
        model["merges"] = [[a, b] for a, b in pairs if {a, b, a + b} <= new.keys()]
    added = [{**token, "id": new[token["content"]]} for token in stored["added_tokens"] if token["content"] in new]
    stored["added_tokens"] = sorted(added, key=lambda token: token["id"])
    stored["post_processor"] = _renumber(stored["post_processor"], new)
    cropped = wrap_tokenizer(hf.Tokenizer.from_str(json.dumps(stored, ensure_ascii=False)))
    mark_cropped(cropped, tokenizer)
    cropped.set_parse_special(not tokenizer.special_is_text)
    if cropped.kept is None or not np.array_equal(cropped.kept[cropped.encode(text)], ids):
        problem = "without the tokens that the training text does not contain, this tokenizer divides it differently"
        raise UserError(problem, path=("crop",), remedy="Set `crop` to false.")
    return cropped


def mark_cropped(cropped: Tokenizer, whole: Tokenizer) -> None:
    """Store in a cropped tokenizer from which tokenizer it comes, and the numbers of its tokens there."""
    names = (cropped.token(number) or "" for number in range(cropped.vocab_size))
    cropped.whole, cropped.kept = whole, np.array([whole.number(name) for name in names], np.int32)
    cropped.origin = {**whole.origin, "cropped from": whole.vocab_size}


def _kept_always(tokenizer: Tokenizer, stored: dict[str, Any]) -> set[str]:
    """Return the special tokens, the unknown token and the tokens of bytes, which are kept whatever the text."""
    names = {token["content"] for token in stored["added_tokens"] if token["special"]}
    if tokenizer.unknown is not None:
        names.add(tokenizer.token(tokenizer.unknown) or "")
    if "ByteLevel" in json.dumps([stored["pre_tokenizer"], stored["normalizer"], stored["decoder"]]):
        return names | byte_letters().keys()
    return names | {f"<0x{byte:02X}>" for byte in range(256)}


def _parts(name: str, ranks: Mapping[Pair, int]) -> set[str]:
    """Return the tokens that a token is merged from, in all steps."""
    steps = merge_steps([*name], lambda a, b: ranks.get((a, b))) if ranks else []
    return {part for a, b in steps for part in (a, b, a + b)}


def _renumber(processor: Any, new: dict[str, int]) -> Any:
    """Return a post-processor, or a part of it, with new numbers of its tokens."""
    if isinstance(processor, dict):
        if "ids" in processor and "tokens" in processor:
            return {**processor, "ids": [new[name] for name in processor["tokens"]]}
        return {
            key: [value[0], new[value[0]]] if key in ("sep", "cls") else _renumber(value, new)
            for key, value in processor.items()
        }
    return [_renumber(part, new) for part in processor] if isinstance(processor, list) else processor
