"""What each arm costs, measured: apart from the results, because wall times differ from one execution to the next."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from taetpu.store.study import StudyFolder


def costs(folder: StudyFolder, results: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """By arm, medians over its runs: the `train_seconds` of all steps of a run, as its pack trained it (compiling left
    out), and the `inference_seconds` of one token in an evaluation batch. None where nothing was timed.
    """
    found = {}
    for arm in results["arms"]:
        runs = [folder.run(arm["name"], run["seed"], run["id"]) for run in arm["runs"] if run["id"]]
        ended = [(run.times(), (run.result() or {}).get("steps", 0)) for run in runs]
        step = [float(times["step_seconds"].value[-1]) * steps for times, steps in ended if "step_seconds" in times]
        token = [float(times["forward_seconds"].value[-1]) for times, _ in ended if "forward_seconds" in times]
        found[arm["name"]] = {"train_seconds": _median(step), "inference_seconds": _median(token)}
    return found


def _median(values: list[float]) -> float | None:
    known = [value for value in values if np.isfinite(value)]
    return float(np.median(known)) if known else None
