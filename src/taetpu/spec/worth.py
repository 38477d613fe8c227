"""Checks of `measure.worth`, for which the baseline needs a scaling law over the rungs of a ladder."""

from collections.abc import Mapping
from typing import Any

from taetpu.core.errors import UserError
from taetpu.core.metric_spec import MetricSpec
from taetpu.spec.repeats import repetitions
from taetpu.spec.study_file import StudyFile

MIN_RUNGS = 4
"""Number of rungs from which on a law of three parameters has residuals."""
EXAMPLE = "{model.dim: [32, 48, 64, 96], train.steps: [250, 500, 1000, 2000]}"


def check_worth(spec: StudyFile, base: Mapping[str, Any], metric: MetricSpec) -> None:
    """Raise `UserError` if arms have no worth in compute: without a scaling law that has residuals.

    Args:
        spec: the study file.
        base: the baseline's data.
        metric: what the primary metric is.
    """
    if spec.measure.worth is None:
        return
    key, rungs = repetitions(spec, base)
    if not rungs or key != "ladder":
        problem = "worth reads a scaling law of the baseline, and the study has no ladder"
        raise UserError(problem, path=("measure", "worth"), remedy=f"Add e.g. ladder: {EXAMPLE}.")
    if len(rungs) < MIN_RUNGS:
        problem = f"a ladder of {len(rungs)} rungs has no worth: with a law of three parameters, it needs {MIN_RUNGS}"
        raise UserError(problem, path=("ladder",), remedy=f"Add rungs, e.g. {EXAMPLE}, or remove measure.worth.")
    for path in rungs[0].changes or rungs[1].changes:
        if path.split(".")[0] == "task":
            problem = f"the ladder changes {path}, and losses on different data have no common scaling law"
            raise UserError(problem, path=("ladder", path), remedy="Remove the path, or measure.worth.")
    if metric.better != "min" or metric.bounds[0] < 0:
        problem = f"{spec.measure.primary} does not fall towards a bound of at least 0, so it has no scaling law"
        raise UserError(problem, path=("measure", "primary"), remedy="Use a loss, e.g. val/loss.")
