"""Loading of stored studies, run configs and results. Their structure is checked."""

from collections.abc import Mapping
from typing import Any, cast

from taetpu.core.errors import UserError
from taetpu.stats.results import Results, read_results
from taetpu.store.documents import DAMAGED, RETRAIN
from taetpu.store.frozen_study import FrozenStudy
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder

COMPLETED = ("finished", "stopped")
"""The outcomes of runs with a model and a value: trained to the last step, or stopped before it by `train.stop`."""
OUTCOMES = (*COMPLETED, "diverged")
UNPLANNED_SCHEMAS = (1, 2)
"""The schemas of which studies may have no analysis plan."""


def read_study(folder: StudyFolder) -> FrozenStudy:
    """Return the frozen study.

    Raises:
        UserError: If no study is stored here, or its name, baseline, arms, seeds, blocks, strata, idle overrides or
            plan are invalid.
    """
    study, file = folder.read_study(), f"{folder.where}/study.yaml"
    arms, seeds = study.get("arms"), study.get("seeds")
    parts = ("base",) if "plan" not in study and study.get("schema") in UNPLANNED_SCHEMAS else ("base", "plan")
    wrong = [part for part in parts if not isinstance(study.get(part), Mapping)]
    if not isinstance(arms, Mapping) or not arms or not all(isinstance(arm, Mapping) for arm in arms.values()):
        wrong.append("arms")
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int for seed in seeds):
        wrong.append("seeds")
    number = len(seeds) if isinstance(seeds, list) else 0
    wrong += [part for part in ("blocks", "strata") if part in study and not _are_numbers(study[part], number)]
    idle = study.get("idle", {})
    if not isinstance(idle, Mapping) or not all(isinstance(paths, list) for paths in idle.values()):
        wrong.append("idle")
    if wrong or not isinstance(study.get("study"), str):
        part = (wrong or ["study"])[0]
        problem = f"{part!r} of the study is invalid: {study[part]!r}" if part in study else f"the study has no {part}"
        raise UserError(problem, path=(part,), file=file, remedy="Restore study.yaml to its frozen content.")
    return cast(FrozenStudy, study)


def _are_numbers(groups: Any, seeds: int) -> bool:
    """Return whether this is a number of a block or stratum, from 0 on, for each seed."""
    numbers = isinstance(groups, list) and all(type(number) is int for number in groups)
    return numbers and len(groups) == seeds and set(groups) == {*range(len(set(groups)))}


def read_config(run: RunFolder) -> dict[str, Any]:
    """Return the content of a run's `config.json`.

    Raises:
        UserError: If the content or its `config` is not a mapping.
    """
    about = run.config()
    if not isinstance(about, dict) or not isinstance(about.get("config", {}), dict):
        raise UserError("the file does not contain a run's config", file=f"{run.where}/config.json", remedy=DAMAGED)
    return about


def read_result(run: RunFolder) -> dict[str, Any] | None:
    """Return the content of a run's `result.json`; None if the run has not ended.

    Raises:
        UserError: If the outcome, the steps or a metric is missing or invalid.
    """
    result = run.result()
    if result is None:
        return None
    problem = _wrong(result)
    if problem:
        raise UserError(problem, file=f"{run.where}/result.json", remedy=RETRAIN)
    return result


def run_state(run: RunFolder) -> str:
    """Return the state of a run as users see it: one of `OUTCOMES`, or `unfinished`.

    Raises:
        UserError: If the outcome, the steps or a metric is missing or invalid.
    """
    result = read_result(run)
    return "unfinished" if result is None else result["outcome"]


def _wrong(result: Any) -> str | None:
    """Return a description of the problem with an invalid result; None for a valid result."""
    if not isinstance(result, Mapping):
        return f"a run's result must be a mapping, got {type(result).__name__}"
    if result.get("outcome") not in OUTCOMES:
        return f"outcome must be one of {', '.join(OUTCOMES)}, got {result.get('outcome')!r}"
    if not is_number(result.get("steps")):
        return f"steps must be a number, got {result.get('steps')!r}"
    if not isinstance(result.get("metrics"), Mapping):
        return "the result has no metrics"
    odd = [name for name, value in result["metrics"].items() if value is not None and not is_number(value)]
    return f"metric {odd[0]!r} must be a number, got {result['metrics'][odd[0]]!r}" if odd else None


def is_number(value: Any) -> bool:
    """Return whether a value is a number and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def require_results(folder: StudyFolder) -> Results:
    """Return the stored results of a study.

    Raises:
        UserError: If there are none, or `read_results` raises an error.
    """
    results = read_results(folder)
    if results is None:
        remedy = "Run the study first with `taetpu run STUDY`."
        raise UserError(f"study {folder.name!r} has no results", file=folder.where, remedy=remedy)
    return results
