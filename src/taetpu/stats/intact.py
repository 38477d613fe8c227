"""Are a study's runs what was written, and the runs that their folders say? Asked before any number of them is used."""

from collections.abc import Sequence

from taetpu.core.errors import UserError
from taetpu.stats.bound import mislabelled
from taetpu.store.digests import Damaged
from taetpu.store.documents import RETRAIN
from taetpu.store.runs import RunFolder

MOST = 5  # problems that an error lists


def damage(runs: Sequence[RunFolder], contents: bool = True) -> list[tuple[RunFolder, list[str]]]:
    """The damaged ones of runs that are done, each with its problems, a line each.

    Args:
        contents: read every file; see `RunFolder.damage`.
    """
    found = [(run, run.find_damage(contents) or _labels(run)) for run in runs]
    return [(run, problems) for run, problems in found if problems]


def refuse(found: Sequence[tuple[RunFolder, Sequence[str]]]) -> None:
    """Raise `UserError` that lists damaged runs, if there are any."""
    if not found:
        return
    lines = [problem for _, problems in found for problem in problems]
    more = [f"and {len(lines) - MOST} more"] if len(lines) > MOST else []
    count = "1 run that is done is" if len(found) == 1 else f"{len(found)} runs that are done are"
    raise Damaged("\n  ".join([f"{count} damaged:", *lines[:MOST], *more]), file=found[0][0].where, remedy=RETRAIN)


def _labels(run: RunFolder) -> list[str]:
    try:
        return [f"{run.where}: {problem}" for problem in mislabelled(run)]
    except UserError as error:
        return [f"{error.file or run.where}: {error.problem}"]
