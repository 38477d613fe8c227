"""The seeds that are added for the interim analyses of a study (`--until-resolved`)."""

from itertools import chain, islice
from typing import Any

from taetpu.core.errors import UserError
from taetpu.spec.loaded_study import LoadedStudy
from taetpu.spec.study_file import MAX_SEED
from taetpu.stats.load import read_study
from taetpu.stats.results import Results
from taetpu.store.study import StudyFolder


def require_looks(study: LoadedStudy[Any]) -> None:
    """Raise `UserError` if a study plans no interim analysis, so that no seeds can be added."""
    if study.measure.looks:
        return
    first = len(study.seeds)
    problem = f"--until-resolved requires an interim analysis after the first {first} seeds, but none is planned"
    looks = f"measure: {{looks: [{max(first, 2)}, {2 * max(first, 2)}]}}"
    remedy = f"Add `{looks}` to the study file before the first run."
    raise study.document.locate(UserError(problem, path=("measure", "looks"), remedy=remedy))


def next_seeds(study: LoadedStudy[Any], seeds: tuple[int, ...], results: Results) -> tuple[int, ...] | None:
    """Return the seeds of the next planned interim analysis.

    Returns None if no arm is inconclusive or no further analysis is planned.
    """
    analyses = [number for number in study.measure.looks if number > len(seeds)]
    if not analyses or all(arm["verdict"] != "inconclusive" for arm in results["arms"]):
        return None
    return extend_seeds(study, seeds, analyses[0])


def seeds_begun(study: LoadedStudy[Any], seeds: tuple[int, ...], folder: StudyFolder) -> tuple[int, ...]:
    """Return `seeds`, extended by the seeds that an earlier process added for the next interim analysis."""
    stored = read_study(folder)["seeds"] if folder.exists() else []
    known = (*seeds, *(seed for seed in stored if seed not in seeds))
    planned = next((number for number in study.measure.looks if number >= len(known)), len(known))
    return extend_seeds(study, known, planned)


def extend_seeds(study: LoadedStudy[Any], seeds: tuple[int, ...], number: int) -> tuple[int, ...]:
    """Return `seeds`, extended to `number` seeds. The added seeds are not used for tuning."""
    taken = {*seeds, *(study.tune.seeds if study.tune else ())}
    fresh = (seed for seed in chain(range(max(seeds) + 1, MAX_SEED + 1), range(MAX_SEED)) if seed not in taken)
    return (*seeds, *islice(fresh, number - len(seeds)))
