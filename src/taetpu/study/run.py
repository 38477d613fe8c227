"""Running a study: freeze it, plan what is missing, train it pack by pack, analyse, report."""

import platform
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from taetpu.contract.check import check
from taetpu.core.errors import UserError
from taetpu.core.traced import split
from taetpu.report.build import build
from taetpu.spec.design import RunSpec, Sources, Study, check_frozen, frozen
from taetpu.spec.identity import plugin_sources
from taetpu.spec.loading import load_study
from taetpu.stats.analyse import analyse
from taetpu.store.backend import default_root, open_store
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder
from taetpu.study.packs import begun, halve, killed_for_memory, members, planned, unfinished
from taetpu.train.loop import PackTrainer
from taetpu.train.memory import out_of_memory
from taetpu.train.pack import Program, structure_key
from taetpu.train.plan import AUTO, Packing, PackPlan, parse_packing
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
    file: Path | str,
    sets: Iterable[str] = (),
    *,
    root: str | None = None,
    pack: str | int = "auto",
    watcher: Watcher | None = None,
) -> Outcome:
    """`taetpu run`: load a study file and run it under a root.

    Args:
        sets: changes of the baseline, `path=value` each.
        root: where studies live; else `TAETPU_ROOT`, else `./runs`.
        pack: how runs are packed: `auto` (as measured before, or measured now where there is much to train, else by a
            rule of thumb), `measured` (always), the most runs in a pack, or `off` (every run alone). Packs that were
            begun go on as they are.
        watcher: is told how training gets on.

    Raises:
        UserError: as `load_study` and `run_study`.
    """
    packing = parse_packing(pack)
    study = load_study(file, sets)
    folder = StudyFolder(open_store(default_root(root)), study.name)
    return run_study(study, folder, watcher or Watcher(), packing)


def run_study(study: Study, folder: StudyFolder, watcher: Watcher, packing: Packing = AUTO) -> Outcome:
    """Train what is missing, then analyse and report. Called again it goes on where it was stopped.

    Raises:
        UserError: an arm's data cannot be used, its model not be built, or it breaks the arm contract (nothing is
            stored then); another process holds the study's folder, the folder holds another study, or the disk is full.
    """
    study.runs()
    check(study)
    with folder.claim():
        freeze(study, folder)
        failed = train_missing(study, folder, watcher, packing)
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


def train_missing(study: Study, folder: StudyFolder, watcher: Watcher, packing: Packing) -> list[Failure]:
    """Train every run that has no result, pack by pack; packs begun by an earlier process first, as planned then.

    A pack is trained whole, as it was begun, also when the file no longer names some of its runs. One that needs more
    memory than there is is halved, and so are those to come that share its program.
    """
    wanted = {run.id: run for run in study.runs()}
    queue = list[PackPlan]()
    for plan in planned(study, folder, packing, watcher):
        missing = unfinished(folder, plan)
        if not missing:
            folder.delete_pack(plan.id)  # an earlier process may have been killed just before it did this
        elif {run_id for _, _, run_id in missing} & set(wanted):
            queue.append(plan)
            if not packing.kept_by(plan):
                watcher.kept(plan)
    trainer = Packs(study.sources, folder, watcher, wanted)
    watcher.begun(sum(run_steps(run, study.sources) for plan in queue for run in trainer.members(plan)))
    failed, number = [], 0
    while queue:
        number, plan, queue = number + 1, queue[0], queue[1:]
        runs = trainer.members(plan)
        watcher.pack(number, number + len(queue), runs)
        error = trainer.train(plan)
        if error is not None and out_of_memory(error) and plan.width > 1:
            alike = [other for other in queue if trainer.program_key(other) == trainer.program_key(plan)]
            halves = halve(folder, [plan, *alike])
            watcher.halved(runs, halves, error)
            queue = [*halves, *(other for other in queue if other not in alike)]
        elif error is not None:
            failed.append(Failure(tuple(runs), error))
            watcher.failed(runs, error)
    return failed


@dataclass
class Packs:
    """Trains packs of a study. Packs of one structure and layout share a program; only the last is kept in memory."""

    sources: Sources
    folder: StudyFolder
    watcher: Watcher
    wanted: dict[str, RunSpec]
    programs: dict[str, Program] = field(default_factory=dict)

    def members(self, plan: PackPlan) -> list[RunSpec]:
        return members(self.folder, plan, self.wanted)

    def train(self, plan: PackPlan) -> Exception | None:
        """Train a pack to its end; gives what it raised, since one pack's failure must not cost the others."""
        if plan.width > 1 and killed_for_memory(self.folder, plan):
            return MemoryError("the process that began this pack was killed for want of memory")
        runs, began = self.members(plan), time.monotonic()
        folders = [self.folder.run(*names) for names in plan.runs]
        try:
            with begun(self.folder, plan):
                program = self.program_for(plan)
                PackTrainer(plan, program, runs, folders, self.folder, self.watcher, environment()).run()
        except UserError:
            raise
        except Exception as error:
            self.programs.clear()
            traceback.clear_frames(error.__traceback__)  # they hold the pack's arrays
            return error
        self.folder.delete_pack(plan.id)
        record_time(self.folder, plan, time.monotonic() - began)
        return None

    def program_for(self, plan: PackPlan) -> Program:
        """The program of a pack."""
        key, config = self.program_key(plan), self.members(plan)[0].config
        if key not in self.programs:
            self.programs.clear()
            structure, source = split(config, frozenset(plan.live))[0], self.sources.of(config)
            steps = structure.train.total_steps(source.num_windows)
            layout = asdict(plan.layout)
            self.programs[key] = Program(structure, source, steps=steps, precision=plan.precision, **layout)
        return self.programs[key]

    def program_key(self, plan: PackPlan) -> str:
        """Equal for packs that share a program."""
        structure = split(self.members(plan)[0].config, frozenset(plan.live))[0]
        return f"{plan.layout} {plan.precision} {structure_key(structure)}"


def run_steps(run: RunSpec, sources: Sources) -> int:
    """Optimizer steps of a run."""
    return run.config.train.total_steps(sources.of(run.config).num_windows)


def record_time(folder: StudyFolder, plan: PackPlan, seconds: float) -> None:
    """Note how long a pack took in this process, apart from the results."""
    times = folder.read_times() or {"packs": {}}
    times["packs"][plan.id] = {"seconds": round(seconds, 3), "runs": len(plan.runs)}
    folder.write_times(times)
