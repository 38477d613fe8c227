"""Running a study: freeze it, plan what is missing, train it pack by pack, analyse, report."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from taetpu.core.distributed import require_joined
from taetpu.core.errors import UserError
from taetpu.report.build import build
from taetpu.report.notebook import html
from taetpu.spec.loading import load_study
from taetpu.spec.resolved_study import Study, check_frozen
from taetpu.spec.schema import MAX_SEED
from taetpu.stats.analyse import analyse
from taetpu.stats.load import read_study
from taetpu.store.backend import default_root, open_store
from taetpu.store.study import StudyFolder
from taetpu.study.damaged import check_runs
from taetpu.study.executor import Executor
from taetpu.study.freeze import freeze
from taetpu.study.on_ray import RayExecutor, connected, refuse_accelerator, shared_root
from taetpu.study.pack_store import resolve_runs
from taetpu.study.reuse import Reuse, sample_runs
from taetpu.study.shards import ShardExecutor, parse_shard
from taetpu.study.timing import in_equal_time
from taetpu.study.tracking import tracked
from taetpu.study.trainer import Failure
from taetpu.study.tuning import choose, trials, tuned
from taetpu.study.validate import proved, refuse_too_large
from taetpu.train.callbacks import Callback
from taetpu.train.layout import AUTO, Packing, parse_packing
from taetpu.train.pack_plan import Run


@dataclass(frozen=True)
class Outcome:
    """What a study came to.

    Attributes:
        report: where it can be opened.
        failed: the packs that raised.
        refuted: what is wrong with reused runs that came out otherwise when they were trained again.
        folder: the study's, as `taetpu.plot` takes it.
    """

    results: dict[str, Any]
    report: dict[str, str]
    failed: list[Failure]
    refuted: list[str] = field(default_factory=list)
    folder: str = ""

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        failed = [f"{len(failure.runs)} runs failed: {failure.error}" for failure in self.failed]
        return html(self.results, self.report, [*failed, *self.refuted])

    @property
    def whole(self) -> bool:
        """Was every run seen to?"""
        return not self.failed and not self.refuted


@dataclass(frozen=True)
class Options:
    """How a study is run.

    Attributes:
        packing: how runs are packed.
        reuse: roots whose finished runs are taken over where they are the same.
        audit: the share of them that is trained again, to prove them.
        until_resolved: go on to the next planned look while an arm is inconclusive.
        profile: steps of each pack that are traced; none unless it is positive.
        retrain_damaged: set runs aside that were done and whose files are damaged, and train them again.
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
    """`taetpu run`: load a study file and run it under a root.

    Args:
        sets: changes of the baseline, `path=value` each.
        root: where studies live; else `TAETPU_ROOT`, else `./runs`.
        pack: how runs are packed: `auto` (by a rule of thumb), the most runs in a pack, or `off` (every run alone).
            Packs that have begun keep their plan.
        reuse, audit, until_resolved, profile, retrain_damaged: see `Options`.
        shard: the share of the packs that this process trains, `I/N`; see `study.shards`.
        wait: with a shard, wait for other shards where more packs are planned when all have finished.
        ray: train on a Ray cluster with this address; "" for one that runs on this host, else a new local one.
        callback: receives the events of training.

    Raises:
        UserError: as `load_study` and `run_study`, an invalid shard, no Ray cluster, or several processes that were not
            started by `taetpu run`.
        SharesLeft: the shard is trained, and others are not.
    """
    options = Options(
        parse_packing(pack), tuple(reuse), parse_audit(audit), until_resolved, parse_profile(profile), retrain_damaged
    )
    share = None if shard is None else parse_shard(shard)
    require_joined()
    if ray is not None:
        refuse_accelerator()
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
    """The share of reused runs to train again. Raises `UserError` unless it is from 0 to 1."""
    if 0 <= share <= 1:
        return share
    raise UserError(f"{share} is no share of the reused runs", path=("audit",), remedy="from 0 to 1, e.g. 0.05")


def parse_profile(steps: int) -> int:
    """The steps of each pack to trace. Raises `UserError` where they are fewer than none."""
    if steps >= 0:
        return steps
    raise UserError(f"{steps} steps cannot be profiled", path=("profile",), remedy="a number of steps, e.g. 20")


