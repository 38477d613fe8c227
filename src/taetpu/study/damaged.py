"""Finding damaged runs of a study, which are rejected or moved away so that they are trained again."""

from collections.abc import Sequence

from taetpu.core.errors import UserError
from taetpu.stats.integrity import check_record, find_damage, raise_if_damaged
from taetpu.store.backend import move_to_damaged
from taetpu.store.names import NotStored
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder
from taetpu.study.pack_store import PackStore, stored_plans
from taetpu.train.callbacks import Callback
from taetpu.train.pack_plan import PackPlan

LOST = "this run is finished and its result.json is missing"

UNRECORDED = "the file is missing and is written again"


def check_runs(folder: StudyFolder, retrain: bool, callback: Callback) -> None:
    """Verify all files of finished runs and the records of unfinished runs.

    A damaged record of an unfinished run is moved away and written again from the study file.

    Args:
        folder: the study's folder.
        retrain: move damaged finished runs away, so that they are trained again.
        callback: receives a report of each damaged run or record.

    Raises:
        UserError: if a finished run is damaged and `retrain` is not set.
    """
    for place, problem, moved in _checked(folder, retrain):
        callback.on_damage(place, problem, moved)


def _checked(folder: StudyFolder, retrain: bool) -> list[tuple[str, str, str]]:
    runs = folder.runs()
    done = [run for run in runs if run.status() == "done"]
    found = find_damage(done) + [
        (run, [f"{run.where}: {LOST}"]) for run in runs if run not in done and _lost(run, folder)
    ]
    if not retrain:
        raise_if_damaged(found)
    moved = [
        (run.where, _first(problems), move_to_damaged(folder.store, folder.name, run.key)) for run, problems in found
    ]
    for run in (run for run in runs if run not in done and run not in [bad for bad, _ in found]):
        problem = _of_record(run)
        if problem:
            key = f"{run.key}/config.json"
            moved.append((folder.store.where(key), problem, move_to_damaged(folder.store, folder.name, key)))
    return moved + [(f"{run.where}/config.json", UNRECORDED, "") for run in _unrecorded(folder, runs)]


def _lost(run: RunFolder, folder: StudyFolder) -> bool:
    """Return whether the result of a finished run is missing.

    The run has finished if it was evaluated and the training state of its pack was deleted.
    """
    if not run.has_evaluation():
        return False
    packs = [plan.id for plan, runs in _planned_runs(folder) if run.key in {planned.key for planned in runs}]
    if any(folder.store.list(f"{folder.name}/packs/{pack}") for pack in packs):
        return False
    return run.status() != "done"  # another process may have finished it since


def _unrecorded(folder: StudyFolder, recorded: Sequence[RunFolder]) -> list[RunFolder]:
    """Return planned runs that have files but no record. The record must have been lost, since it is written first."""
    known = {run.key for run in recorded}
    planned = [run for _, runs in _planned_runs(folder) for run in runs]
    return [run for run in planned if run.key not in known and folder.store.list(run.key)]


def _planned_runs(folder: StudyFolder) -> list[tuple[PackPlan, list[RunFolder]]]:
    """Return each planned pack with the folders of its runs."""
    packs = PackStore(folder)
    return [(plan, [packs.run_folder(key) for key in plan.runs]) for plan in stored_plans(folder)]


def _first(problems: Sequence[str]) -> str:
    return problems[0] + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")


def _of_record(run: RunFolder) -> str | None:
    """Return the problem with an unfinished run's record, or None if the record is intact or missing."""
    try:
        return next(check_record(run), None)
    except NotStored:
        return None
    except UserError as error:
        return error.problem
