"""The texts of tokens for tables and pictures, and text files that a user names."""

from difflib import get_close_matches
from pathlib import Path

from taetpu.core.errors import UserError
from taetpu.lens.opened import OpenedModel

SYMBOLS = str.maketrans({" ": "·", "\n": "↵", "\t": "→", "\r": "←"})
"""Symbols of characters that tables and pictures would not show."""


def visible(text: str) -> str:
    """Return a text with symbols in place of spaces, tabs and line breaks."""
    return text.translate(SYMBOLS)


def read_token(opened: OpenedModel, token: str | int) -> int:
    """Return the number of a token that is named by its number or by its text.

    Raises:
        UserError: if the text is not exactly one token, or the number is not a token.
    """
    if isinstance(token, str) and opened.tokenizer is None:
        try:
            token = int(token)
        except ValueError:
            problem = f"this model has no tokenizer, so {token!r} is not a token"
            raise UserError(problem, remedy=f"Use a number from 0 to {opened.vocab_size - 1}.") from None
    if isinstance(token, str):
        ids = opened.encode(token).of(0)
        if len(ids) != 1:
            shown = ", ".join(repr(text) for text in opened.token_texts(ids[:8]))
            problem = f"{token!r} consists of {len(ids)} tokens: {shown}"
            raise UserError(problem, remedy="Use one of these tokens, or the number of a token.")
        return int(ids[0])
    if not 0 <= token < opened.vocab_size:
        remedy = f"Use numbers from 0 to {opened.vocab_size - 1}."
        raise UserError(f"{token} is not a token of this model", remedy=remedy)
    return int(token)


def read_text(file: str | Path) -> str:
    """Return the text of a file in UTF-8, without a byte order mark.

    Raises:
        UserError: if the file is missing, unreadable, not UTF-8, or empty.
    """
    path = Path(file).expanduser()
    try:
        raw = path.read_bytes()
    except OSError as error:
        near = get_close_matches(path.name, [one.name for one in path.parent.glob("*")] if path.parent.is_dir() else [])
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
