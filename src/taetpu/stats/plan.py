"""The analysis plan: what was decided before the first run, and which look at the data this is.

It is frozen with the study and hashed, so that a report can show that nothing was chosen after the results were seen.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from taetpu.core.errors import UserError
from taetpu.stats import group_sequential
from taetpu.stats.power import ALPHA

Direction = Literal["min", "max"]

MIN_SEEDS = 2
"""A verdict needs as many: a single seed shows no noise."""


def metric_bounds(metric: str) -> tuple[float, float]:
    """The least and the most that a metric can be: an accuracy is a share of tokens, all others have no upper bound."""
    return (0.0, 1.0) if metric.endswith("accuracy") else (0.0, math.inf)


@dataclass(frozen=True)
class Plan:
    """What a study's verdicts are about.

    Attributes:
        primary: the metric by which arms are compared, at the end of training.
        direction: whether less or more of it is better.
        equivalence: a smaller difference than this does not matter; None where that was not said.
        alpha: chance of any false verdict of better or worse, over all arms and planned looks.
        arms: what is compared, the baseline first.
        seeds: those of the first verdicts.
        looks: numbers of seeds an arm at which verdicts are given; the last is the most.
    """

    primary: str
    direction: Direction
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    looks: tuple[int, ...]
    equivalence: float | None = None
    alpha: float = ALPHA

    def frozen(self) -> dict[str, Any]:
        """As the study's folder keeps it: the plan and its hash."""
        return {**json.loads(self._text()), "sha256": self.sha256}

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self._text().encode()).hexdigest()

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the most that the primary metric can be."""
        return metric_bounds(self.primary)

    def _text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    def analysis_index(self, seeds: int) -> int | None:
        """The number of the planned look at so many seeds, from 0; None where none was planned."""
        return self.looks.index(seeds) if seeds in self.looks else None

    def overall_p(self, p: float, seeds: int) -> float:
        """The p of the study as a whole, from that of the look at so many seeds."""
        index = self.analysis_index(seeds)
        return (
            p
            if index is None
            else group_sequential.overall_p(p, [number / self.looks[-1] for number in self.looks], index)
        )

    def overall_one_sided_p(self, p: float, seeds: int) -> float:
        """The same of a p that counts one side only, as that of a claim of equivalence does."""
        return self.overall_p(min(1.0, 2 * p), seeds) / 2

    def strictest_level(self, arms: int, seeds: int) -> float:
        """What Holm's strictest test at so many seeds leaves of `alpha`, with the planned looks counted.

        As the error rate over `arms` arms of a study with this look alone that tests each arm at the same level.
        """
        index = self.analysis_index(seeds)
        shares = [number / self.looks[-1] for number in self.looks]
        return self.alpha if index is None else arms * group_sequential.nominal_level(self.alpha / arms, shares, index)

    def error_rate(self, seeds: int, judged_at: Sequence[int] | None = None) -> float:
        """Return the chance of a false verdict by an analysis at so many seeds: `alpha` unless it is an unplanned one.

        Args:
            judged_at: numbers of seeds at which there were verdicts before seeds were added. None where that was not
                recorded: as if there had been verdicts after every seed, which gives the highest chance.
        """
        last = self.looks[-1]
        if seeds <= last:
            return self.alpha
        if judged_at is None:
            judged_at = range(MIN_SEEDS, seeds)
        earlier = sorted({max(number, last) for number in judged_at if number < seeds})
        return group_sequential.inflated_error_rate(self.alpha, [*earlier, seeds]) if earlier else self.alpha


def read_plan(study: Mapping[str, Any], where: str) -> Plan:
    """The plan that a frozen study holds.

    Args:
        where: the study's folder, for the message.

    Raises:
        UserError: there is none, or it is not what was frozen.
    """
    if not isinstance(study.get("plan"), Mapping):
        remedy = "it was frozen by an earlier version: run the study anew under another name"
        raise UserError("the study has no analysis plan", path=("plan",), file=where, remedy=remedy)
    data: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in study["plan"].items()
    }
    sha256 = data.pop("sha256", None)
    plan = Plan(**data) if set(data) == set(Plan.__dataclass_fields__) else None
    if plan is None or plan.sha256 != sha256:
        raise UserError(
            "the analysis plan is not the one that was frozen before the first run",
            path=("plan",),
            file=where,
            remedy="put study.yaml back as it was, or run the study anew under another name",
        )
    return plan
