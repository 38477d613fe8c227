"""The packs of a study, as its folder keeps them: planned, begun, halved where memory does not suffice."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from taetpu.core.loading import load
from taetpu.spec.resolved_study import RunSpec, Study
from taetpu.spec.schema import ResolvedConfig
from taetpu.store.study import StudyFolder
from taetpu.study.reuse import described
from taetpu.train.layout import Packing
from taetpu.train.memory import oom_kills
from taetpu.train.pack_plan import PackPlan, plan_packs


def planned(study: Study, folder: StudyFolder, packing: Packing) -> list[PackPlan]:
    """All packs of a study: those decided before, and new ones for runs that have none. Written before any training."""
    return plan_new(study, unplanned(study, folder), folder, packing)


def unplanned(study: Study, folder: StudyFolder) -> list[RunSpec]:
    """The runs of a study that are neither done nor in a pack. Their folders are made."""
    known = {names for plan in stored_plans(folder) for names in plan.runs}
    new = []
    for run in study.runs():
        names = run.arm, run.seed, run.id
        status = folder.run(*names).status()
        if status == "absent":
            folder.run(*names).start(described(run))
        if names not in known and status != "done":
            new.append(run)
    return new


def plan_new(study: Study, new: Sequence[RunSpec], folder: StudyFolder, packing: Packing) -> list[PackPlan]:
    """All packs of a study, with new ones for some runs, as they are fastest on this process's devices."""
    old = stored_plans(folder)
    sources = [study.sources.prepare(run.config) for run in new]
    plans = [*old, *plan_packs(new, sources, old, packing)]
    write_plans(folder, plans)
    return plans


def stored_plans(folder: StudyFolder) -> list[PackPlan]:
    """The packs decided so far."""
    return [PackPlan.from_data(data) for data in (folder.read_plan() or {"packs": []})["packs"]]


def write_plans(folder: StudyFolder, plans: Sequence[PackPlan]) -> None:
    """Store the packs of a study, in place of earlier ones."""
    folder.write_plan({"packs": [plan.data for plan in plans]})


def unfinished(folder: StudyFolder, plan: PackPlan) -> list[tuple[str, int, str]]:
    """The runs of a pack that have no result."""
    return [names for names in plan.runs if folder.run(*names).status() != "done"]


def members(folder: StudyFolder, plan: PackPlan, wanted: Mapping[str, RunSpec]) -> list[RunSpec]:
    """The runs of a pack; those that the study's file names no more as they were recorded."""
    return [wanted.get(names[2]) or recorded(folder, names) for names in plan.runs]


def recorded(folder: StudyFolder, names: tuple[str, int, str]) -> RunSpec:
    """A run as its folder describes it."""
    arm, seed, run_id = names
    return RunSpec(arm, seed, load(ResolvedConfig, folder.run(*names).config()["config"]), run_id)


def halve(folder: StudyFolder, plans: Sequence[PackPlan]) -> list[PackPlan]:
    """Packs of half the width for the runs of `plans` that are not done, in their place; they begin anew."""
    halves = {plan.id: plan.halved(unfinished(folder, plan)) for plan in plans}
    for plan in plans:
        folder.delete_pack(plan.id)
    write_plans(folder, [new for plan in stored_plans(folder) for new in halves.get(plan.id, [plan])])
    return [new for plan in plans for new in halves[plan.id]]


@contextmanager
def begun(folder: StudyFolder, plan: PackPlan) -> Iterator[None]:
    """Leave a mark while a pack is trained, which outlives a process that is killed in the middle of it."""
    now = oom_kills()
    if now is not None:
        folder.write_pack_mark(plan.id, {"boot": now[0], "oom_kills": now[1]})
    try:
        yield
    finally:
        folder.delete_pack_mark(plan.id)


def killed_for_memory(folder: StudyFolder, plan: PackPlan) -> bool:
    """Was the process that began a pack killed for want of memory, before it had measured anything?

    Whom the system killed is not ours to see. But it counts how often it did so, and a mark that is still there says
    that the process did not end by itself.
    """
    mark, now = folder.read_pack_mark(plan.id), oom_kills()
    if mark is None or now is None or mark["boot"] != now[0] or mark["oom_kills"] == now[1]:
        return False
    return not any(folder.run(*names).has_metrics() for names in plan.runs)
