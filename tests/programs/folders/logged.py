"""The values that `write_fixtures.py` logs with each library: two arms on two seeds, one of which diverges.

All values are exact in float32. The last loss is not the lowest, so that a reader of the best value is noticed.
"""

import math
from typing import NamedTuple


class Run(NamedTuple):
    arm: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.arm}-seed{self.seed}"

    @property
    def config(self) -> dict:
        return {"arm": self.arm, "seed": self.seed, "optimizer": {"lr": 0.125 if self.arm == "base" else 0.25}}

    @property
    def loss(self) -> list[float]:
        """The losses at `STEPS`."""
        first = 2.0 + 0.5 * self.seed + (0.25 if self.arm == "wide" else 0.0)
        last = math.nan if self.diverges else first - 0.5
        return [first, first - 0.75, last]

    @property
    def perplexity(self) -> float:
        """A result at the end."""
        return 2 * self.loss[0]

    @property
    def accuracy(self) -> float:
        """The accuracy, which is logged once, at the second step."""
        return 0.25 * (1 + self.seed)

    @property
    def diverges(self) -> bool:
        return self.arm == "wide" and self.seed == 1


STEPS = [10, 20, 30]
RUNS = [Run(arm, seed) for arm in ("base", "wide") for seed in (0, 1)]
