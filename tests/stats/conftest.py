"""Tables of made-up values, and studies with a result for every run."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from taetpu.stats.plan import Plan
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder

Table = dict[str, dict[int, float]]


@pytest.fixture
def table() -> Callable[..., Table]:
    """Return a function that maps an array `(arms, seeds)` to values by arm and seed. The first arm is the baseline."""

    def made(y: np.ndarray, names: list[str] | None = None) -> Table:
        names = names or ["baseline", *(f"arm{i}" for i in range(1, len(y)))]
        return {name: dict(enumerate(map(float, row))) for name, row in zip(names, y, strict=True)}

    return made


@pytest.fixture
def draw() -> Callable[..., np.ndarray]:
    """Return a function that draws `(arms, seeds)` with a shared effect of each seed, and noise with sd 1 or `sd`."""

    def drawn(rng: np.random.Generator, arms: int, seeds: int, sd: Mapping[int, float] | None = None) -> np.ndarray:
        scale = np.ones((arms, 1))
        for arm, value in (sd or {}).items():
            scale[arm] = value
        return scale * rng.normal(size=(arms, seeds)) + rng.normal(size=(1, seeds))

    return drawn


def made_study(
    root: Path,
    values: Mapping[str, Mapping[int, float | None]],
    name: str = "toy",
    roles: Mapping[str, Any] = MappingProxyType({}),
    design: Mapping[str, Any] = MappingProxyType({}),
    result: Callable[[str, int], dict[str, Any]] = lambda arm, seed: {},
    **plan: Any,
) -> StudyFolder:
    """Store a study whose runs end with the given values. None means diverged, and an absent value means unfinished.

    Args:
        result: function from arm and seed to other fields of the run's result.
        plan: fields of the analysis plan. The default is one analysis of all arms and seeds.
    """
    folder = StudyFolder(open_store(root), name)
    seeds = sorted({seed for row in values.values() for seed in row})
    own = {"primary": "val/loss", "direction": "min", "arms": tuple(values), "seeds": tuple(seeds)}
    folder.write_study(
        {
            "study": name,
            "base": {"model": {"position": {"kind": "rope", "base": 1e4}, "dim": 64, "bias": False}},
            "arms": {arm: {} if arm == "baseline" else {"model.position": "none"} for arm in values},
            "seeds": seeds,
            "measure": {"primary": "val/loss", "direction": "min"},
            "roles": dict(roles),
            "design": dict(design),
            "plan": Plan(**{**own, "looks": (len(seeds),), **plan}).frozen(),
        }
    )
    for arm, row in values.items():
        for seed, value in row.items():
            run = folder.run(arm, seed, f"{seed:08x}")
            run.start({"arm": arm, "seed": seed, "config": {"train": {"steps": 10}}})
            run.finish({**_result(arm, seed, value), **result(arm, seed)})
    return folder


def _result(arm: str, seed: int, value: float | None) -> dict[str, Any]:
    return {
        "outcome": "diverged" if value is None else "finished",
        "diverged_at": 3 if value is None else None,
        "steps": 10,
        "metrics": {"val/loss": value, "train/loss": 1.0},
        "params": 1000,
        "flops": 2_000_000,
        "tokens": 300,
        "pack": {"id": f"{arm}{seed}", "width": 2 if arm == "baseline" else 1, "devices": 1},
    }


@pytest.fixture
def store_study(tmp_path: Path) -> Callable[..., StudyFolder]:
    """Return `made_study` for a folder of this test."""
    return lambda values, **more: made_study(tmp_path, values, **more)
