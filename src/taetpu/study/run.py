"""Running a study: freeze it, plan missing runs, train them pack by pack, analyse and report."""

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
from taetpu.spec.loading import load_study
from taetpu.spec.resolved_study import Study, check_frozen
from taetpu.spec.schema import MAX_SEED
from taetpu.stats.analyse import analyse
from taetpu.stats.load import read_study
from taetpu.store.backend import default_root, open_store
from taetpu.store.study import StudyFolder
from taetpu.study.arms import list_arms
from taetpu.study.damaged import check_runs
from taetpu.study.executor import Executor
from taetpu.study.freeze import freeze
from taetpu.study.matching import time_matched_steps
from taetpu.study.on_ray import RayExecutor, connected, refuse_accelerator, shared_root
from taetpu.study.pack_store import resolve_runs
from taetpu.study.reuse import Reuse, sample_runs
from taetpu.study.shards import ShardExecutor, parse_shard
from taetpu.study.tracking import tracked
from taetpu.study.trainer import Failure
from taetpu.study.tuning import choose_values, trial_study
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
        refuted: the reused runs that gave other results when they were trained again, with their differences.
        folder: the study's folder, which `taetpu.plot` accepts.
    """

    results: dict[str, Any]
    report: dict[str, str]
    failed: list[Failure]
    refuted: list[str] = field(default_factory=list)
    folder: str = ""

    def _repr_html_(self) -> str:
        """Return the display in a notebook."""
        failed = [f"{len(failure.runs)} runs failed: {failure.error}" for failure in self.failed]
        return notebook_html(self.results, self.report, [*failed, *self.refuted])

    @property
    def whole(self) -> bool:
        """Whether every run is done, and no reused run was refuted."""
        return not self.failed and not self.refuted


@dataclass(frozen=True)
class Options:
    """Options of `run_study`.

    Attributes:
        packing: how runs are packed.
        reuse: roots whose finished runs are copied instead of trained again.
        audit: the share of reused runs that is trained again to verify them.
        until_resolved: add the seeds of the next interim analysis while an arm is inconclusive.
        profile: the number of steps of each pack to trace.
        retrain_damaged: move finished runs with damaged files away, and train them again.
    """

    packing: Packing = AUTO
    reuse: tuple[str, ...] = ()
    audit: float = 0.0
    until_resolved: bool = False
    profile: int = 0
    retrain_damaged: bool = False


DEFAULTS = Options()


def run(
    file: Path | str,
    sets: Iterable[str] = (),
    *,
    root: str | None = None,
    pack: str | int = "auto",
    reuse: Iterable[str] = (),
    audit: float = 0.0,
    until_resolved: bool = False,
    profile: int = 0,
    retrain_damaged: bool = False,
    shard: str | None = None,
    wait: bool = True,
    ray: str | None = None,
    callback: Callback | None = None,
) -> Outcome:
    """Load a study file and run it under a root, as `taetpu run` does.

    Args:
        file: the study file.
        sets: changes of the baseline, each `path=value`.
        root: the folder of all studies; default: `TAETPU_ROOT`, else `./runs`.
        pack: `auto` (a rule of thumb), the most runs in a pack, or `off` (each run alone). Packs that have begun keep
            their plan.
        reuse: see `Options`; so are `audit`, `until_resolved`, `profile` and `retrain_damaged`.
        audit: see `Options`.
        until_resolved: see `Options`.
        profile: see `Options`.
        retrain_damaged: see `Options`.
        shard: the share of the packs that this process trains, `I/N`; see `study.shards`.
        wait: with a shard, wait for other shards if more packs are planned after all have finished.
        ray: the address of a Ray cluster that trains; "" for one on this host, which is started if none runs.
        callback: receives the events of training.

    Raises:
        UserError: as `load_study` and `run_study`; the shard is invalid; there is no Ray cluster; or there are several
            processes that were not started by `taetpu run`.
        SharesLeft: this shard is trained, and others are not.
    """
    options = Options(
        parse_packing(pack), tuple(reuse), parse_audit(audit), until_resolved, parse_profile(profile), retrain_damaged
    )
    share = None if shard is None else parse_shard(shard)
    if ray is not None:
        refuse_accelerator()  # before JAX starts its backend
    require_joined()
    study = load_study(file, sets)
    folder, callback = StudyFolder(open_store(default_root(root)), study.name), callback or Callback()
    if ray is not None:
        shared = shared_root(default_root(root))
        executor = RayExecutor(folder, file=Path(file).resolve(), sets=tuple(sets), root=shared)
        with connected(ray or None):
            executor.find_devices()
            return run_study(study, folder, callback, options, executor)
    if share is None:
        return run_study(study, folder, callback, options)
    staged = study.tune is not None or until_resolved
    executor = ShardExecutor(folder, shard=share, callback=callback, staged=staged, wait=wait)
    return run_study(study, folder, callback, options, executor)


def parse_audit(share: float) -> float:
    """Return the share of reused runs to train again. Raises `UserError` unless it is from 0 to 1."""
    if 0 <= share <= 1:
        return share
    raise UserError(f"`audit` must be from 0 to 1, got {share}", path=("audit",), remedy="Use e.g. 0.05.")


def parse_profile(steps: int) -> int:
    """Return the steps of each pack to trace. Raises `UserError` if they are negative."""
    if steps >= 0:
        return steps
    raise UserError(f"`profile` must be at least 0 steps, got {steps}", path=("profile",), remedy="Use e.g. 20.")


def run_study(
    study: Study, folder: StudyFolder, callback: Callback, options: Options = DEFAULTS, executor: Executor | None = None
) -> Outcome:
    """Train missing runs, then analyse and report. Called again, it resumes.

    Args:
        study: as loaded from its file.
        folder: the study's folder.
        callback: receives the events of training.
        options: see `Options`.
        executor: trains the packs; default: this process, with those of its JAX cluster.

    Raises:
        UserError: an arm's data cannot be used, its model cannot be built, or it breaks the arm contract (nothing is
            stored then); a finished run is damaged, and `retrain_damaged` is not set; another process holds the study's
            folder, the folder holds another study, or the disk is full.
    """
    if options.until_resolved and not study.measure.looks:
        first = len(study.seeds)
        problem = f"--until-resolved requires planned interim analyses; none follows the {first} seeds"
        looks = f"measure: {{looks: [{max(first, 2)}, {2 * max(first, 2)}]}}"
        remedy = f"Write `{looks}` before the first run."
        raise study.document.locate(UserError(problem, path=("measure", "looks"), remedy=remedy))
    executor = executor or Executor(folder)
    reuse = Reuse(folder, options.reuse)
    refuse_another(study, folder)  # before the contract is checked, which may take long
    checked, _ = check_study(study, place=executor.place)
    if executor.place is None:
        refuse_too_large(checked, resolve_runs(checked, folder))
    with executor.claim(), tracked(study, folder, callback, executor.live) as callback:
        check_runs(folder, options.retrain_damaged, callback)
        callback.on_study_begin(study.measure.primary)
        runner = StudyRunner(study, folder, callback, options, executor, reuse)
        runner.match_times()
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
            freeze(runner.with_arms(seeds), folder)
            callback.on_seeds_added(seeds)


def refuse_another(study: Study, folder: StudyFolder) -> None:
    """Raise `UserError` where the folder holds another study."""
    if folder.exists():
        check_frozen(read_study(folder), study)


@dataclass
class StudyRunner:
    """Trains, analyses and reports a study up to its next interim analysis; see `run_study`.

    Attributes:
        study: as loaded from its file.
        steps: the steps of arms matched by time.
    """

    study: Study
    folder: StudyFolder
    callback: Callback
    options: Options
    executor: Executor
    reuse: Reuse
    steps: dict[str, int] = field(default_factory=dict)

    def match_times(self) -> None:
        """Measure the steps of arms matched by time, unless an earlier run of the study did, and store them."""
        known = read_study(self.folder).get("matching", {}) if self.folder.exists() else {}
        seconds = partial(self.executor.seconds_per_step, self.study, callback=self.callback)
        self.steps = time_matched_steps(self.study, seconds, known)
        if self.steps:
            freeze(self.with_arms(self.study.seeds), self.folder, matching={**known, **self.steps})

    def with_arms(self, seeds: tuple[int, ...], tuning: Mapping[str, Any] | None = None) -> Study:
        """Return the study on some seeds with all arms that are known."""
        return self.study.changed(arms=list_arms(self.study, self.steps, tuning), seeds=seeds)

    def run_until_analysis(self, seeds: tuple[int, ...]) -> Outcome | None:
        """Train every arm on some seeds, then the trials of tuning and the tuned arms; analyse and report.

        Returns:
            None where another process analysed these seeds meanwhile and added more.
        """
        untuned = self.with_arms(seeds)
        freeze(untuned, self.folder)
        reused, failed = self.train(untuned)
        if self.options.until_resolved and len(seeds_begun(self.study, seeds, self.folder)) > len(seeds):
            return None
        if untuned.tune is not None:
            trials = trial_study(untuned)
            more = [self.train(trials)]
            best = choose_values(untuned, resolve_runs(trials, self.folder))
            if best is not None:
                tuned = self.with_arms(seeds, best)
                freeze(tuned, self.folder, tuning=best)
                more.append(self.train(tuned))
            reused += [run for runs, _ in more for run in runs]
            failed += [failure for _, failures in more for failure in failures]
        sample = sample_runs(reused, self.options.audit)
        refuted = self.executor.replicate(sample, reused, self.study, self.callback, self.options.packing)
        results = analyse(self.folder)
        if not failed:
            self.folder.delete_claims()
        return Outcome(results, build_report(self.folder), failed, refuted, self.folder.where)

    def train(self, study: Study) -> tuple[list[Run], list[Failure]]:
        """Copy runs that were trained before, and train the others. Return those that were reused, and the failures."""
        runs, options = resolve_runs(study, self.folder), self.options
        reused = self.reuse.adopt(runs, self.executor.reserved_runs())
        return reused, self.executor.train(runs, study.sources, self.callback, options.packing, options.profile)


# --- seeds of interim analyses ----------------------------------------------------------------------------------------


def next_seeds(study: Study, seeds: tuple[int, ...], results: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the seeds of the next planned interim analysis.

    None if no arm is inconclusive, or no analysis is left.
    """
    analyses = [number for number in study.measure.looks if number > len(seeds)]
    if not analyses or all(arm["verdict"] != "inconclusive" for arm in results["arms"]):
        return None
    return extend_seeds(study, seeds, analyses[0])


def seeds_begun(study: Study, seeds: tuple[int, ...], folder: StudyFolder) -> tuple[int, ...]:
    """Return these seeds with those of the interim analysis that an earlier process began to train for."""
    stored = read_study(folder)["seeds"] if folder.exists() else []
    known = (*seeds, *(seed for seed in stored if seed not in seeds))
    planned = next((number for number in study.measure.looks if number >= len(known)), len(known))
    return extend_seeds(study, known, planned)


def extend_seeds(study: Study, seeds: tuple[int, ...], number: int) -> tuple[int, ...]:
    """Return seeds with new ones up to this number, none of which tuning uses."""
    taken = {*seeds, *(study.tune.seeds if study.tune else ())}
    fresh = (seed for seed in chain(range(max(seeds) + 1, MAX_SEED + 1), range(MAX_SEED)) if seed not in taken)
    return (*seeds, *islice(fresh, number - len(seeds)))
