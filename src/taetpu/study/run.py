"""Running a study: freeze it, plan the missing runs, train them pack by pack, ablate, analyse and report."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from taetpu.core.distributed import require_joined
from taetpu.core.errors import UserError
from taetpu.spec.frozen import check_frozen
from taetpu.spec.resolved_study import Study
from taetpu.spec.sets import Sets
from taetpu.stats.analyse import analyse
from taetpu.stats.load import read_study
from taetpu.store.backend import default_root, open_store
from taetpu.store.frozen_study import SearchStep
from taetpu.store.study import StudyFolder
from taetpu.study.added_seeds import next_seeds, require_looks, seeds_begun
from taetpu.study.arm_stages import ArmStages
from taetpu.study.damaged import check_runs
from taetpu.study.executor import Executor
from taetpu.study.freeze import freeze
from taetpu.study.goal_costs import candidate_arms, goal_costs
from taetpu.study.loading import load_study
from taetpu.study.matching import time_matched_steps
from taetpu.study.on_ray import RayExecutor, refuse_accelerator, shared_root
from taetpu.study.outcome import Failure, Outcome
from taetpu.study.pack_store import resolve_runs
from taetpu.study.post_hoc import compute_tables
from taetpu.study.ray_cluster import connected
from taetpu.study.reuse import Reuse, sample_runs
from taetpu.study.search import AnalysisOptions, check_search, refuse_shared_search, search_steps
from taetpu.study.shards import ShardExecutor
from taetpu.study.shares import parse_shard
from taetpu.study.tracking import tracked
from taetpu.study.tuning import choose_values
from taetpu.study.validate import check_stages, refuse_too_large, stage_study
from taetpu.train.callbacks import Callback
from taetpu.train.layout import AUTO, Packing
from taetpu.train.pack_plan import Run


@dataclass(frozen=True)
class Options(AnalysisOptions):
    """Options of `run_study`.

    Attributes:
        packing: how runs are packed.
        reuse: roots of studies whose finished runs are copied instead of being trained again.
        audit: the fraction of the reused runs to train again for verification. The command `taetpu run` uses 0.05 by
            default.
        profile: the number of steps to trace in each pack.
    """

    packing: Packing = AUTO
    reuse: tuple[str, ...] = ()
    audit: float = 0.0
    profile: int = 0


DEFAULTS = Options()


def run_model_file(
    file: Path | str | Mapping[str, Any],
    sets: Sets,
    *,
    root: str | None,
    options: Options,
    shard: str | None,
    wait: bool,
    ray: str | None,
    callback: Callback | None,
) -> Outcome:
    """Load a study file that trains models and run it under a root; see `run_file.run`."""
    refuse_shared_search(options, shard=shard is not None, ray=ray is not None)
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
    staged = study.tune is not None or options.until_resolved
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
    if options.until_resolved:
        require_looks(study)
    check_search(study, options, len(candidate_arms(study)))
    executor = executor or Executor(folder)
    reuse = Reuse(folder, options.reuse)
    if folder.exists():
        check_frozen(read_study(folder), study)  # before the contract check, which may take long
    stages = stage_study(study, executor.place)
    with executor.ready(stages.sized, options.packing, options.profile):
        check_stages(stages)
        if executor.place is None:
            refuse_too_large(stages.matched, resolve_runs(stages.matched, folder))
        with executor.claim(callback), tracked(study, folder, callback, executor.live) as callback:
            check_runs(folder, options.retrain_damaged, callback)
            callback.on_study_begin(study)
            runner = StudyRunner(stages, folder, callback, options, executor, reuse)
            runner.match_times()
            return runner.search() if options.search else runner.run()


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

    def run(self) -> Outcome:
        """Train, analyse and report the study, with `until_resolved` analysis after analysis."""
        study, seeds, until_resolved = self.stages.sized, self.stages.sized.seeds, self.options.until_resolved
        while True:
            if until_resolved:
                seeds = seeds_begun(study, seeds, self.folder)
            outcome = self.run_until_analysis(seeds)
            if outcome is None:  # another process has added seeds
                continue
            more = next_seeds(study, seeds, outcome.results) if until_resolved and outcome.whole else None
            if more is None:
                return outcome
            seeds = more
            freeze(self.stages.matched.changed(seeds=seeds), self.folder)
            self.callback.on_seeds_added(seeds)

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
            best = choose_values(untuned, [(run.arm, run.folder) for run in resolve_runs(trials, self.folder)])
            if best is not None:
                tuned = self.stages.tuned(best).changed(seeds=seeds)
                freeze(tuned, self.folder, tuning=best)
                more.append(self.train(tuned))
            reused += [run for runs, _ in more for run in runs]
            failed += [failure for _, failures in more for failure in failures]
        return self.conclude(untuned, reused, failed)

    def search(self) -> Outcome:
        """Train candidates of the goal one by one (see `search_steps`), then analyse and report."""
        study, reused, failed = self.stages.matched, list[Run](), list[Failure]()
        self.freeze(study)
        for step in search_steps(study, self.folder, self.options.max_runs):
            copied, failed = self.train(study, step)
            reused += copied
            if failed:
                break
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
        from taetpu.report.build import build_report

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
