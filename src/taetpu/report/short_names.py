"""Shorten names to a maximum width, so that different names stay different."""

from collections.abc import Sequence

MARK = ".."
"""Text that replaces the removed part of a name."""


def shorten_names(names: Sequence[str], width: int) -> list[str]:
    """Shorten names to a maximum width, so that different names stay different.

    All names are cut at the same position: of the positions that keep the names distinct, the closest to the middle.
    If no position keeps them distinct, the shortened names are numbered.

    Args:
        names: the names.
        width: maximum number of characters, at least 8.
    """
    if all(len(name) <= width for name in names):
        return list(names)
    room = width - len(MARK)
    middle = room - room // 2
    for head in sorted(range(room + 1), key=lambda head: abs(head - middle)):
        shortened = [shorten(name, width, head) for name in names]
        if len(set(shortened)) == len(set(names)):
            return shortened
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names), 1)}
    digits = len(str(len(numbers)))
    return [
        name if len(name) <= width else f"{shorten(name, width - digits - 1)}#{numbers[name]:0{digits}}"
        for name in names
    ]


def shorten(name: str, width: int, head: int | None = None) -> str:
    """Replace the middle of a name that is longer than `width` with `MARK`, keeping the first `head` characters."""
    if len(name) <= width:
        return name
    room = max(width - len(MARK), 0)
    head = room - room // 2 if head is None else head
    return f"{name[:head]}{MARK}{name[len(name) - (room - head) :]}"
