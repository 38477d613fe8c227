"""Choose the labels of points in a scatter plot, and the sides of the points on which the labels are drawn."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

CHARACTER, LINE, REACH, DOT = 6.5, 13.0, 8.0, 5.0
"""Width of a character, height of a line, distance of a label from its point, and radius of a point, in pixels."""
SIDES: Mapping[str, tuple[Any, Any, int, int]] = {
    "above": ("center", "bottom", 0, -1),
    "right": ("left", "middle", 1, 0),
    "below": ("center", "top", 0, 1),
    "left": ("right", "middle", -1, 0),
}
"""The alignment, the baseline and the direction of a label, by side."""

Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels."""


def place_labels(
    points: Sequence[tuple[float, float]], names: Sequence[str], order: Sequence[int], size: tuple[float, float]
) -> list[str]:
    """Return the side on which each point's label is drawn, or "" if there is no room for it.

    A label overlaps neither a point nor the label of a point that precedes it in `order`.

    Args:
        points: the positions of the points, in any unit, y upwards.
        names: the labels.
        order: the indices of the points, the most important first.
        size: width and height of the plot in pixels.
    """
    places = list(zip(*(_to_pixels(axis, length) for axis, length in zip(zip(*points, strict=True), size, strict=True)),
                      strict=True))  # fmt: skip
    places = [(x, size[1] - y) for x, y in places]
    taken = [(x - DOT, y - DOT, x + DOT, y + DOT) for x, y in places]
    sides = [""] * len(points)
    for i in order:
        for side, box in _candidates(places[i], names[i]):
            others = taken[:i] + taken[i + 1 :]
            if box[0] >= 0 and box[2] <= size[0] and not any(_overlap(box, other) for other in others):
                sides[i] = side
                taken.append(box)
                break
    return sides


def _to_pixels(values: Sequence[float], length: float) -> list[float]:
    low, high = min(values), max(values)
    room = 24.0
    return [room + (length - 2 * room) * ((value - low) / (high - low) if high > low else 0.5) for value in values]


def _candidates(place: tuple[float, float], name: str) -> Iterator[tuple[str, Box]]:
    (x, y), width = place, CHARACTER * len(name)
    for side, (_, _, right, down) in SIDES.items():
        left = x + REACH if right > 0 else x - REACH - width if right < 0 else x - width / 2
        top = y - LINE / 2 if down == 0 else y + REACH if down > 0 else y - REACH - LINE
        yield side, (left, top, left + width, top + LINE)


def _overlap(box: Box, other: Box) -> bool:
    return box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]
