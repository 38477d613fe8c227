"""Running a study: freeze it, plan what is missing, train it pack by pack, analyse, report."""

import platform
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from taetpu.core.config import to_data
from taetpu.core.errors import UserError
from taetpu.core.loading import load
from taetpu.core.traced import split
from taetpu.report.build import build
from taetpu.spec.design import RunSpec, Sources, Study, check_frozen, frozen
from taetpu.spec.loading import load_study
from taetpu.spec.schema import ResolvedConfig
from taetpu.stats.analyse import analyse
from taetpu.store.backend import default_root, open_store
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder
from taetpu.train.loop import PackTrainer
from taetpu.train.pack import Program, structure_key
from taetpu.train.plan import PackPlan, plan_packs
from taetpu.train.watch import Watcher


@dataclass(frozen=True)
class Failure:
    """A pack that raised."""

    runs: tuple[RunSpec, ...]
    error: Exception


@dataclass(frozen=True)
class Outcome:
    """What a study came to: its results, where its report is, and the packs that raised."""

    results: dict[str, Any]
    report: dict[str, str]
    failed: list[Failure]


def environment() -> dict[str, Any]:
    """What the runs are trained with; it goes with every result."""
    device = jax.devices()[0]
    names = ("taetpu", "jax", "jaxlib", "equinox", "optax", "numpy")
    return {
        "device": device.device_kind,
        "platform": device.platform,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "matmul_precision": str(getattr(jax.config, "jax_default_matmul_precision", None) or "default"),
        "versions": {name: version(name) for name in names},
    }


def run(
    file: Path | str, sets: Iterable[str] = (), *, root: str | None = None, watcher: Watcher | None = None
) -> Outcome:
    """`taetpu run`: load a study file and run it under a root.

    Args:
        sets: changes of the baseline, `path=value` each.
        root: where studies live; else `TAETPU_ROOT`, else `./runs`.
        watcher: is told how training gets on.

    Raises:
        UserError: as `load_study` and `run_study`.
    """
    study = load_study(file, sets)
    folder = StudyFolder(open_store(default_root(root)), study.name)
    return run_study(study, folder, watcher or Watcher())


def run_study(study: Study, folder: StudyFolder, watcher: Watcher) -> Outcome:
    """Train what is missing, then analyse and report. Called again it goes on where it was stopped.

    Raises:
        UserError: an arm's data cannot be used (nothing is stored then), another process holds the study's folder,
            the folder holds another study, or the disk is full.
    """
    study.runs()
    with folder.claim():
        freeze(study, folder)
        failed = train_missing(study, folder, watcher)
        results = analyse(folder)
        return Outcome(results, build(folder), failed)


def freeze(study: Study, folder: StudyFolder) -> None:
    """Record what the study is. Arms and seeds may be added later; the baseline and the measure may not change."""
    asked = frozen(study)
    if folder.exists():
        asked = check_frozen(folder.read_study(), study)
    folder.write_study(asked, replace=True)


def train_missing(study: Study, folder: StudyFolder, watcher: Watcher) -> list[Failure]:
    """Train every run that has no result, pack by pack; packs begun by an earlier process first, as planned then."""
    sources = study.sources
    plans = planned(study, folder)
    open_plans = [plan for plan in plans if not all(_run(folder, names).status() == "done" for names in plan.runs)]
    for plan in plans:
        if plan not in open_plans:  # an earlier process may have been killed just before it did this
            folder.delete_pack(plan.id)
    members = {plan.id: [stored_run(folder, names) for names in plan.runs] for plan in open_plans}
    watcher.begun(sum(run_steps(run, sources) for runs in members.values() for run in runs))
    failed = []
    programs: dict[str, Program] = {}
    for number, plan in enumerate(open_plans, start=1):
        runs = members[plan.id]
        watcher.pack(number, len(open_plans), runs)
        began = time.monotonic()
        try:
            program = program_for(plan, runs, sources, programs)
            folders = [_run(folder, names) for names in plan.runs]
            PackTrainer(plan, program, runs, folders, folder, watcher, environment()).run()
        except UserError:
            raise
        except Exception as error:  # one pack's failure must not cost the others; it is reported and exits with 3
            failed.append(Failure(tuple(runs), error))
            watcher.failed(runs, error)
            continue
        folder.delete_pack(plan.id)
        record_time(folder, plan, time.monotonic() - began)
    return failed


def planned(study: Study, folder: StudyFolder) -> list[PackPlan]:
    """All packs of a study: those decided before, and new ones for runs that have none. Written before any training."""
    old = [PackPlan.from_data(data) for data in (folder.read_plan() or {"packs": []})["packs"]]
    known = {names for plan in old for names in plan.runs}
    new = [run for run in study.runs() if (run.arm, run.seed, run.id) not in known]
    for run in new:
        described = {"arm": run.arm, "seed": run.seed, "id": run.id, "config": to_data(run.config)}
        folder.run(run.arm, run.seed, run.id).start(described)
    plans = [*old, *plan_packs(new, [study.sources.of(run.config) for run in new])]
    folder.write_plan({"packs": [asdict(plan) for plan in plans]})
    return plans


def stored_run(folder: StudyFolder, names: tuple[str, int, str]) -> RunSpec:
    """A planned run as it was recorded, whatever the study's file says by now."""
    arm, seed, run_id = names
    return RunSpec(arm, seed, load(ResolvedConfig, _run(folder, names).config()["config"]), run_id)


def _run(folder: StudyFolder, names: tuple[str, int, str]) -> RunFolder:
    return folder.run(*names)


def program_for(plan: PackPlan, runs: Sequence[RunSpec], sources: Sources, programs: dict[str, Program]) -> Program:
    """The program of a pack; packs of one structure and width share it. Only the last one is kept in memory."""
    structure = split(runs[0].config, frozenset(plan.live))[0]
    source = sources.of(runs[0].config)
    key = f"{plan.width} {plan.devices} {structure_key(structure)}"
    if key not in programs:
        programs.clear()
        steps = structure.train.total_steps(source.num_windows)
        programs[key] = Program(structure, source, steps=steps, width=plan.width, devices=plan.devices)
    return programs[key]


def run_steps(run: RunSpec, sources: Sources) -> int:
    """Optimizer steps of a run."""
    return run.config.train.total_steps(sources.of(run.config).num_windows)


def record_time(folder: StudyFolder, plan: PackPlan, seconds: float) -> None:
    """Note how long a pack took in this process, apart from the results."""
    times = folder.read_times() or {"packs": {}}
    times["packs"][plan.id] = {"seconds": round(seconds, 3), "runs": len(plan.runs)}
    folder.write_times(times)
