"""Running a study: freeze it, plan the missing runs, train them pack by pack, ablate, analyse and report."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from taetpu.core.distributed import require_joined
from taetpu.core.errors import UserError
from taetpu.report.build import build_report
from taetpu.report.notebook import notebook_html
from taetpu.report.summary import headline
from taetpu.spec.frozen import check_frozen
from taetpu.spec.goal import EXAMPLE as GOAL_EXAMPLE
from taetpu.spec.loading import Sets
from taetpu.spec.resolved_study import Study
from taetpu.spec.study_config import MAX_SEED
from taetpu.stats.analyse import analyse
from taetpu.stats.goal import read_levels
from taetpu.stats.goal_search import check_max_runs, count_runs, next_step
from taetpu.stats.load import read_study
from taetpu.stats.results import Results
from taetpu.stats.results_table import read_table
from taetpu.store.backend import default_root, open_store
from taetpu.store.frozen_study import SearchStep
from taetpu.store.study import StudyFolder
from taetpu.study.arm_stages import ArmStages
from taetpu.study.damaged import check_runs
from taetpu.study.executor import Executor
from taetpu.study.freeze import freeze
from taetpu.study.goal_costs import goal_costs
from taetpu.study.loading import load_study
from taetpu.study.matching import time_matched_steps
from taetpu.study.on_ray import RayExecutor, connected, refuse_accelerator, shared_root
from taetpu.study.pack_store import resolve_runs
from taetpu.study.pack_training import Failure
from taetpu.study.post_hoc import FailedTable, compute_tables
from taetpu.study.reuse import Reuse, sample_runs
from taetpu.study.shards import ShardExecutor, parse_shard
from taetpu.study.tracking import tracked
from taetpu.study.tuning import choose_values
from taetpu.study.validate import check_study, refuse_too_large
from taetpu.train.callbacks import Callback
from taetpu.train.layout import AUTO, Packing, parse_packing
from taetpu.train.pack_plan import Run


@dataclass(frozen=True)
class Outcome:
    """The outcome of `taetpu.run`.

    Attributes:
        results: the content of `results.json`.
        report: the addresses of the report, by format.
        failed: the packs that failed.
        refuted: one message for each reused run whose results differed when it was trained again.
        folder: the study's folder. It can be passed to `taetpu.plot`.
        failed_tables: the post-hoc ablation tables that could not be computed.
    """

    results: Results
    report: dict[str, str]
    failed: list[Failure]
    refuted: list[str] = field(default_factory=list)
    folder: str = ""
    failed_tables: list[FailedTable] = field(default_factory=list)

    def __repr__(self) -> str:
        """Return the study's name and headline, and the number of packs that failed."""
        failed = f"; {len(self.failed)} packs failed" if self.failed else ""
        return f"Outcome({self.results['study']}: {headline(self.results)}{failed})"

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook displays."""
        failed = [f"{len(failure.runs)} runs failed: {failure.error}" for failure in self.failed]
        failed += [f"table {table.name} failed: {table.run.where}: {table.error}" for table in self.failed_tables]
        return notebook_html(self.results, self.report, [*failed, *self.refuted])

    @property
    def whole(self) -> bool:
        """Whether no pack failed and no reused run was refuted."""
        return not self.failed and not self.refuted


@dataclass(frozen=True)
class Options:
    """Options of `run_study`.

    Attributes:
        packing: how runs are packed.
        reuse: roots of studies whose finished runs are copied instead of being trained again.
        audit: the fraction of the reused runs to train again for verification. The command `taetpu run` uses 0.05 by
            default.
        until_resolved: add the seeds of the next interim analysis while an arm is inconclusive.
        profile: the number of steps to trace in each pack.
        retrain_damaged: move away finished runs with damaged files and train these runs again.
        search: train the candidates of the goal in the order that answers it soonest, and leave the others untrained.
        max_runs: the largest number of runs of a search; None for no limit.
    """

    packing: Packing = AUTO
    reuse: tuple[str, ...] = ()
    audit: float = 0.0
    until_resolved: bool = False
    profile: int = 0
    retrain_damaged: bool = False
    search: bool = False
    max_runs: int | None = None


DEFAULTS = Options()


def run(
    file: Path | str | Mapping[str, Any],
    sets: Sets = (),
    *,
    root: str | None = None,
    pack: str | int = "auto",
    reuse: Iterable[str] = (),
    audit: float = 0.0,
    until_resolved: bool = False,
    profile: int = 0,
    retrain_damaged: bool = False,
    search: bool = False,
    max_runs: int | None = None,
    shard: str | None = None,
    wait: bool = True,
    ray: str | None = None,
    callback: Callback | None = None,
) -> Outcome:
    """Load a study file and run it under a root, as `taetpu run` does.

    Args:
        file: the study file, or a dictionary with its content (see `taetpu.load_study`).
        sets: changes to the baseline: texts of the form `path=value`, or a dictionary of values by path.
        root: the folder of all studies. The default is `TAETPU_ROOT` if set, otherwise `./runs`.
        pack: `auto` (a rule of thumb), the maximum number of runs in a pack, or `off` (one run per pack). Packs that
            are already planned keep their plan.
        reuse: see `Options`.
        audit: see `Options`.
        until_resolved: see `Options`.
        profile: see `Options`.
        retrain_damaged: see `Options`.
        search: see `Options`.
        max_runs: see `Options`.
        shard: the share of the packs that this process trains, in the form `I/N`; see `study.shards`.
        wait: whether a shard waits for the other shards if more packs will be planned after they finish.
        ray: the address of the Ray cluster that trains the packs. With "", a cluster on this host is used, and one is
            started if none is running.
        callback: receives the training events.

    Raises:
        UserError: if `load_study` or `run_study` raises it, if the shard is invalid, if there is no Ray cluster, or if
            there are several processes that were not started by `taetpu run`, or a dictionary is given with `ray`.
        SharesLeft: if this shard is trained but other shards are not.
    """
    trained = parse_packing(pack), tuple(reuse), parse_audit(audit), until_resolved, parse_profile(profile)
    options = Options(*trained, retrain_damaged, search, max_runs)
    refuse_shared_search(options, shard, ray)
    share = None if shard is None else parse_shard(shard)
    if ray is not None:
        if isinstance(file, Mapping):
            problem = "the nodes of a Ray cluster read the study file, and this study is a dictionary"
            raise UserError(problem, path=("ray",), remedy="Write the study to a file, or remove `ray`.")
        refuse_accelerator()  # before JAX starts its backend
    require_joined()
    if not isinstance(sets, str | Mapping):
        sets = tuple(sets)  # an iterator could not be read again for the nodes of a Ray cluster
    study = load_study(file, sets)
    folder, callback = StudyFolder(open_store(default_root(root)), study.name), callback or Callback()
    if ray is not None:
        shared = shared_root(default_root(root))
        executor = RayExecutor(folder, file=Path(str(file)).resolve(), sets=sets, root=shared)
        with connected(ray or None):
            executor.find_devices()
            return run_study(study, folder, callback, options, executor)
    if share is None:
        return run_study(study, folder, callback, options)
    staged = study.tune is not None or until_resolved
    executor = ShardExecutor(folder, shard=share, staged=staged, wait=wait)
    return run_study(study, folder, callback, options, executor)


def parse_audit(share: float) -> float:
    """Return the fraction of the reused runs to train again. Raises `UserError` unless it is between 0 and 1."""
    if 0 <= share <= 1:
        return share
    raise UserError(f"`audit` must be from 0 to 1, got {share}", path=("audit",), remedy="Use e.g. 0.05.")


def parse_profile(steps: int) -> int:
    """Return the number of steps to trace in each pack. Raises `UserError` if it is negative."""
    if steps >= 0:
        return steps
    raise UserError(f"`profile` must be at least 0 steps, got {steps}", path=("profile",), remedy="Use e.g. 20.")


def run_study(
    study: Study, folder: StudyFolder, callback: Callback, options: Options = DEFAULTS, executor: Executor | None = None
) -> Outcome:
    """Train the missing runs, then analyse the study and write its report.

    A call resumes the work of an earlier call that was interrupted.

    Args:
        study: the study as loaded from its file.
        folder: the study's folder.
        callback: receives the training events.
        options: see `Options`.
        executor: trains the packs. By default, this process and the other processes of its JAX cluster train them.

    Raises:
        UserError: if an arm's data cannot be used, if its model cannot be built, or if it breaks the arm contract (in
            these cases nothing is stored); if a finished run is damaged and `retrain_damaged` is not set; if another
            process holds the study's claim, if the folder contains another study, or if the disk is full.
    """
    if options.until_resolved and not study.measure.looks:
        first = len(study.seeds)
        problem = f"--until-resolved requires an interim analysis after the first {first} seeds, but none is planned"
        looks = f"measure: {{looks: [{max(first, 2)}, {2 * max(first, 2)}]}}"
        remedy = f"Add `{looks}` to the study file before the first run."
        raise study.document.locate(UserError(problem, path=("measure", "looks"), remedy=remedy))
    check_search(study, options)
    executor = executor or Executor(folder)
    reuse = Reuse(folder, options.reuse)
    if folder.exists():
        check_frozen(read_study(folder), study)  # before the contract check, which may take long
    stages, _ = check_study(study, place=executor.place)
    if executor.place is None:
        refuse_too_large(stages.matched, resolve_runs(stages.matched, folder))
    with executor.claim(callback), tracked(study, folder, callback, executor.live) as callback:
        check_runs(folder, options.retrain_damaged, callback)
        callback.on_study_begin(study)
        runner = StudyRunner(stages, folder, callback, options, executor, reuse)
        runner.match_times()
        if options.search:
            return runner.search()
        seeds = study.seeds
        while True:
            if options.until_resolved:
                seeds = seeds_begun(study, seeds, folder)
            outcome = runner.run_until_analysis(seeds)
            if outcome is None:  # another process has added seeds
                continue
            more = next_seeds(study, seeds, outcome.results) if options.until_resolved and outcome.whole else None
            if more is None:
                return outcome
            seeds = more
            freeze(runner.stages.matched.changed(seeds=seeds), folder)
            callback.on_seeds_added(seeds)


@dataclass
class StudyRunner:
    """Trains, analyses and reports a study up to its next interim analysis; see `run_study`.

    Attributes:
        stages: the study with its arms at each stage.
    """

    stages: ArmStages
    folder: StudyFolder
    callback: Callback
    options: Options
    executor: Executor
    reuse: Reuse

    def match_times(self) -> None:
        """Find the number of training steps of each arm that is matched by time, and store these numbers.

        Numbers that an earlier run of the study stored are not measured again.
        """
        known = read_study(self.folder).get("matching", {}) if self.folder.exists() else {}
        study = self.stages.sized
        seconds = partial(self.executor.seconds_per_step, study, callback=self.callback)
        self.stages = self.stages.timed(steps := time_matched_steps(study, seconds, known))
        if steps:
            freeze(self.stages.matched, self.folder, matching={**known, **steps})

    def run_until_analysis(self, seeds: tuple[int, ...]) -> Outcome | None:
        """Train the arms with the given seeds, tune the arms if the study requests it, then analyse and report.

        Before the analysis, the missing post-hoc ablation tables are computed.

        Returns:
            The outcome, or None if another process has meanwhile analysed these seeds and added seeds.
        """
        untuned, trials = self.stages.matched.changed(seeds=seeds), self.stages.trials
        self.freeze(untuned)
        reused, failed = self.train(untuned)
        if self.options.until_resolved and len(seeds_begun(untuned, seeds, self.folder)) > len(seeds):
            return None
        if trials is not None:
            more = [self.train(trials)]
            best = choose_values(untuned, resolve_runs(trials, self.folder))
            if best is not None:
                tuned = self.stages.tuned(best).changed(seeds=seeds)
                freeze(tuned, self.folder, tuning=best)
                more.append(self.train(tuned))
            reused += [run for runs, _ in more for run in runs]
            failed += [failure for _, failures in more for failure in failures]
        return self.conclude(untuned, reused, failed)

    def search(self) -> Outcome:
        """Train candidates of the goal one by one, as `next_step` decides, then analyse and report.

        Each decision is stored before its runs are trained. A call that resumes a search makes the same decisions.
        """
        study, goal, steps = self.stages.matched, self.stages.matched.goal, list[SearchStep]()
        assert goal is not None, "check_search refuses studies without a goal"
        self.freeze(study)
        frozen = read_study(self.folder)
        reused, failed = list[Run](), list[Failure]()
        while not failed:
            levels = read_levels(read_table(self.folder, frozen, goal["metric"]), frozen.get("goal_costs", {}), steps)
            step = next_step(goal, levels, study.seeds, study.measure.alpha)
            if step is None or (self.options.max_runs or math.inf) < count_runs([*steps, step]):
                break
            self.folder.add_search_step(len(steps), step)
            steps.append(step)
            copied, failed = self.train(study, step)
            reused += copied
        return self.conclude(study, reused, failed)

    def freeze(self, study: Study) -> None:
        """Freeze the study, with the costs of its candidates if it has a goal."""
        costs = {}
        if study.goal is not None:
            known = read_study(self.folder).get("goal_costs", {}) if self.folder.exists() else {}
            seconds = partial(self.executor.seconds_per_step, study, callback=self.callback)
            costs = {"goal_costs": goal_costs(study, known, seconds)}
        freeze(study, self.folder, **costs)

    def conclude(self, untuned: Study, reused: list[Run], failed: list[Failure]) -> Outcome:
        """Check a sample of the reused runs, compute post-hoc tables, analyse and report."""
        sample = sample_runs(reused, self.options.audit)
        refuted = self.executor.replicate(sample, reused, untuned, self.callback, self.options.packing)
        failed_tables = compute_tables(untuned, self.folder, self.callback)
        results = analyse(self.folder)
        if not failed:
            self.folder.delete_claims()
        return Outcome(results, build_report(self.folder), failed, refuted, self.folder.where, failed_tables)

    def train(self, study: Study, step: SearchStep | None = None) -> tuple[list[Run], list[Failure]]:
        """Copy finished runs and train the other runs, or those of a step. Return the reused runs and the failures."""
        runs, options = resolve_runs(study, self.folder), self.options
        if step is not None:
            runs = [run for run in runs if run.arm in step["arms"] and run.seed in step["seeds"]]
        reused = self.reuse.adopt(runs, self.executor.reserved_runs())
        return reused, self.executor.train(runs, study.sources, self.callback, options.packing, options.profile)


# --- search -----------------------------------------------------------------------------------------------------------


def check_search(study: Study, options: Options) -> None:
    """Raise `UserError` if a study cannot be searched with these options."""
    if options.max_runs is not None and not options.search:
        problem = "--max-runs limits a search, and --search is not given"
        raise UserError(problem, path=("--max-runs",), remedy="Add --search.")
    if not options.search:
        return
    if study.goal is None:
        remedy = f"Add e.g. `goal: {GOAL_EXAMPLE}` to the study file before the first run."
        raise study.document.locate(UserError("--search requires a goal", path=("goal",), remedy=remedy))
    check_max_runs(study.goal, len(study.arms), len(study.seeds), options.max_runs)


def refuse_shared_search(options: Options, shard: str | None, ray: str | None) -> None:
    """Raise `UserError` if a search would be shared by several processes, which cannot decide together."""
    for name, given in (("--shard", shard is not None), ("--on ray", ray is not None),
                        ("--until-resolved", options.until_resolved)):  # fmt: skip
        if options.search and given:
            problem = f"--search and {name} cannot be used together"
            raise UserError(problem, path=("--search",), remedy=f"Remove {name}.")


# --- seeds of interim analyses ----------------------------------------------------------------------------------------


def next_seeds(study: Study, seeds: tuple[int, ...], results: Results) -> tuple[int, ...] | None:
    """Return the seeds of the next planned interim analysis.

    Returns None if no arm is inconclusive or no further analysis is planned.
    """
    analyses = [number for number in study.measure.looks if number > len(seeds)]
    if not analyses or all(arm["verdict"] != "inconclusive" for arm in results["arms"]):
        return None
    return extend_seeds(study, seeds, analyses[0])


def seeds_begun(study: Study, seeds: tuple[int, ...], folder: StudyFolder) -> tuple[int, ...]:
    """Return `seeds`, extended by the seeds that an earlier process added for the next interim analysis."""
    stored = read_study(folder)["seeds"] if folder.exists() else []
    known = (*seeds, *(seed for seed in stored if seed not in seeds))
    planned = next((number for number in study.measure.looks if number >= len(known)), len(known))
    return extend_seeds(study, known, planned)


def extend_seeds(study: Study, seeds: tuple[int, ...], number: int) -> tuple[int, ...]:
    """Return `seeds`, extended to `number` seeds. The added seeds are not used for tuning."""
    taken = {*seeds, *(study.tune.seeds if study.tune else ())}
    fresh = (seed for seed in chain(range(max(seeds) + 1, MAX_SEED + 1), range(MAX_SEED)) if seed not in taken)
    return (*seeds, *islice(fresh, number - len(seeds)))
