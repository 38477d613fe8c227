"""Finding damaged runs of a study, which are rejected or moved away so that they are trained again."""

from collections.abc import Sequence

from taetpu.core.errors import UserError
from taetpu.stats.integrity import check_record, find_damage, raise_if_damaged
from taetpu.store.backend import move_to_damaged
from taetpu.store.names import NotStored
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder
from taetpu.train.callbacks import Callback


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
    runs = folder.runs()
    done = [run for run in runs if run.status() == "done"]
    found = find_damage(done)
    if not retrain:
        raise_if_damaged(found)
    for run, problems in found:
        callback.on_damage(run.where, _first(problems), move_to_damaged(folder.store, folder.name, run.key))
    for run in (run for run in runs if run not in done):
        if problem := _record_problem(run):
            key = f"{run.key}/config.json"
            callback.on_damage(folder.store.where(key), problem, move_to_damaged(folder.store, folder.name, key))


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
