"""A study that grows during a test."""

from pathlib import Path
from typing import Any

import pytest

from taetpu.stats.plan import Plan
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder


class Growing:
    """A study with two arms and two seeds, whose runs are written by tests."""

    def __init__(self, root: Path, name: str = "toy", **planned: Any):
        self.folder = StudyFolder(open_store(root), name)
        plan = Plan("val/loss", "min", ("baseline", "other"), (0, 1), (2,), **planned).frozen()
        study = {"study": name, "base": {"model": {}}, "arms": {"baseline": {}, "other": {"model.dim": 16}}}
        self.folder.write_study({**study, "seeds": [0, 1], "measure": {"primary": "val/loss"}, "plan": plan})

    def run(self, arm: str, seed: int):
        run = self.folder.run(arm, seed, f"{seed:08x}")
        dim = 16 if arm == "other" else 8
        run.start({"arm": arm, "seed": seed, "config": {"model": {"dim": dim, "layers": [{}]}, "train": {}}})
        return run

    def train(self, arm: str, seed: int, start: int, end: int, every: int = 10, **times: float) -> None:
        """Store steps of a run. Its loss is `1 / step`. `times` are recorded at the last step."""
        steps = list(range(start + every, end + 1, every))
        noted = {name: ([end], [value]) for name, value in times.items()}
        series = {"train/loss": (steps, [1 / step for step in steps]), "tokens": (steps, [64 * step for step in steps])}
        self.run(arm, seed).append(start, end, series, noted)

    def finish(self, arm: str, seed: int, loss: float) -> None:
        run = self.run(arm, seed)
        run.write_sample(20, f"a text of {arm}")
        metrics = {"val/loss": loss}
        run.finish({"outcome": "finished", "steps": 20, "metrics": metrics, "params": 10, "environment": {}})


@pytest.fixture
def growing(tmp_path: Path) -> Growing:
    return Growing(tmp_path)
