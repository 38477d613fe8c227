"""Measured times of arms, which are not in `results.json` because they differ between executions."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from taetpu.store.study import StudyFolder


def read_costs(folder: StudyFolder, results: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Return the median times of each arm over its runs.

    Args:
        folder: the study's folder.
        results: the content of `results.json`.

    Returns:
        A mapping from each arm to medians over its runs. `train_seconds` is the time for all steps of a run without
        compilation, `inference_seconds` is the time per token in an evaluation batch, and `width` is the number of runs
        in the pack. Each time is a run's share of the time of its pack, so times are comparable only at equal width.
        Values that were not recorded are None.
    """
    found = {}
    for arm in results["arms"]:
        runs = [folder.run(arm["name"], run["seed"], run["id"]) for run in arm["runs"] if run["id"]]
        ended = [(run.times(), run.result() or {}) for run in runs]
        step = [float(t["step_seconds"].value[-1]) * r.get("steps", 0) for t, r in ended if "step_seconds" in t]
        token = [float(t["forward_seconds"].value[-1]) for t, _ in ended if "forward_seconds" in t]
        width = [float(r["pack"]["width"]) for _, r in ended if "width" in r.get("pack", {})]
        times = {"train_seconds": _median(step), "inference_seconds": _median(token)}
        found[arm["name"]] = {**times, "width": _median(width)}
    return found


def _median(values: list[float]) -> float | None:
    known = [value for value in values if np.isfinite(value)]
    return float(np.median(known)) if known else None