def run_study(
    study: Study, folder: StudyFolder, callback: Callback, options: Options = DEFAULTS, executor: Executor | None = None
) -> Outcome:
    """Train what is missing, then analyse and report. Called again, it resumes.

    Args:
        executor: trains the packs; default: this process, with those of its JAX cluster.

    Raises:
        UserError: an arm's data cannot be used, its model cannot be built, or it breaks the arm contract (nothing is
            stored then); a finished run is damaged, and `retrain_damaged` is not set; another process holds the study's
            folder, the folder holds another study, or the disk is full.
    """
    if options.until_resolved and not study.measure.looks:
        first = len(study.seeds)
        problem = f"with no looks planned, there is nothing to go on to after {first} seeds"
        remedy = f"measure: {{looks: [{max(first, 2)}, {2 * max(first, 2)}]}}, before the first run"
        raise study.document.locate(UserError(problem, path=("measure", "looks"), remedy=remedy))
    executor = executor or Executor(folder)
    reuse = Reuse(folder, options.reuse)
    refuse_another(study, folder)  # before the contract is checked, which may take long
    study, _ = proved(study, elsewhere=executor.place)
    if executor.place is None:
        refuse_too_large(study, resolve_runs(study, folder))
    with executor.claim(), tracked(study, folder, callback, executor.live) as callback:
        check_runs(folder, options.retrain_damaged, callback)
        callback.on_study_begin(study.measure.primary)
        study = in_equal_time(study, folder, callback, executor.seconds_per_step)
        runner = StudyRunner(folder, callback, options, executor, reuse)
        while True:
            if options.until_resolved:
                study = study.changed(seeds=seeds_begun(study, folder))
            outcome = runner.run_until_analysis(study)
            if outcome is None:  # another process has added seeds
                continue
            more = next_look(study, outcome.results) if options.until_resolved and outcome.whole else None
            if more is None:
                return outcome
            study = study.changed(seeds=more)
            freeze(study, folder)
            callback.on_seeds_added(more)


def refuse_another(study: Study, folder: StudyFolder) -> None:
    """Raise `UserError` where the folder holds another study."""
    if folder.exists():
        check_frozen(read_study(folder), study)


@dataclass(frozen=True)
class StudyRunner:
    """Trains, analyses and reports a study up to its next interim analysis; see `run_study`."""

    folder: StudyFolder
    callback: Callback
    options: Options
    executor: Executor
    reuse: Reuse

    def run_until_analysis(self, study: Study) -> Outcome | None:
        """Train every arm on the study's seeds, then what tuning adds; analyse and report.

        Returns:
            None where another process analysed these seeds meanwhile and added more.
        """
        freeze(study, self.folder)
        reused, failed = self.train(resolve_runs(study, self.folder), study)
        if self.options.until_resolved and len(seeds_begun(study, self.folder)) > len(study.seeds):
            return None
        if study.tune is not None:
            trial_runs = resolve_runs(trials(study), self.folder)
            more = [self.train(trial_runs, study)]
            chosen = choose(study, trial_runs)
            if chosen is not None:
                study = study.changed(arms=(*study.arms, *tuned(study, chosen)))
                freeze(study, self.folder, tuning=chosen)
                more.append(self.train(resolve_runs(study, self.folder), study))
            reused += [run for runs, _ in more for run in runs]
            failed += [failure for _, failures in more for failure in failures]
        sample = sample_runs(reused, self.options.audit)
        refuted = self.executor.replicate(sample, reused, study, self.callback, self.options.packing)
        results = analyse(self.folder)
        if not failed:
            self.folder.delete_claims()
        return Outcome(results, build(self.folder), failed, refuted, self.folder.where)

    def train(self, runs: Sequence[Run], study: Study) -> tuple[list[Run], list[Failure]]:
        """Copy runs that were trained before, and train the others. Return those that were reused, and the failures."""
        reused = self.reuse.adopt(runs, self.executor.reserved_runs())
        options = self.options
        return reused, self.executor.train(runs, study.sources, self.callback, options.packing, options.profile)


# --- looks -----------------------------------------------------------------------------------------------------------


def next_look(study: Study, results: dict[str, Any]) -> tuple[int, ...] | None:
    """The seeds up to the next planned look, while an arm is inconclusive; None where all is said, or none is left."""
    looks = [number for number in study.measure.looks if number > len(study.seeds)]
    if not looks or all(arm["verdict"] != "inconclusive" for arm in results["arms"]):
        return None
    return extended(study, study.seeds, looks[0])


def seeds_begun(study: Study, folder: StudyFolder) -> tuple[int, ...]:
    """The study's seeds, with those up to the look that an earlier process had begun to train for."""
    stored = read_study(folder)["seeds"] if folder.exists() else []
    seeds = (*study.seeds, *(seed for seed in stored if seed not in study.seeds))
    return extended(study, seeds, next((look for look in study.measure.looks if look >= len(seeds)), len(seeds)))


def extended(study: Study, seeds: tuple[int, ...], number: int) -> tuple[int, ...]:
    """Seeds with fresh ones up to this number; none of those that tuning uses."""
    taken = {*seeds, *(study.tune.seeds if study.tune else ())}
    fresh = (seed for seed in chain(range(max(seeds) + 1, MAX_SEED + 1), range(MAX_SEED)) if seed not in taken)
    return (*seeds, *islice(fresh, number - len(seeds)))
