"""The studies under a root and their progress."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

from taetpu.core.errors import UserError
from taetpu.store.backend import default_root, open_store
from taetpu.store.errors import NotStored
from taetpu.store.gcs_client import parse_address
from taetpu.store.study import StudyFolder


@dataclass(frozen=True)
class StudyEntry:
    """One line of `taetpu list`."""

    name: str
    where: str
    arms: int
    seeds: int
    started: int
    """Number of runs that are started but not done."""
    done: int
    """Number of (arm, seed) pairs whose run is done. Tuning trials are not counted."""
    total: int
    """Number of arms times number of seeds."""
    changed: datetime
    """Time of the last write, in UTC."""
    problem: str | None = None
    """The reason why the study cannot be read, or None. If there is a reason, `arms`, `seeds` and `total` are 0."""


def find_studies(place: str | Path, required: bool = False) -> list[StudyFolder]:
    """Return the studies at `place`, sorted by name.

    Args:
        place: a study's folder, or a root of studies.
        required: whether to raise an error if no studies exist.

    Raises:
        UserError: if `place` is a file or cannot be read, if its URL scheme is not supported, or if no required study
            is stored there.
    """
    address = parse_address(place)
    if address is None and Path(place).is_file():
        remedy = f"Pass the folder in which the study was run, such as {default_root()}/{Path(place).stem}."
        raise UserError("this is a file, not a study's folder", file=place, remedy=remedy)
    store = open_store(place)
    if store.exists("study.yaml"):
        if address is not None and address.parent:
            return [StudyFolder(open_store(str(address.parent)), address.last)]
        folder = Path(place).expanduser().absolute()
        return [StudyFolder(open_store(folder.parent), folder.name)]
    keys = [key for key in store.list("", depth=2) if key.endswith("/study.yaml")]
    if required and not keys:
        raise UserError("no study is stored here", file=place, remedy="List studies with `taetpu list --root DIR`.")
    return [StudyFolder(store, key.partition("/")[0]) for key in keys]


def list_studies(place: str | Path) -> list[StudyEntry]:
    """Return an entry for each study at `place`. The entry of a damaged study describes the damage."""
    return [_entry(folder) for folder in find_studies(place)]


def _entry(folder: StudyFolder) -> StudyEntry:
    problem, planned, arms, seeds = None, set[tuple[str, int]](), 0, 0
    try:
        study = folder.read_study()
        arms, seeds = len(study["arms"]), len(study["seeds"])
        planned = set(product(study["arms"], study["seeds"]))
    except UserError as error:
        problem = str(error)
    except (KeyError, TypeError):
        problem = f"{folder.where}/study.yaml has no arms or no seeds"
    statuses = [(run.arm, run.seed, run.status()) for run in folder.runs()]
    done = {(arm, seed) for arm, seed, status in statuses if status == "done"}
    return StudyEntry(
        name=folder.name,
        where=folder.where,
        arms=arms,
        seeds=seeds,
        started=sum(status == "started" for _, _, status in statuses),
        done=len(done if problem else done & planned),
        total=arms * seeds,
        changed=_last_write(folder),
        problem=problem,
    )


def _last_write(folder: StudyFolder) -> datetime:
    """Return the time of the last write in a study's folder, in UTC.

    Files more than five levels below the folder, such as those of checkpoints, are ignored because there are many.
    """
    times = []
    for key in folder.store.list(folder.name, depth=5):
        with suppress(NotStored):  # another process may have deleted the file
            times.append(folder.store.modified(key))
    return datetime.fromtimestamp(max(times), UTC)
