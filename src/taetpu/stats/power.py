"""Power analysis: the smallest detectable effect, and the number of seeds needed to detect an effect.

An arm is compared with the baseline under the seed-blocked model, whose noise is estimated from all arms with one
baseline. The test uses the strictest level of Holm's correction, `alpha / arms`.
"""

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from taetpu.stats.variances import expected_estimate

ALPHA = 0.05
POWER = 0.8
MAX_SEEDS = 200
"""Maximum number of seeds that `PowerAnalysis.seeds_needed` considers."""
STRIDE = 8
"""Numbers of seeds that are tried at once."""


@dataclass(frozen=True)
class PowerAnalysis:
    """Power analysis for a number of comparisons and error rates.

    Attributes:
        arms: number of arms compared with the baseline.
        alpha: probability of at least one false verdict.
        power: probability of detecting a true effect.
        df_a_seed: degrees of freedom added by each seed after the first. None means one per arm, as for pooled noise.
        weighed: number of arms with one baseline whose noise is weighed, as in plans with the noise model `moderated`.
            Standard errors and degrees of freedom are then those of a study in which all arms are equally noisy. None
            means that noise is pooled.
    """

    arms: int
    alpha: float = ALPHA
    power: float = POWER
    df_a_seed: float | None = None
    weighed: int | None = None

    def power_at(self, effect: float, sd: float, seeds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the power to detect a true effect, computed from the noncentral t distribution.

        Args:
            effect: true value of arm minus baseline, in the metric's unit.
            sd: standard deviation of one run's noise without the seed's effect.
            seeds: numbers of seeds per arm.
        """
        error, df, bound = self._bound(seeds)
        return 1 - np.asarray(scipy.special.nctdtr(df, abs(effect) / (sd * error), bound), np.float64)

    def _bound(self, seeds: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
        """Return the standard error for a noise of 1, the degrees of freedom and the critical t value."""
        error, df = np.sqrt(2 / seeds), (self.df_a_seed or self.arms) * (seeds - 1)
        if self.weighed is not None:
            typical = [expected_estimate(self.weighed + 1, int(number)) for number in seeds.ravel()]
            error, df = (np.reshape(values, seeds.shape) for values in zip(*typical, strict=True))
        return error, df, -np.asarray(scipy.special.stdtrit(df, self.alpha / self.arms / 2), np.float64)

    def smallest_effect(self, sd: float, seeds: int) -> float | None:
        """Return the smallest true effect that is detected with `power`; None with fewer than two seeds."""
        if seeds < 2:
            return None
        error, df, bound = self._bound(np.array(float(seeds)))
        return float(scipy.special.nctdtrinc(df, 1 - self.power, bound)) * sd * float(error)

    def seeds_needed(self, effect: float, sd: float, start: int = 2) -> int | None:
        """Return the smallest number of seeds, from `start` to `MAX_SEEDS`, that detects this effect with `power`.

        The result is None if no number of seeds in this range is sufficient.
        """
        for first in range(start, MAX_SEEDS + 1, STRIDE):
            tried = np.arange(first, min(first + STRIDE, MAX_SEEDS + 1), dtype=np.float64)
            enough = tried[self.power_at(effect, sd, tried) >= self.power]
            if len(enough):
                return int(enough[0])
        return None
