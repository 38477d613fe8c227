"""Searches: training the candidates of a goal one by one, as far as the answer needs them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from taetpu.core.errors import UserError
from taetpu.spec.goal import EXAMPLE
from taetpu.spec.loaded_study import LoadedStudy
from taetpu.stats.goal import goal_arms, goal_metrics, read_levels
from taetpu.stats.goal_search import check_max_runs, count_runs, next_step
from taetpu.stats.load import read_study
from taetpu.stats.results_table import read_table
from taetpu.store.frozen_study import SearchStep
from taetpu.store.study import StudyFolder


@dataclass(frozen=True)
class AnalysisOptions:
    """Options of studies of models and of programs.

    Attributes:
        until_resolved: add the seeds of the next interim analysis while an arm is inconclusive.
        retrain_damaged: move away finished runs with damaged files and train these runs again.
        search: train the candidates of the goal in the order that answers it soonest, and leave the others untrained.
        max_runs: the largest number of runs of a search; None for no limit.
    """

    until_resolved: bool = False
    retrain_damaged: bool = False
    search: bool = False
    max_runs: int | None = None


def refuse_shared_search(options: AnalysisOptions, *, shard: bool, ray: bool) -> None:
    """Raise `UserError` if a search would be shared by several processes, which cannot decide together."""
    for name, given in (("--shard", shard), ("--on ray", ray), ("--until-resolved", options.until_resolved)):
        if options.search and given:
            problem = f"--search and {name} cannot be used together"
            raise UserError(problem, path=("--search",), remedy=f"Remove {name}.")


def check_search(study: LoadedStudy[Any], options: AnalysisOptions, candidates: int) -> None:
    """Raise `UserError` if a study with a number of candidates cannot be searched with these options."""
    if not options.search:
        if options.max_runs is not None:
            problem = "--max-runs limits a search, and --search is not given"
            raise UserError(problem, path=("--max-runs",), remedy="Add --search.")
        return
    if study.goal is None:
        remedy = f"Add e.g. `goal: {EXAMPLE}` to the study file before the first run."
        raise study.document.locate(UserError("--search requires a goal", path=("goal",), remedy=remedy))
    check_max_runs(study.goal, candidates, len(study.seeds), options.max_runs)


def search_steps(study: LoadedStudy[Any], folder: StudyFolder, max_runs: int | None) -> Iterator[SearchStep]:
    """Yield what a search trains next, as `next_step` decides from the results so far. The study is frozen.

    Each decision is stored before its runs are trained. A call that resumes a search makes the same decisions.
    """
    goal, frozen, steps = study.goal, read_study(folder), list[SearchStep]()
    assert goal is not None, "check_search refuses studies without a goal"
    arms, metrics = goal_arms(goal, frozen), goal_metrics(goal, frozen)
    while True:
        levels = read_levels(read_table(folder, frozen, metrics), frozen.get("goal_costs", {}), arms, steps)
        step = next_step(goal, levels, study.seeds, study.measure.alpha)
        if step is None or (max_runs or math.inf) < count_runs([*steps, step]):
            return
        folder.add_search_step(len(steps), step)
        steps.append(step)
        yield step
