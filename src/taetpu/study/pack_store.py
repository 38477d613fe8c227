"""The packs that are stored in a study's folder, with their runs."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from taetpu.core.loading import load_config
from taetpu.spec.resolved_study import RunKey, RunSpec, Sources, Study
from taetpu.spec.schema import ResolvedConfig
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder
from taetpu.train.layout import Packing
from taetpu.train.memory import oom_kills
from taetpu.train.pack_plan import Pack, PackPlan, Run, plan_packs


def resolve_runs(study: Study, folder: StudyFolder) -> list[Run]:
    """Return the runs of a study, arm by arm, with their folders."""
    return [Run.at(spec, folder) for spec in study.runs()]


class PackStore:
    """The stored packs of a study with their runs. Each run is resolved once.

    Args:
        folder: the study's folder.
        runs: the runs that the study file names. Other runs are read from their folders.
    """

    def __init__(self, folder: StudyFolder, runs: Iterable[Run] = ()):
        self.folder, self.named = folder, list(runs)
        self.runs = {run.key: run for run in self.named}
        self.ids = {run.id for run in self.named}

    def run_folder(self, key: RunKey) -> RunFolder:
        """Return the folder of a planned run."""
        return self.runs[key].folder if key in self.runs else self.folder.run(*key)

    def load_run(self, key: RunKey) -> Run:
        """Return a planned run. If the study file does not name it, it is read from its folder."""
        if key not in self.runs:
            folder, (arm, seed, run_id) = self.folder.run(*key), key
            config = load_config(ResolvedConfig, folder.config()["config"])
            self.runs[key] = Run(arm, seed, config, run_id, folder=folder)
        return self.runs[key]

    def load_pack(self, plan: PackPlan) -> Pack:
        """Return a planned pack with its runs."""
        return Pack(plan, tuple(self.load_run(key) for key in plan.runs))

    def unfinished(self, plan: PackPlan) -> list[RunKey]:
        """Return the runs of a pack that have no result."""
        return [key for key in plan.runs if self.run_folder(key).status() != "done"]

    def missing_packs(self, clean: bool = False) -> list[Pack]:
        """Return the packs with unfinished runs that the study file names, in the order of the stored plan.

        Args:
            clean: delete the training state of finished packs, which a killed process may have left behind.
        """
        packs = []
        for plan in stored_plans(self.folder):
            missing = self.unfinished(plan)
            if any(run_id in self.ids for _, _, run_id in missing):
                packs.append(self.load_pack(plan))
            elif clean and not missing:
                self.folder.delete_pack(plan.id)
        return packs

    def start_unplanned(self) -> list[Run]:
        """Record every run that has no record. Return the runs that are neither done nor in a pack."""
        planned = {key for plan in stored_plans(self.folder) for key in plan.runs}
        new = []
        for run in self.named:
            status = run.folder.status()
            if status == "absent":
                run.folder.start(run.record())
            if run.key not in planned and status != "done":
                new.append(run)
        return new

    def plan(self, sources: Sources, packing: Packing) -> None:
        """Plan packs for the runs that are neither done nor in a pack."""
        add_plans(self.folder, self.start_unplanned(), sources, packing)

    def halve(self, packs: Sequence[Pack]) -> list[Pack]:
        """Replace the given packs by packs of half their width, and return the new packs.

        The new packs contain the unfinished runs, which start again from step 0.
        """
        halves = {pack.id: pack.plan.halved([run.key for run in pack.unfinished]) for pack in packs}
        for pack in packs:
            self.folder.delete_pack(pack.id)
        write_plans(self.folder, [new for plan in stored_plans(self.folder) for new in halves.get(plan.id, [plan])])
        return [self.load_pack(plan) for pack in packs for plan in halves[pack.id]]


def add_plans(folder: StudyFolder, new: Sequence[RunSpec], sources: Sources, packing: Packing) -> None:
    """Plan packs for new runs on this process's devices. Stored plans are kept."""
    old = stored_plans(folder)
    write_plans(folder, [*old, *plan_packs(new, [sources.prepare(run.config) for run in new], old, packing)])


def stored_plans(folder: StudyFolder) -> list[PackPlan]:
    """Return the planned packs of a study."""
    return [PackPlan.from_data(data) for data in (folder.read_plan() or {"packs": []})["packs"]]


def write_plans(folder: StudyFolder, plans: Sequence[PackPlan]) -> None:
    """Store the plans of all packs of a study. They replace the stored plans."""
    folder.write_plan({"packs": [plan.data for plan in plans]})


@contextmanager
def marked_as_training(folder: StudyFolder, pack: Pack) -> Iterator[None]:
    """Store a mark while a pack is trained. If the process is killed, the mark remains."""
    now = oom_kills()
    if now is not None:
        folder.write_pack_mark(pack.id, {"boot": now[0], "oom_kills": now[1]})
    try:
        yield
    finally:
        folder.delete_pack_mark(pack.id)


def killed_for_memory(folder: StudyFolder, pack: Pack) -> bool:
    """Return whether the process that began a pack ran out of memory before it stored any metrics.

    The system counts the processes that it killed for lack of memory, but does not name them. The process is assumed to
    be one of them if its mark remains and the count has changed since the mark was stored.
    """
    mark, now = folder.read_pack_mark(pack.id), oom_kills()
    if mark is None or now is None or mark["boot"] != now[0] or mark["oom_kills"] == now[1]:
        return False
    return not any(run.folder.has_metrics() for run in pack.runs)
