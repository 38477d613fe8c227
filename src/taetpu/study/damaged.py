"""Finding damaged runs of a study. Damaged runs are rejected, or moved away and trained again."""

from collections.abc import Sequence

from taetpu.core.errors import UserError
from taetpu.stats.integrity import check_record, find_damage, raise_if_damaged
from taetpu.store.backend import move_to_damaged
from taetpu.store.errors import NotStored
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder
from taetpu.study.pack_store import stored_plans
from taetpu.train.callbacks import Callback

LOST = "this run is finished and its result.json is missing"


def check_runs(folder: StudyFolder, retrain: bool, callback: Callback) -> None:
    """Verify all files of finished runs and the records of unfinished runs.

    A damaged record of an unfinished run is moved away and written again from the study file.

    Args:
        folder: the study's folder.
        retrain: whether to move damaged finished runs away, so that they are trained again.
        callback: receives a report of each damaged run or record.

    Raises:
        UserError: if a finished run is damaged and `retrain` is not set.
    """
    runs = folder.runs()
    done = [run for run in runs if run.status() == "done"]
    damaged = find_damage(done)
    damaged += [(run, [f"{run.where}: {LOST}"]) for run in runs if run not in done and _lost_result(run, folder)]
    if not retrain:
        raise_if_damaged(damaged)
    for run, problems in damaged:
        callback.on_damage(run.where, _first(problems), move_to_damaged(folder.store, folder.name, run.key))
    for run in (run for run in runs if run not in done and run not in [bad for bad, _ in damaged]):
        if problem := _record_problem(run):
            key = f"{run.key}/config.json"
            callback.on_damage(folder.store.where(key), problem, move_to_damaged(folder.store, folder.name, key))


def _lost_result(run: RunFolder, folder: StudyFolder) -> bool:
    """Return whether the result of a finished run is missing.

    The run has finished if it was evaluated and the checkpoints of its pack were deleted.
    """
    if run.is_partial_copy() or not run.has_evaluation():
        return False
    packs = [plan.id for plan in stored_plans(folder) if run in [folder.run(*key) for key in plan.runs]]
    if any(folder.store.list(f"{folder.name}/packs/{pack}") for pack in packs):
        return False
    return run.status() != "done"  # another process may have finished it since


def _first(problems: Sequence[str]) -> str:
    return problems[0] + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")


def _record_problem(run: RunFolder) -> str | None:
    """Return the problem with an unfinished run's record, or None if the record is intact or missing."""
    try:
        return next(check_record(run), None)
    except NotStored:
        return None
    except UserError as error:
        return error.problem
