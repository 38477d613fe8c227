"""Names of arms in little room: cut so that no two look alike."""

from collections.abc import Sequence

MARK = ".."
"""Stands for what is cut out of a name."""


def shorten_names(names: Sequence[str], width: int) -> list[str]:
    """Cut names to a width, such that names that differ still differ.

    All names are cut at the same place: their middle, or the place nearest to it that keeps them apart. Where no such
    place exists, the cut names are numbered.

    Args:
        width: in characters; at least 8.
    """
    if all(len(name) <= width for name in names):
        return list(names)
    room = width - len(MARK)
    middle = room - room // 2
    for head in sorted(range(room + 1), key=lambda head: abs(head - middle)):
        found = [shorten(name, width, head) for name in names]
        if len(set(found)) == len(set(names)):
            return found
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names), 1)}
    digits = len(str(len(numbers)))
    return [
        name if len(name) <= width else f"{shorten(name, width - digits - 1)}#{numbers[name]:0{digits}}"
        for name in names
    ]


def shorten(name: str, width: int, head: int | None = None) -> str:
    """Replace the middle of a name that is longer than `width` by `MARK`, keeping `head` characters before it."""
    if len(name) <= width:
        return name
    room = max(width - len(MARK), 0)
    head = room - room // 2 if head is None else head
    return f"{name[:head]}{MARK}{name[len(name) - (room - head) :]}"
