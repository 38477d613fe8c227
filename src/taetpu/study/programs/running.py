"""Running a study of a program: freeze it, run the programs of missing runs, analyse and report."""

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taetpu.core.errors import UserError
from taetpu.spec.programs.loading import load_program_study
from taetpu.spec.programs.study import ProgramStudy
from taetpu.spec.sets import Sets
from taetpu.stats.integrity import find_damage, raise_if_damaged
from taetpu.stats.load import read_study
from taetpu.store.backend import default_root, move_to_damaged, open_store
from taetpu.store.gcs_client import parse_address
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder
from taetpu.study.added_seeds import next_seeds, require_looks, seeds_begun
from taetpu.study.claiming import claim_patience, refuse_shards, waiting_claim
from taetpu.study.outcome import Outcome
from taetpu.study.programs.events import Events
from taetpu.study.programs.freezing import check_program
from taetpu.study.programs.on_ray import ray_pool, require_needs
from taetpu.study.programs.pool import machine_pool
from taetpu.study.programs.run_files import RunFiles
from taetpu.study.programs.runner import ProgramRunner
from taetpu.study.ray_cluster import connected
from taetpu.study.search import AnalysisOptions, check_search, refuse_shared_search
from taetpu.study.shares import Shard


@dataclass(frozen=True)
class ProgramOptions(AnalysisOptions):
    """Options of `run_program_study`.

    Attributes:
        shard: the share of the runs that this process has; None for all.
        wait: whether a shard waits for the runs of others if more runs will be planned after them.
        ray: the address of the Ray cluster whose nodes run the programs (see `run_file.run`); None for this machine.
    """

    shard: Shard | None = None
    wait: bool = True
    ray: str | None = None


DEFAULTS = ProgramOptions()


def open_folder(study: ProgramStudy, root: str | None) -> StudyFolder:
    """Return the folder of a study. Raises `UserError` for a bucket, since programs write to folders of a machine."""
    place = default_root(root)
    if parse_address(place) is not None:
        problem = f"programs write to folders of this machine, and {place} is a bucket"
        raise UserError(problem, path=("--root",), remedy="Use a folder as --root.")
    return StudyFolder(open_store(place), study.name)


def run_program_file(
    file: Path | str | Mapping[str, Any],
    sets: Sets = (),
    *,
    root: str | None = None,
    options: ProgramOptions = DEFAULTS,
    events: Events | None = None,
) -> Outcome:
    """Load a study file with the key `program` and run it under a root (see `run_program_study`)."""
    study = load_program_study(file, sets)
    return run_program_study(study, open_folder(study, root), options, events or Events())


def run_program_study(
    study: ProgramStudy, folder: StudyFolder, options: ProgramOptions = DEFAULTS, events: Events | None = None
) -> Outcome:
    """Run the programs of the missing runs, then analyse the study and write its report.

    A call resumes the work of an earlier call that was interrupted.

    Args:
        study: the study as loaded from its file.
        folder: the study's folder.
        options: see `ProgramOptions`.
        events: receives what happens.

    Raises:
        UserError: If the folder contains another study, a finished run is damaged, another process runs the study, or a
            program cannot be started, or there is no Ray cluster or none that fits.
        SharesLeft: If runs are left to other shards.
    """
    refuse_shared_search(options, shard=options.shard is not None, ray=options.ray is not None)
    if options.search:
        check_cost(study)
    check_search(study, options, len(study.arms))
    if options.ray is not None and options.shard is not None:
        problem = "`shard` and `ray` cannot be used together"
        raise UserError(problem, path=("shard",), remedy="Use only one of them.")
    if options.ray is not None:
        require_needs(study)
    with nullcontext() if options.ray is None else connected(options.ray or None):
        return _run_study(study, folder, options, events or Events())


def _run_study(study: ProgramStudy, folder: StudyFolder, options: ProgramOptions, events: Events) -> Outcome:
    """Run a study on this machine or on the Ray cluster that is connected (see `run_program_study`)."""
    if options.until_resolved:
        require_looks(study)
    if folder.exists():
        check_program(read_study(folder), study, finished(folder.runs()))
    staged = study.tune is not None or options.until_resolved
    make_pool = machine_pool if options.ray is None else ray_pool
    runner = ProgramRunner(folder, events, options.shard, staged, options.wait, make_pool=make_pool)
    with runner.study_claim:
        if options.shard is None:
            runner.study_claim.enter_context(waiting_claim(folder.claim, events.on_wait, claim_patience()))
            if options.ray is None:  # tasks of a killed driver may still run, and new ones wait for them
                refuse_shards(folder)
        else:
            runner.acquire()
        check_damage(folder, options.retrain_damaged, events)
        if options.search:
            return runner.search(study, options.max_runs)
        seeds = study.seeds
        while True:
            if options.until_resolved:
                seeds = seeds_begun(study, seeds, folder)
            outcome = runner.run_until_analysis(study.changed(seeds=seeds))
            more = next_seeds(study, seeds, outcome.results) if options.until_resolved and outcome.whole else None
            if more is None:
                return outcome
            seeds = more
            events.on_seeds_added(seeds)


def check_cost(study: ProgramStudy) -> None:
    """Raise `UserError` if the goal of a search minimises a cost that is known after a run only."""
    if study.goal is not None and (cost := study.goal["minimise"]) in study.program.costs:
        problem = f"{cost} is known after a run only, and --search orders the candidates by it before"
        remedy = "Use a setting that is a number, or omit --search."
        raise study.document.locate(UserError(problem, path=("goal", "minimise"), remedy=remedy))


def finished(runs: Iterable[RunFolder]) -> list[RunFolder]:
    """Return the runs that have a result."""
    return [run for run in runs if run.status() == "done"]


def check_damage(folder: StudyFolder, retrain: bool, events: Events) -> None:
    """Verify all files of finished runs.

    Args:
        folder: the study's folder.
        retrain: whether to move damaged runs away, so that their programs run again.
        events: receives a report of each damaged run.

    Raises:
        UserError: If a run is damaged and `retrain` is not set.
    """
    damaged = find_damage(finished(folder.runs()))
    if not retrain:
        raise_if_damaged(damaged)
    for run, problems in damaged:
        files = RunFiles(folder, run).key
        if folder.store.list(files):  # a program that resumes would go on from the end of the damaged run
            move_to_damaged(folder.store, folder.name, files)
        events.on_damage(run.where, problems[0], move_to_damaged(folder.store, folder.name, run.key))
