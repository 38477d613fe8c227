"""Tables of made-up results with known effects."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

EFFECTS = {"base": 0.0, "muon": -0.1, "lion": 0.001}
ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parent / "published"


def made_up(effects: Mapping[str, float] = EFFECTS, seeds: int = 5, noise: float = 0.01) -> pd.DataFrame:
    """Return a table with a row for each run; the arms share the noise of a seed, which is as large as the rest."""
    rng = np.random.default_rng(0)
    shared = rng.normal(0, noise, seeds)
    rows = [
        {"method": arm, "seed": seed, "loss": 2.5 + effect + shared[seed] + rng.normal(0, noise)}
        for arm, effect in effects.items()
        for seed in range(seeds)
    ]
    return pd.DataFrame(rows)


@pytest.fixture
def table() -> pd.DataFrame:
    return made_up()


@pytest.fixture
def asked() -> dict[str, str]:
    """What is asked of `table`."""
    return {"arm": "method", "seed": "seed", "metric": "loss", "better": "min", "baseline": "base"}
