"""Scores of arms on items, and the comparison of two arms on the same items: seeds and items are both samples.

A value `y[s, i]` of seed s and item i is the sum of a mean, an effect of the seed, an effect of the item and a rest.
With the mean squares `A` of seeds, `B` of items and `C` of the rest, the variance of the mean of S seeds and n items is
`(A + B - C) / (S n)`, with Satterthwaite's degrees of freedom. Differences of two arms on the same seeds and items are
analysed in the same way, so that the difficulty of an item cancels.

Source: Clark 1973, "The language-as-fixed-effect fallacy", Journal of Verbal Learning and Verbal Behavior 12, for items
as a sample beside subjects; Satterthwaite 1946, "An approximate distribution of estimates of variance components",
Biometrics Bulletin 2; Miller 2024, "Adding Error Bars to Evals", arXiv 2411.00640, for paired differences of models.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy
from jaxtyping import Float, Int

from taetpu.core.metric_spec import MetricSpec
from taetpu.stats.document_effects import LEAST
from taetpu.stats.item_results import ItemComparison, ItemGroup, ItemScore, ItemScoreArm
from taetpu.stats.linear_model import CONFIDENCE, clip
from taetpu.stats.plan import Plan, describe_metric
from taetpu.stats.results_table import Cell, Table

POWER = 0.8
"""The probability with which an effect of the observed size would be detected on the number of items that is stated."""
MOST_ITEMS = 10**9
"""Number of items from which none is stated, because the noise of seeds decides."""


@dataclass(frozen=True)
class CrossedMean:
    """The mean of values by seed and item, with its error.

    Attributes:
        mean: The mean.
        error: The standard error; None for fewer than `LEAST` items, and if all values are equal.
        df: Its degrees of freedom.
        seeds: The number of seeds.
        items: The number of items.
        seed_variance: The variance of the mean of one seed over all possible items; None for a single seed.
        item_variance: The variance of one item's mean over the seeds; None without an error.
    """

    mean: float
    error: float | None
    df: float
    seeds: int
    items: int
    seed_variance: float | None
    item_variance: float | None

    def interval(self, bounds: tuple[float, float]) -> list[float] | None:
        """Return the 95 % interval within bounds; None without an error."""
        if self.error is None:
            return None
        half = float(scipy.stats.t.isf((1 - CONFIDENCE) / 2, self.df)) * self.error
        return [clip(self.mean - half, bounds), clip(self.mean + half, bounds)]

    @property
    def item_share(self) -> float | None:
        """The share of the mean's variance that comes from the choice of items; None without noise or items."""
        if self.item_variance is None or self.seed_variance is None:
            return None
        by_items, by_seeds = self.item_variance / self.items, self.seed_variance / self.seeds
        return by_items / (by_items + by_seeds) if by_items + by_seeds > 0 else None

    def items_needed(self) -> int | None:
        """Return the number of items at which the same seeds would detect a true mean of this size.

        The test is two-sided at 5 % with a power of `POWER`, and its quantiles are those of the normal distribution.
        None if the mean is 0 or more items would not suffice.
        """
        if self.item_variance is None or self.seed_variance is None or self.mean == 0:
            return None
        quantiles = float(scipy.stats.norm.isf((1 - CONFIDENCE) / 2) + scipy.stats.norm.ppf(POWER))
        left = (self.mean / quantiles) ** 2 - self.seed_variance / self.seeds
        needed = math.inf if left <= 0 else self.item_variance / left
        return None if needed > MOST_ITEMS else max(LEAST, math.ceil(needed))


def crossed_mean(values: Float[np.ndarray, "seed item"]) -> CrossedMean:
    """Return the mean of values by seed and item, with the error over both.

    With one seed, the error is that over items only. Negative estimates of variances count as 0, and the variance is
    at least that of each of the two alone.
    """
    seeds, items = values.shape
    mean = float(values.mean())
    if items < LEAST or (values == values[0, 0]).all():
        return CrossedMean(mean, None, math.nan, seeds, items, None, None)
    by_seed, by_item = values.mean(1), values.mean(0)
    of_items = seeds * float(((by_item - mean) ** 2).sum()) / (items - 1)
    if seeds < 2:
        error = math.sqrt(of_items / items)
        return CrossedMean(mean, error, items - 1, seeds, items, None, of_items)
    of_seeds = items * float(((by_seed - mean) ** 2).sum()) / (seeds - 1)
    rest = values - by_seed[:, None] - by_item + mean
    of_rest = float((rest**2).sum()) / ((seeds - 1) * (items - 1))
    squares = of_seeds + of_items - of_rest
    largest = max(squares, of_seeds, of_items)
    spread = of_seeds**2 / (seeds - 1) + of_items**2 / (items - 1) + of_rest**2 / ((seeds - 1) * (items - 1))
    df = max(largest**2 / spread, 1.0)
    # The mean of an item over the seeds includes its part of the rest.
    seed_variance, item_variance = max(of_seeds - of_rest, 0.0) / items, of_items / seeds
    return CrossedMean(mean, math.sqrt(largest / (seeds * items)), df, seeds, items, seed_variance, item_variance)


