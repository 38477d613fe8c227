"""What a study can resolve: from a noise level to the smallest effect that it will find, and to the seeds it takes.

An arm is compared with the baseline by the seed-blocked model, whose noise is pooled over `arms` arms and the baseline,
at the strictest_level level that Holm's correction may ask for: `alpha / arms`.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import nctdtr, nctdtrinc, stdtrit  # `taetpu plan` has no second for scipy.stats

ALPHA = 0.05
POWER = 0.8
MAX_SEEDS = 200
"""More than this is not worth counting."""


@dataclass(frozen=True)
class PowerAnalysis:
    """How many are compared, and at which error rates.

    Attributes:
        arms: how many are compared with the baseline.
        alpha: chance of any false verdict.
        power: chance to find a true effect.
        df_a_seed: degrees of freedom that each seed but the first adds: one an arm, unless the noise is not pooled.
    """

    arms: int
    alpha: float = ALPHA
    power: float = POWER
    df_a_seed: float | None = None

    def power_at(self, effect: float, sd: float, seeds: int) -> float:
        """The power against one true effect: the noncentral t distribution with `arms (seeds - 1)` degrees of freedom.

        Args:
            effect: arm minus baseline, in the metric's unit.
            sd: of one run, after its seed's own effect is taken out.
        """
        return float(self._chances(effect, sd, np.array(float(seeds))))

    def _chances(self, effect: float, sd: float, seeds: NDArray[np.float64]) -> NDArray[np.float64]:
        df, bound = self._bound(seeds)
        return 1 - np.asarray(nctdtr(df, abs(effect) / (sd * np.sqrt(2 / seeds)), bound), np.float64)

    def _bound(self, seeds: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Degrees of freedom, and the t beyond which an effect is found."""
        df = (self.df_a_seed or self.arms) * (seeds - 1)
        return df, -np.asarray(stdtrit(df, self.alpha / self.arms / 2), np.float64)

    def smallest_effect(self, sd: float, seeds: int) -> float | None:
        """The smallest true effect that so many seeds find; None from one seed, which shows no noise."""
        if seeds < 2:
            return None
        df, bound = self._bound(np.array(float(seeds)))
        return float(nctdtrinc(df, 1 - self.power, bound)) * sd * math.sqrt(2 / seeds)

    def seeds_needed(self, effect: float, sd: float, start: int = 2) -> int | None:
        """The least number of seeds, from `start` on, that finds a true effect of this size; None over `MOST_SEEDS`."""
        tried = np.arange(start, MAX_SEEDS + 1, dtype=np.float64)
        enough = tried[self._chances(effect, sd, tried) >= self.power] if len(tried) else tried
        return int(enough[0]) if len(enough) else None
