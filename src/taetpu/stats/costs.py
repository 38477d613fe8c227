"""What each arm costs, measured: apart from the results, because wall times differ from one execution to the next."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from taetpu.store.study import StudyFolder


def read_costs(folder: StudyFolder, results: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """By arm, medians over its runs: the `train_seconds` of all steps of a run, as its pack trained it (compiling left
    out), and the `inference_seconds` of one token in an evaluation batch. None where nothing was timed. Both are a
    run's share of a pack; its `width`, how many runs it held, says with what they can be compared.
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