def compare_scores(table: Table, plan: Plan, against: Mapping[str, str]) -> list[ItemScore]:
    """Return the scores on items of all arms, and their differences from their baselines.

    What a score is follows from the plan, or from the first run that has it if it was added to a study later.

    Args:
        table: The study's runs.
        plan: The analysis plan.
        against: The baseline of each arm that is not a baseline.
    """
    specs: dict[str, MetricSpec] = {}
    for cell in (cell for arm in table.cells for cell in table.finished(arm)):
        for entry, facts in (cell.result or {}).get("items", {}).items():
            for part, data in facts["scores"].items():
                spec = MetricSpec.from_data(data)
                named = replace(spec, mean_of=tuple(f"{entry}/{name}" for name in spec.mean_of))
                specs.setdefault(f"{entry}/{part}", named)
    known = {name: describe_metric(vars(plan), name) if name in plan.metrics else spec for name, spec in specs.items()}
    scores = (_compare(name, spec, table, against) for name, spec in known.items())
    return [score for score in scores if score is not None]


def _compare(name: str, spec: MetricSpec, table: Table, against: Mapping[str, str]) -> ItemScore | None:
    """Return the scores of one name; None if it is not a mean over items, or no finished run has it."""
    entry = name.partition("/")[0]
    values = {arm: _values(table.finished(arm), spec, entry) for arm in table.cells} if spec.mean_of else {}
    measured = {arm: by_seed for arm, by_seed in values.items() if by_seed}
    if not measured:
        return None
    some = next(iter(measured))
    first = next(cell for cell in table.finished(some) if cell.seed in measured[some])
    facts = (first.result or {}).get("items", {}).get(entry, {})
    groups, numbers = facts.get("groups", []), first.evaluation.get(f"{entry}/group")
    arms: list[ItemScoreArm] = []
    for arm, by_seed in measured.items():
        base = against.get(arm)
        theirs = measured.get(base, {}) if base is not None else {}
        shared = [seed for seed in by_seed if seed in theirs and len(theirs[seed]) == len(by_seed[seed])]
        scored = crossed_mean(np.stack([*by_seed.values()]))
        differences = np.stack([by_seed[seed] - theirs[seed] for seed in shared]) if shared else None
        arms.append({
            "name": arm, "against": base, "seeds": len(by_seed), "mean": scored.mean,
            "ci95": scored.interval(spec.bounds),
            "comparison": None if differences is None else _comparison(differences, spec),
            "groups": [*_groups(groups, numbers, np.stack([*by_seed.values()]), differences, spec)],
        })  # fmt: skip
    items = len(first.evaluation[spec.mean_of[0]])
    return {"name": name, "unit": spec.unit, "items": items, "chance": facts.get("chance"), "arms": arms}


def _values(cells: Sequence[Cell], spec: MetricSpec, entry: str) -> dict[int, Float[np.ndarray, " item"]]:
    """Return the values of items by seed, of the runs that were scored on the file of the first."""
    name, _ = spec.mean_of
    values, digest = dict[int, np.ndarray](), None
    for cell in cells:
        about = (cell.result or {}).get("items", {}).get(entry)
        if about is None or name not in cell.evaluation:
            continue
        digest = digest or about["sha256"]
        scores = cell.evaluation[name]
        if about["sha256"] == digest and np.isfinite(scores).all():
            values[cell.seed] = scores
    return values


def _comparison(differences: Float[np.ndarray, "seed item"], spec: MetricSpec) -> ItemComparison:
    effect = crossed_mean(differences)
    width = spec.bounds[1] - spec.bounds[0]
    return {
        "effect": effect.mean,
        "ci95": effect.interval((-width, width)),
        "seeds": effect.seeds,
        "item_share": effect.item_share,
        "items_needed": effect.items_needed(),
    }


def _groups(
    groups: Sequence[str],
    numbers: Int[np.ndarray, " item"] | None,
    values: Float[np.ndarray, "seed item"],
    differences: Float[np.ndarray, "seed item"] | None,
    spec: MetricSpec,
) -> Iterator[ItemGroup]:
    """Yield the means of groups of items, with the differences from the baseline."""
    width = spec.bounds[1] - spec.bounds[0]
    for number, group in enumerate(groups if numbers is not None else ()):
        inside = numbers == number
        mean = crossed_mean(values[:, inside])
        effect = None if differences is None else crossed_mean(differences[:, inside])
        yield {
            "group": group, "items": int(np.sum(inside)), "mean": mean.mean, "ci95": mean.interval(spec.bounds),
            "effect": None if effect is None else effect.mean,
            "effect_ci95": None if effect is None else effect.interval((-width, width)),
        }  # fmt: skip
