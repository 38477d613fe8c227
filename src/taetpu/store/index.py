"""Which studies are there, and how far each has come."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from taetpu.cloud.storage import address
from taetpu.core.errors import UserError
from taetpu.store.backend import default_root, open_store
from taetpu.store.keys import NotStored
from taetpu.store.study import StudyFolder


@dataclass(frozen=True)
class StudyEntry:
    """One line of `taetpu list`."""

    name: str
    where: str
    arms: int
    seeds: int
    started: int
    """Runs with something stored that are not done."""
    done: int
    """Pairs of an arm and a seed of the study whose run is done; what tuning tried is not among them."""
    total: int
    """Arms times seeds."""
    changed: datetime
    """When anything was last written, in UTC."""
    problem: str | None = None
    """Why the study cannot be read; the counts from its file are then 0."""


def find_studies(place: str | Path) -> list[StudyFolder]:
    """The studies at `place`, by name: a study's own folder gives that one, a root gives all in it.

    Raises:
        UserError: the place cannot be read, or is of a kind that is not supported.
    """
    at = address(place)
    if at is None and Path(place).is_file():
        remedy = f"the folder is where the study was run, e.g. {default_root()}/{Path(place).stem}"
        raise UserError("this is a file, not a study's folder", file=place, remedy=remedy)
    store = open_store(place)
    if store.exists("study.yaml"):
        if at is not None and at.parent:
            return [StudyFolder(open_store(str(at.parent)), at.last)]
        folder = Path(place).expanduser().absolute()
        return [StudyFolder(open_store(folder.parent), folder.name)]
    keys = [key for key in store.list("", depth=2) if key.endswith("/study.yaml")]
    return [StudyFolder(store, key.partition("/")[0]) for key in keys]


def one_study(place: str | Path) -> StudyFolder:
    """The one study at `place`, a study's folder or a root with a single study in it.

    Raises:
        UserError: there is none, or more than one.
    """
    found = find_studies(place)
    if len(found) == 1:
        return found[0]
    if not found:
        raise UserError("no study is stored here", file=place, remedy="`taetpu list --root DIR` shows what is there")
    names = ", ".join(folder.name for folder in found)
    raise UserError(f"{len(found)} studies are stored here", file=place, remedy=f"name the folder of one of: {names}")


def studies(place: str | Path) -> list[StudyEntry]:
    """Every study at `place` (see `find_studies`) with its counts. A damaged one is listed with its problem."""
    return [_entry(folder) for folder in find_studies(place)]


def _entry(folder: StudyFolder) -> StudyEntry:
    problem, asked, arms, seeds = None, set[tuple[str, int]](), 0, 0
    try:
        study = folder.read_study()
        arms, seeds = len(study["arms"]), len(study["seeds"])
        asked = {(arm, seed) for arm in study["arms"] for seed in study["seeds"]}
    except UserError as error:
        problem = str(error)
    except (KeyError, TypeError):
        problem = f"{folder.where}/study.yaml has no arms or no seeds"
    statuses = [(run.arm, run.seed, run.status()) for run in folder.runs()]
    ended = {(arm, seed) for arm, seed, status in statuses if status == "done"}
    return StudyEntry(
        name=folder.name,
        where=folder.where,
        arms=arms,
        seeds=seeds,
        started=sum(status == "started" for _, _, status in statuses),
        done=len(ended if problem else ended & asked),
        total=arms * seeds,
        changed=_changed(folder),
        problem=problem,
    )


def _changed(folder: StudyFolder) -> datetime:
    """When the newest of its keys was written. Checkpoints, which can be many files, lie deeper and are not asked."""
    times = []
    for key in folder.store.list(folder.name, depth=5):
        with suppress(NotStored):  # a run going on elsewhere may have deleted it since
            times.append(folder.store.modified(key))
    return datetime.fromtimestamp(max(times), UTC)
