"""Texts as sequences of tokens, with the special tokens that the tokenizer adds to one text or to two."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers as hf
from tokenizers import models, processors

from taetpu.core.errors import UserError
from taetpu.data.tokenizers.base import Tokenizer
from taetpu.data.tokenizers.bordered import with_borders

BEGIN, END = "[CLS]", "[SEP]"
"""The special tokens of tokenizers that are trained on the texts."""


@dataclass(frozen=True)
class Frame:
    """The special tokens of a sequence.

    Attributes:
        special: The token numbers before, between and after the texts.
        types: The types of the special tokens, and between them those of each text.
    """

    special: tuple[np.ndarray, ...]
    types: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of special tokens."""
        return sum(map(len, self.special))

    def join(self, texts: tuple[np.ndarray, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of texts with the special tokens, and their types: int32 `(n,)` each."""
        parts = [self.special[0]]
        for text, special in zip(texts, self.special[1:], strict=True):
            parts += [text, special]
        types = np.repeat(np.array(self.types, np.int32), [*map(len, parts)])
        return np.concatenate(parts).astype(np.int32), types


def frame_of(tokenizer: Tokenizer, texts: int) -> Frame:
    """Return the special tokens that a tokenizer adds to one text, or to two."""
    alone = hf.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))  # encodes "a" as one token
    processor = tokenizer.library.post_processor
    if processor is not None:
        alone.post_processor = processor
    encoding: Any = alone.encode("a", "a" if texts > 1 else None)
    ids, types, owners = (np.array(part) for part in (encoding.ids, encoding.type_ids, encoding.sequence_ids))
    places = [owners.tolist().index(number) for number in range(texts)]
    starts, ends = [0, *(place + 1 for place in places)], [*places, len(ids)]
    special = [ids[start:end] for start, end in zip(starts, ends, strict=True)]
    of_parts = [types[start] if start < end else 0 for start, end in zip(starts, ends, strict=True)]
    ordered = [of_parts[0], *(of for i, place in enumerate(places) for of in (types[place], of_parts[i + 1]))]
    return Frame(tuple(part.astype(np.int32) for part in special), tuple(map(int, ordered)))


def with_frame(tokenizer: Tokenizer, begin: str | None, end: str, *, add: bool) -> Tokenizer:
    """Return a tokenizer that encodes a text as `begin text end`, and two as `begin text end second end`.

    The types of the second text and of the token after it are 1.

    Args:
        tokenizer: The tokenizer.
        begin: The token before the first text; None for no such token.
        end: The token after each text.
        add: Whether tokens that the tokenizer lacks are added to its vocabulary.

    Raises:
        UserError: if a token is not in the vocabulary. The error's path is `bos` or `separator`.
    """
    for setting, name in {"bos": begin, "separator": end}.items():
        if not add and name is not None and tokenizer.number(name) is None:
            problem = f"the tokenizer has no token {name!r}"
            raise UserError(problem, path=(setting,), remedy=f"Set {setting} to a token of the tokenizer.")
    framed = with_borders(tokenizer, begin or end, end, add=add)
    numbers = {name: framed.number(name) for name in (begin, end) if name is not None}
    first: list[Any] = [] if begin is None else [begin]
    framed.library.post_processor = processors.TemplateProcessing(
        single=[*first, "$A", end], pair=[*first, "$A", end, "$B:1", f"{end}:1"], special_tokens=[*numbers.items()]
    )  # pyright: ignore[reportAttributeAccessIssue]
    return framed


def fit(texts: tuple[np.ndarray, ...], room: int) -> tuple[np.ndarray, ...]:
    """Return texts without tokens at their ends, so that they have `room` tokens; of two, the longer one is cut first.

    If both are cut, the longer one keeps one token more, if `room` is odd.

    Source: the strategy `longest_first` of transformers.
    """
    if len(texts) == 1 or sum(map(len, texts)) <= room:
        return tuple(text[:room] for text in texts)
    sizes = [*map(len, texts)]
    longer = sizes[0] <= sizes[1]
    sizes[not longer] = min(sizes[not longer], room // 2)
    sizes[longer] = room - sizes[not longer]
    return tuple(text[:size] for text, size in zip(texts, sizes, strict=True))
