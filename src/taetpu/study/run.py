"""Running a study: freeze it, plan what is missing, train it pack by pack, analyse, report."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

from taetpu.contract.check import check
from taetpu.core.errors import UserError
from taetpu.core.traced import active
from taetpu.report.build import build
from taetpu.spec.design import Arm, Study
from taetpu.spec.loading import load_study
from taetpu.stats.analyse import analyse
from taetpu.store.backend import default_root, open_store
from taetpu.store.study import StudyFolder
from taetpu.study.audit import Audit
from taetpu.study.freeze import freeze
from taetpu.study.matching import matched
from taetpu.study.reuse import adopt, sample
from taetpu.study.trainer import Failure, train_missing
from taetpu.study.tuning import choose, trials, tuned
from taetpu.train.calibrate import Calibration
from taetpu.train.plan import AUTO, Group, Packing, Work, auto_precision, parse_packing
from taetpu.train.watch import Watcher


@dataclass(frozen=True)
class Outcome:
    """What a study came to: its results, where its report is, and the packs that raised."""

    results: dict[str, Any]
    report: dict[str, str]
    failed: list[Failure]


@dataclass(frozen=True)
class Options:
    """How a study is run.

    Attributes:
        packing: how runs are packed.
        reuse: roots whose finished runs are taken over where they are the same.
        audit: the share of them that is trained again, to prove them.
        until_resolved: go on to the next planned look while an arm is inconclusive.
    """

    packing: Packing = AUTO
    reuse: tuple[str, ...] = ()
    audit: float = 0.0
    until_resolved: bool = False


def run(
    file: Path | str,
    sets: Iterable[str] = (),
    *,
    root: str | None = None,
    pack: str | int = "auto",
    reuse: Iterable[str] = (),
    audit: float = 0.0,
    until_resolved: bool = False,
    watcher: Watcher | None = None,
) -> Outcome:
    """`taetpu run`: load a study file and run it under a root.

    Args:
        sets: changes of the baseline, `path=value` each.
        root: where studies live; else `TAETPU_ROOT`, else `./runs`.
        pack: how runs are packed: `auto` (as measured before, or measured now where there is much to train, else by a
            rule of thumb), `measured` (always), the most runs in a pack, or `off` (every run alone). Packs that were
            begun go on as they are.
        reuse, audit, until_resolved: see `Options`.
        watcher: is told how training gets on.

    Raises:
        UserError: as `load_study` and `run_study`.
    """
    options = Options(parse_packing(pack), tuple(reuse), parse_audit(audit), until_resolved)
    study = load_study(file, sets)
    folder = StudyFolder(open_store(default_root(root)), study.name)
    return run_study(study, folder, watcher or Watcher(), options)


def parse_audit(share: float) -> float:
    """The share of reused runs to train again. Raises `UserError` unless it is from 0 to 1."""
    if 0 <= share <= 1:
        return share
    raise UserError(f"{share} is no share of the reused runs", path=("audit",), remedy="from 0 to 1, e.g. 0.05")


def run_study(study: Study, folder: StudyFolder, watcher: Watcher, options: Options = Options()) -> Outcome:
    """Train what is missing, then analyse and report. Called again it goes on where it was stopped.

    Raises:
        UserError: an arm's data cannot be used, its model not be built, or it breaks the arm contract (nothing is
            stored then); another process holds the study's folder, the folder holds another study, or the disk is full.
    """
    study.runs()
    check(study)
    with folder.claim():
        study = study.changed(arms=(*study.arms, *matched_arms(study, folder, watcher)))
        while True:
            outcome = to_look(study, folder, watcher, options)
            more = next_look(study, outcome.results) if options.until_resolved and not outcome.failed else None
            if more is None:
                return outcome
            study = study.changed(seeds=more)
            watcher.added_seeds(more)


def to_look(study: Study, folder: StudyFolder, watcher: Watcher, options: Options) -> Outcome:
    """Train every arm on the study's seeds, and then what tuning adds; analyse and report."""
    freeze(study, folder)
    taken = adopt(study, folder, options.reuse)
    failed = train_missing(study, folder, watcher, options.packing)
    if study.tune is not None:
        taken += adopt(trials(study), folder, options.reuse)
        failed += train_missing(trials(study), folder, watcher, options.packing)
        chosen = choose(study, folder)
        if chosen is not None:
            study = study.changed(arms=(*study.arms, *tuned(study, chosen)))
            freeze(study, folder, chosen)
            taken += adopt(study, folder, options.reuse)  # also what tuning left as it was
            failed += train_missing(study, folder, watcher, options.packing)
    Audit(study, folder, watcher, options.packing).prove(sample(taken, options.audit))
    results = analyse(folder)
    return Outcome(results, build(folder), failed)


def matched_arms(study: Study, folder: StudyFolder, watcher: Watcher) -> list[Arm]:
    """The study's matched arms; those matched by time as they were measured when the study was first run."""
    stored = folder.read_study() if folder.exists() else {"arms": {}}
    known = {**dict.fromkeys((f"{name}@time" for name in stored["arms"]), 0), **stored.get("matching", {})}
    return matched(study, lambda arm: seconds_a_step(study, arm, watcher), known)


def seconds_a_step(study: Study, arm: Arm, watcher: Watcher) -> float:
    """What a step of one run of an arm takes, packed as its runs will be; measured here, unless this machine remembers."""
    runs = tuple(run for run in study.runs() if run.arm == arm.name)
    precision = auto_precision() if arm.config.train.precision == "auto" else arm.config.train.precision
    work = Work(Group(frozenset(active(arm.config)), runs), study.source(arm), precision)
    calibration = Calibration(study.folder, tuple(plugin.file for plugin in study.plugins), watcher)
    layout = calibration(work, Packing(measure="always"))
    seconds = None if layout is None else calibration.seconds(work, layout)
    if layout is None or seconds is None:
        problem = f"the time that arm {arm.name!r} takes could not be measured"
        raise arm.explain(UserError(problem, path=("match",), remedy="match: flops"))
    return seconds / layout.width


def next_look(study: Study, results: dict[str, Any]) -> tuple[int, ...] | None:
    """The seeds up to the next planned look, while an arm is inconclusive; None where all is said, or no look is left."""
    open_arms = [arm for arm in results["arms"] if arm["verdict"] == "inconclusive"]
    looks = [number for number in results["plan"]["looks"] if number > len(study.seeds)]
    if not open_arms or not looks:
        return None
    fresh = (seed for seed in count(max(study.seeds) + 1) if seed not in study.seeds)
    return (*study.seeds, *islice(fresh, looks[0] - len(study.seeds)))
