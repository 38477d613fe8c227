"""The structure of the scores on items in `results.json` (see `stats.item_effects`)."""

from collections.abc import Sequence
from typing import TypeAlias

from typing_extensions import TypedDict

Interval: TypeAlias = Sequence[float]
"""The lower and the upper end."""


class ItemGroup(TypedDict, closed=True):
    """A group of items, such as a phenomenon."""

    group: str
    items: int
    mean: float
    ci95: Interval | None  # None for fewer than two items
    effect: float | None  # the difference from the baseline; None for a baseline
    effect_ci95: Interval | None


class ItemComparison(TypedDict, closed=True):
    """The difference of an arm from its baseline on the same items and seeds (see `stats.item_effects`)."""

    effect: float
    ci95: Interval | None  # over seeds and items; over items only for a single seed
    seeds: int  # the number of seeds that both have
    item_share: float | None  # the share of the variance that comes from items; None for a single seed
    items_needed: int | None  # items that would detect an effect of this size; None if they would not suffice


class ItemScoreArm(TypedDict, closed=True):
    """An arm's score."""

    name: str
    against: str | None
    seeds: int
    mean: float
    ci95: Interval | None  # over seeds and items
    comparison: ItemComparison | None  # None for a baseline, and without shared seeds
    groups: list[ItemGroup]


class ItemScore(TypedDict, closed=True):
    """A score on the items of a file."""

    name: str  # of the metric, such as `hellaswag/acc_norm`
    unit: str
    items: int
    chance: float | None  # the accuracy of a guess
    arms: list[ItemScoreArm]
