"""The choices of runs, repeated from their logs: the step at which a run stopped, and the model that it chose.

`optim.selection` makes these choices on the device, in float32. The logs hold all losses by which a run chose.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from taetpu.stats.results import Choice
from taetpu.store.metrics import Series

CLOSE = 1e-5  # relative tolerance of a product of factors in float32


def check_choices(train: Mapping[str, Any], result: Mapping[str, Any], series: Mapping[str, Series]) -> Iterator[str]:
    """Yield contradictions between the choices that a result records and the losses in the log of its run.

    Choices of kinds from plug-ins are not checked.

    Args:
        train: the training config of the run.
        result: the result of the run.
        series: the metrics of the run.
    """
    stopped_at, asked = result.get("stopped_at"), train.get("steps")
    if (stopped_at is None) != (result["outcome"] != "stopped") and result["outcome"] != "diverged":
        yield f"the outcome is {result['outcome']!r}, but `stopped_at` is {stopped_at}"
    if stopped_at is not None and result["steps"] != stopped_at:
        yield f"the result records {result['steps']} steps, but `stopped_at` is {stopped_at}"
    if stopped_at is None and "selection" in result and asked is not None and result["steps"] != asked:
        yield f"the result records {result['steps']} of {asked} steps, and the run did not stop"
    stop, schedule, evaluate = (train.get(slot, {}) for slot in ("stop", "schedule", "evaluate"))
    if stop.get("kind") == "patience":
        acts = _acts(series.get("selection/stop"), stop)
        if (first := acts[0] if acts else None) != stopped_at:
            yield f"`stopped_at` is {stopped_at}, but the losses in the log end the run at {first}"
    choices = result.get("selection", {})
    if schedule.get("kind") == "plateau":
        factor = schedule["factor"] ** len(_acts(series.get("selection/schedule"), schedule))
        given = choices.get("schedule", {}).get("factor")
        if given is None or not math.isclose(given, factor, rel_tol=CLOSE):
            yield f"the factor of the learning rate is {given}, but {factor} follows from the losses in the log"
    if evaluate.get("kind") == "best":
        chosen, losses = choices.get("evaluate", {}), series.get("selection/evaluate")
        best = None if losses is None or np.isnan(losses.value).all() else int(np.nanargmin(losses.value))
        step, loss = (
            (-1, None) if best is None or losses is None else (int(losses.step[best]), float(losses.value[best]))
        )
        if (chosen.get("step"), chosen.get("loss")) != (step, loss):
            yield f"the model of step {chosen.get('step')} was chosen, but that of step {step} is the best in the log"


def _acts(losses: Series | None, settings: Mapping[str, Any]) -> list[int]:
    """Return the steps at which a component with `patience` acts, in the arithmetic of `optim.selection.Patient`."""
    lowest, since, acts = np.float32(math.inf), 0, []
    if losses is None:
        return acts
    for step, value in zip(losses.step.tolist(), losses.value.astype(np.float32), strict=True):
        lower = bool(value < lowest - np.float32(settings["min_delta"]))
        lowest, since = (value, 0) if lower else (lowest, since + 1)
        if since >= settings["patience"]:
            acts.append(step)
            since = 0
    return acts


def choices_of(results: Sequence[tuple[int, Mapping[str, Any]]]) -> list[Choice]:
    """Return what runs chose, by seed; empty if no run chooses.

    Args:
        results: the seeds and the contents of `result.json` of the runs that have ended.
    """
    return [
        {
            "seed": seed,
            "steps": result["steps"],
            "stopped": result.get("stopped_at") is not None,
            "chosen": chosen.get("evaluate", {}).get("step"),
            "averaged": chosen.get("evaluate", {}).get("models"),
            "factor": chosen.get("schedule", {}).get("factor"),
        }
        for seed, result in results
        if (chosen := result.get("selection")) is not None
    ]
