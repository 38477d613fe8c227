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
from taetpu.spec.identity import plugin_sources
from taetpu.spec.loading import load_study
from taetpu.spec.schema import ResolvedConfig
from taetpu.stats.analyse import analyse
from taetpu.store.backend import default_root, open_store
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder
from taetpu.train.count import num_params
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
        UserError: an arm's data cannot be used or its model not be built (nothing is stored then), another process
            holds the study's folder, the folder holds another study, or the disk is full.
    """
    for run in study.runs():
        num_params(run.config.model, study.sources.of(run.config).vocab_size, run.config.task.seq_len)
    with folder.claim():
        freeze(study, folder)
        failed = train_missing(study, folder, watcher)
        results = analyse(folder)
        return Outcome(results, build(folder), failed)


def freeze(study: Study, folder: StudyFolder) -> None:
    """Record what the study is. Arms and seeds may be added later; the baseline and the measure may not change.

    Arms and seeds that the file no longer names stay recorded as far as they were trained.
    """
    asked = frozen(study)
    if folder.exists():
        asked = check_frozen(folder.read_study(), study)
        done = [run for run in folder.runs() if run.status() == "done"]
        _refuse_other_data(study, done)
        arms, seeds = {arm.name for arm in study.arms} | {run.arm for run in done}, {run.seed for run in done}
        asked["arms"] = {name: change for name, change in asked["arms"].items() if name in arms}
        asked["seeds"] = [seed for seed in asked["seeds"] if seed in {*study.seeds, *seeds}]
    for plugin in study.plugins:
        folder.write_plugin(f"{plugin.file.stem}-{plugin.sha256[:8]}.py", plugin.source)
    folder.write_study(asked, replace=True)


def _refuse_other_data(study: Study, done: Sequence[RunFolder]) -> None:
    """A trained run of an arm and seed that would now be another one: the arm's data or plug-in has changed."""
    now = {(run.arm, run.seed): run for run in study.runs()}
    for run in done:
        new = now.get((run.arm, run.seed))
        if new is not None and new.id[:8] != run.id:
            edited = run.config().get("plugins", []) != plugin_sources(new.config)
            what = "with another version of its plug-in" if edited else "on other data than its task has now"
            back = f"the plug-in back (a copy is in {study.name}/plugins)" if edited else "the data back"
            raise UserError(
                f"arm {run.arm!r} was trained {what}",
                file=run.where,
                remedy=f"nothing was changed there: give the arm another name, or bring {back}",
            )


def train_missing(study: Study, folder: StudyFolder, watcher: Watcher) -> list[Failure]:
    """Train every run that has no result, pack by pack; packs begun by an earlier process first, as planned then.

    A pack is trained whole, as it was begun, also when the file no longer names some of its runs.
    """
    sources, wanted = study.sources, {run.id: run for run in study.runs()}
    open_plans = []
    for plan in planned(study, folder):
        missing = [run_id for arm, seed, run_id in plan.runs if folder.run(arm, seed, run_id).status() != "done"]
        if not missing:
            folder.delete_pack(plan.id)  # an earlier process may have been killed just before it did this
        elif set(missing) & set(wanted):
            open_plans.append(plan)
    members = {
        plan.id: [wanted.get(names[2]) or stored_run(folder, names) for names in plan.runs] for plan in open_plans
    }
    watcher.begun(sum(run_steps(run, sources) for runs in members.values() for run in runs))
    failed = []
    programs: dict[str, Program] = {}
    for number, plan in enumerate(open_plans, start=1):
        runs = members[plan.id]
        watcher.pack(number, len(open_plans), runs)
        began = time.monotonic()
        try:
            program = program_for(plan, runs, sources, programs)
            folders = [folder.run(*names) for names in plan.runs]
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
    new = []
    for run in study.runs():
        names = run.arm, run.seed, run.id
        if folder.run(*names).status() == "absent":
            about = {"arm": run.arm, "seed": run.seed, "id": run.id, "config": to_data(run.config)}
            folder.run(*names).start({**about, "plugins": plugin_sources(run.config)})
        if names not in known:
            new.append(run)
    plans = [*old, *plan_packs(new, [study.sources.of(run.config) for run in new], old)]
    folder.write_plan({"packs": [asdict(plan) for plan in plans]})
    return plans


def stored_run(folder: StudyFolder, names: tuple[str, int, str]) -> RunSpec:
    """A planned run as it was recorded: one that the study's file names no more."""
    arm, seed, run_id = names
    return RunSpec(arm, seed, load(ResolvedConfig, folder.run(*names).config()["config"]), run_id)


def program_for(plan: PackPlan, runs: Sequence[RunSpec], sources: Sources, programs: dict[str, Program]) -> Program:
    """The program of a pack; packs of one structure and width share it. Only the last one is kept in memory."""
    structure = split(runs[0].config, frozenset(plan.live))[0]
    source = sources.of(runs[0].config)
    key = f"{plan.width} {plan.devices} {plan.precision} {structure_key(structure)}"
    if key not in programs:
        programs.clear()
        steps = structure.train.total_steps(source.num_windows)
        programs[key] = Program(
            structure, source, steps=steps, width=plan.width, devices=plan.devices, precision=plan.precision
        )
    return programs[key]


def run_steps(run: RunSpec, sources: Sources) -> int:
    """Optimizer steps of a run."""
    return run.config.train.total_steps(sources.of(run.config).num_windows)


def record_time(folder: StudyFolder, plan: PackPlan, seconds: float) -> None:
    """Note how long a pack took in this process, apart from the results."""
    times = folder.read_times() or {"packs": {}}
    times["packs"][plan.id] = {"seconds": round(seconds, 3), "runs": len(plan.runs)}
    folder.write_times(times)
