"""What is stored of a study and its runs, refused where it has lost the shape that everything else relies on."""

from collections.abc import Mapping
from typing import Any

from taetpu.core.errors import UserError
from taetpu.store.documents import DAMAGED, RETRAIN
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder

OUTCOMES = ("finished", "diverged")


def read_study(folder: StudyFolder) -> dict[str, Any]:
    """The frozen study.

    Raises:
        UserError: none is stored here, or it has no baseline, no arms, no seeds or no plan.
    """
    study, file = folder.read_study(), f"{folder.where}/study.yaml"
    arms, seeds = study.get("arms"), study.get("seeds")
    wrong = [part for part in ("base", "plan") if not isinstance(study.get(part), Mapping)]
    if not isinstance(arms, Mapping) or not arms or not all(isinstance(arm, Mapping) for arm in arms.values()):
        wrong.append("arms")
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int for seed in seeds):
        wrong.append("seeds")
    idle = study.get("idle", {})
    if not isinstance(idle, Mapping) or not all(isinstance(paths, list) for paths in idle.values()):
        wrong.append("idle")
    if wrong or not isinstance(study.get("study"), str):
        part = (wrong or ["study"])[0]
        problem = f"the study has no {part}" if part not in study else f"{study[part]!r} cannot be the study's {part}"
        raise UserError(problem, path=(part,), file=file, remedy="put study.yaml back as it was frozen")
    return study


def read_config(run: RunFolder) -> dict[str, Any]:
    """What a run was begun as. Raises `UserError` where that is no mapping, or the config in it is none."""
    about = run.config()
    if not isinstance(about, dict) or not isinstance(about.get("config", {}), dict):
        raise UserError("this is not the config of a run", file=f"{run.where}/config.json", remedy=DAMAGED)
    return about


def read_result(run: RunFolder) -> dict[str, Any] | None:
    """What a run came to; None while it has not ended.

    Raises:
        UserError: it has no outcome, no number of steps or no metrics, or one of those is no number.
    """
    result = run.result()
    if result is None:
        return None
    problem = _wrong(result)
    if problem:
        raise UserError(problem, file=f"{run.where}/result.json", remedy=RETRAIN)
    return result


def _wrong(result: Any) -> str | None:
    """What keeps this from being a run's result."""
    if not isinstance(result, Mapping):
        return f"a run's result is a mapping, and this is a {type(result).__name__}"
    if result.get("outcome") not in OUTCOMES:
        return f"outcome {result.get('outcome')!r} is none of {', '.join(OUTCOMES)}"
    if not _is_number(result.get("steps")):
        return f"steps {result.get('steps')!r} is not a number"
    if not isinstance(result.get("metrics"), Mapping):
        return "the result has no metrics"
    odd = [name for name, value in result["metrics"].items() if value is not None and not _is_number(value)]
    return f"metric {odd[0]!r} is {result['metrics'][odd[0]]!r}, which is not a number" if odd else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
