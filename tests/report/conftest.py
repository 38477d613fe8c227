"""Studies with made-up runs that have all inputs of a report: values, curves, samples and an environment."""

import zlib
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taetpu.stats.analyse import analyse
from taetpu.stats.plan import Plan
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder

ARMS: dict[str, tuple[dict[str, Any], float | None]] = {
    "baseline": ({}, 0.0),
    "nope": ({"model.position": None}, 0.031),
    "no-ffn": ({"model.ffn": None}, 0.145),
    "no-mixer": ({"model.mixer": None}, 0.82),
    "layernorm": ({"model.norm.kind": "layer"}, 0.001),
    "one-head": ({"model.mixer.num_heads": 1}, 0.012),
    "heads=8": ({"model.mixer.num_heads": 8}, -0.001),
    "untied": ({"model.embedding": {"kind": "untied"}}, -0.022),
    "no-norm": ({"model.norm": None}, None),
}
"""Change and true effect of each arm. An arm whose effect is None diverges on all seeds except one."""

BASE = {
    "task": {"kind": "text", "source": "python-docs", "tokenizer": {"kind": "char"}, "seq_len": 64},
    "model": {
        "dim": 64,
        "num_layers": 4,
        "mixer": {"kind": "attention", "num_heads": 4},
        "position": {"kind": "rope"},
        "norm": {"kind": "rms", "placement": "pre"},
        "ffn": {"kind": "swiglu"},
        "embedding": {"kind": "tied"},
    },
    "train": {"steps": 40, "batch_size": 16, "optimizer": {"kind": "adamw", "lr": 3e-3}},
}
ENVIRONMENT = {"device": "cpu", "platform": "cpu", "python": "3.11.2", "versions": {"taetpu": "0.1.0", "jax": "0.10.2"}}


def config_with(diff: Mapping[str, Any]) -> dict[str, Any]:
    """Return the baseline's config with an arm's change."""
    config = deepcopy(BASE)
    for path, value in diff.items():
        *inside, name = path.split(".")
        reduce(lambda part, key: part[key], inside, config)[name] = value
    return config


def stored_study(
    root: Path,
    arms: Mapping[str, tuple[dict[str, Any], float | None]] = ARMS,
    seeds: int = 3,
    steps: int = 40,
    equivalence: float | None = None,
    sample: str = "    The loop is then run again, with the value that was\n    returned by the call.\n",
) -> StudyFolder:
    """Store and analyse a study with made-up runs."""
    rng = np.random.default_rng(0)
    folder = StudyFolder(open_store(root), "what-matters")
    study = {"study": "what-matters", "base": BASE, "arms": {name: diff for name, (diff, _) in arms.items()}}
    plan = Plan("val/loss", "min", tuple(arms), tuple(range(seeds)), (seeds,), equivalence)
    folder.write_study({**study, "seeds": list(range(seeds)), "roles": {}, "design": {}, "plan": plan.frozen()})
    shared = rng.normal(0, 0.012, seeds)
    for i, (arm, (diff, effect)) in enumerate(arms.items()):
        for seed in range(seeds):
            diverged = effect is None and seed != 1
            offset = (0.3 if effect is None else effect) + shared[seed] + rng.normal(0, 0.006)
            _write_run(folder, arm, diff, seed, offset, diverged, steps, rng, 106_432 + 997 * i, sample)
    analyse(folder)
    return folder


@pytest.fixture(autouse=True)
def _valid_charts(monkeypatch):
    """Check charts against the schema of Vega-Lite."""
    from taetpu.report import charts

    monkeypatch.setattr(charts, "VALIDATE", True)


@pytest.fixture
def store_study(tmp_path: Path) -> Callable[..., StudyFolder]:
    """Return `stored_study` for a folder of this test."""
    return partial(stored_study, tmp_path)


@pytest.fixture(scope="session")
def study(tmp_path_factory) -> StudyFolder:
    """Return the study with `ARMS` and an equivalence margin. Tests must not change it."""
    return stored_study(tmp_path_factory.mktemp("study"), equivalence=0.01)


@pytest.fixture
def results(study) -> dict[str, Any]:
    """Return the results of `study`. Tests may change them."""
    return study.read_results()


def _write_run(folder, arm, diff, seed, offset, diverged, steps, rng, params, sample) -> None:
    run = folder.run(arm, seed, f"{zlib.crc32(arm.encode()) // 16 + seed:08x}")
    run.start({"arm": arm, "seed": seed, "config": config_with(diff)})
    step = np.arange(1, steps + 1)
    train = 1.9 + offset + 2.3 * np.exp(-step / (0.12 * steps)) + rng.normal(0, 0.02, steps)
    evals = np.unique(np.linspace(0, steps, 21).round().astype(int))[1:]
    val = 1.95 + offset + 2.3 * np.exp(-evals / (0.12 * steps)) + rng.normal(0, 0.001, len(evals))
    if diverged:
        train[steps // 3 :] = np.nan
        val[evals >= steps // 3] = np.nan
    series = {"train/loss": (step, train.astype(np.float32)), "val/loss": (evals, val.astype(np.float32))}
    times = {"step_seconds": ([steps], [0.004]), "forward_seconds": ([steps], [2e-6])}
    run.append(0, steps, series, times)
    run.write_sample(steps, sample)
    run.finish(
        {
            "outcome": "diverged" if diverged else "finished",
            "diverged_at": steps // 3 if diverged else None,
            "steps": steps,
            "metrics": {"val/loss": float(val[-1]), "train/loss": float(train[-1])},
            "params": params,
            "flops": 6 * params * 16 * 64 * steps,
            "tokens": 16 * 64 * steps,
            "memory": {"training": 40 * params, "kv_cache": 2 * 64 * 512},
            "pack": {"id": "3f2a", "width": 8, "devices": 2},
            "environment": ENVIRONMENT,
        }
    )
