"""The texts of tokens for tables and pictures, and text files that a user names."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from taetpu.core.errors import UserError, locate_errors
from taetpu.data.tokenizers.base import check_unicode
from taetpu.lens.inputs import check_row
from taetpu.lens.opened import OpenedModel

SYMBOLS = str.maketrans({" ": "·", "\n": "↵", "\t": "→", "\r": "←"})
"""Symbols of characters that tables and pictures would not show."""

NUMBER = re.compile(r"#?([0-9]+)")
"""A token that is named by its number."""
NAMED = 8
"""Maximum number of characters or words in a message."""


def visible(text: str) -> str:
    """Return a text with symbols in place of spaces, tabs and line breaks."""
    return text.translate(SYMBOLS)


def read_token(opened: OpenedModel, token: str | int, *where: str) -> int:
    """Return the number of a token that is named by its number or by its text.

    A text that is one token names it. `#315` is token 315, and so is `315` if this text is not one token.

    Args:
        opened: The model.
        token: The token.
        where: The place of the token in the user's input, for errors.

    Raises:
        UserError: if the text is neither one token nor a number, or the number is not a token.
    """
    if isinstance(token, bool) or not isinstance(token, (str, int, np.integer)):
        problem = f"{token!r} is not a token, expected a text or a number"
        raise UserError(problem, path=where, remedy="Use the text of one token, or its number.")
    if isinstance(token, str):
        with locate_errors(*where):
            check_unicode(token)
        digits = NUMBER.fullmatch(token)
        if digits and (token.startswith("#") or len(_part(opened, token)) != 1):
            token = int(digits[1])
    number = _read_text_token(opened, token, where) if isinstance(token, str) else int(token)
    check_row(number, opened.vocab_size, opened.tokenizer if isinstance(token, str) else None, *where)
    return number


def _part(opened: OpenedModel, text: str) -> np.ndarray:
    """Return the numbers of the tokens of a part of a text; empty if one of its characters is unknown."""
    tokenizer = opened.tokenizer
    known = tokenizer is not None and not tokenizer.find_unknown(text)
    return tokenizer.encode_part(text) if tokenizer is not None and known else np.zeros(0, np.int32)


def _read_text_token(opened: OpenedModel, text: str, where: tuple[str, ...]) -> int:
    if opened.symbols is not None and len(ids := opened.symbols.parse(text)) == 1:
        return int(ids[0])
    if opened.tokenizer is None:
        problem = f"this model has no tokenizer, so {text!r} is not a token"
        raise UserError(problem, path=where, remedy=f"Use a number from 0 to {opened.vocab_size - 1}.")
    remedy = "Use the text of one token, or #N for token N."
    if unknown := opened.tokenizer.find_unknown(text):
        problem = f"{text!r} is not a token: {name_distinct(unknown)} is not in the model's vocabulary"
        raise UserError(problem, path=where, remedy=remedy)
    ids = _part(opened, text)
    if not len(ids):
        raise UserError(f"{text!r} contains no token", path=where, remedy=remedy)
    if len(ids) > 1:
        parts = zip(ids[:8].tolist(), opened.token_texts(ids[:8]), strict=True)
        shown = ", ".join(f"#{number}" if "\ufffd" in part else repr(part) for number, part in parts)
        problem = f"{text!r} consists of {len(ids)} tokens: {shown}"
        raise UserError(problem, path=where, remedy="Use one of these tokens, or #N for token N.")
    return int(ids[0])


def split_lines(text: str) -> list[str]:
    """Return the lines of a text. A line ends at a line feed only: other separators, such as U+2028, are text."""
    return [line.removesuffix("\r") for line in text.split("\n")]


def name_distinct(parts: Iterable[str]) -> str:
    """Return the different texts of a list for a message, at most `NAMED`."""
    different = [*dict.fromkeys(parts)]
    more = f" and {len(different) - NAMED} more" if len(different) > NAMED else ""
    return ", ".join(map(repr, different[:NAMED])) + more


def read_text(file: str | Path) -> str:
    """Return the text of a file in UTF-8, without a byte order mark.

    Raises:
        UserError: if the file is missing, unreadable, not UTF-8, or empty.
    """
    path = Path(file).expanduser()
    try:
        raw = path.read_bytes()
    except OSError as error:
        names = [entry.name for entry in path.parent.glob("*")] if path.parent.is_dir() else []
        near = get_close_matches(path.name, names)
        hint = f"Did you mean {near[0]!r}? " if near and near[0] != path.name else ""
        remedy = f"{hint}Use the path of a text file."
        raise UserError(f"cannot read the text: {error.strerror}", file=file, remedy=remedy) from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        problem = f"not UTF-8: byte 0x{raw[error.start]:02x}"
        raise UserError(problem, file=file, line=line, remedy="Convert the file to UTF-8.") from None
    if not text:
        raise UserError("the text is empty", file=file, remedy="Use a file with text.")
    return text
