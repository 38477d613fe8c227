"""The packs that are stored in a study's folder, with their runs."""

from collections.abc import Iterable, Sequence
from itertools import chain

from taetpu.core.config_parsing import load_config
from taetpu.spec.resolved_study import RunKey, Sources, Study
from taetpu.spec.study_config import ResolvedConfig
from taetpu.store.study import StudyFolder
from taetpu.train.layout import Packing
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

    def load_run(self, key: RunKey) -> Run:
        """Return a planned run. A run that the study file does not name is read from its folder."""
        if key not in self.runs:
            folder, (arm, seed, run_id) = self.folder.run(*key), key
            config = load_config(ResolvedConfig, folder.config()["config"])
            self.runs[key] = Run(arm, seed, config, run_id, folder=folder)
        return self.runs[key]

    def load_pack(self, plan: PackPlan) -> Pack:
        """Return a planned pack with its runs."""
        return Pack.of(plan, (self.load_run(key) for key in plan.runs))

    def missing_packs(self, clean: bool = False) -> list[Pack]:
        """Return the packs with unfinished runs that the study file names, in the order of the stored plan.

        Args:
            clean: whether to delete checkpoints that a killed process left behind for finished packs.
        """
        packs = []
        for plan in stored_plans(self.folder):
            folders = {key: self.runs[key].folder if key in self.runs else self.folder.run(*key) for key in plan.runs}
            missing = [key for key, folder in folders.items() if folder.status() != "done"]
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

    def plan(self, sources: Sources, packing: Packing, *, beside: bool = False) -> None:
        """Plan packs on this process's devices for the runs that are neither done nor in a pack.

        Args:
            sources: the tasks of the study.
            packing: the value of the option `--pack`.
            beside: see `plan_packs`.
        """
        new, old = self.start_unplanned(), stored_plans(self.folder)
        plans = plan_packs(new, [sources.prepare(run.config) for run in new], old, packing, beside=beside)
        write_plans(self.folder, [*old, *plans])

    def halve(self, pack: Pack) -> list[Pack]:
        """Replace a pack by packs of half its width, and return the new packs.

        The new packs contain the unfinished runs, which start again from step 0.
        """
        halves = pack.plan.halved([run.key for run in pack.unfinished])
        self.folder.delete_pack(pack.id)
        plans = [halves if plan.id == pack.id else [plan] for plan in stored_plans(self.folder)]
        write_plans(self.folder, list(chain(*plans)))
        return [self.load_pack(plan) for plan in halves]


def stored_plans(folder: StudyFolder) -> list[PackPlan]:
    """Return the stored plans of a study's packs."""
    return [PackPlan.from_data(data) for data in (folder.read_plan() or {"packs": []})["packs"]]


def write_plans(folder: StudyFolder, plans: Sequence[PackPlan]) -> None:
    """Store the plans of all packs of a study. They replace the stored plans."""
    folder.write_plan({"packs": [plan.data for plan in plans]})
