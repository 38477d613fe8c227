"""Which studies are there, and how far each has come."""

import hashlib
import json
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

from taetpu.core import disk
from taetpu.core.errors import UserError
from taetpu.core.runtime import cache_folder
from taetpu.store.backend import default_root, open_store
from taetpu.store.gcs_client import parse_address
from taetpu.store.names import NotStored
from taetpu.store.study import StudyFolder

SETTLED = 2.0
"""Seconds after which a file that is written again has another time of writing, whatever the disk's clock counts."""


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
    at = parse_address(place)
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


def find_study(place: str | Path) -> StudyFolder:
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


def list_studies(place: str | Path) -> list[StudyEntry]:
    """Every study at `place` (see `find_studies`) with its counts. A damaged one is listed with its problem.

    Parsing `study.yaml` takes most of the time, so its arms and seeds are remembered in the user's cache folder for as
    long as the file is unchanged.
    """
    index = Index(str(place))
    found = [_entry(folder, index) for folder in find_studies(place)]
    index.save()
    return found


class Index:
    """The arms and seeds of the studies at a place by the names of the studies, as they were when last read.

    An entry counts while `study.yaml` has the time of writing that it had. Whatever is wrong with the index's own file,
    the studies themselves are read.
    """

    def __init__(self, place: str):
        known = place if parse_address(place) else str(Path(place).expanduser().absolute())
        self.file = cache_folder() / "studies" / f"{hashlib.sha256(known.encode()).hexdigest()[:16]}.json"
        try:
            self.stored = dict(json.loads(self.file.read_bytes()))
        except (OSError, ValueError, TypeError):
            self.stored = {}
        self.current: dict[str, Any] = {}

    def arms_and_seeds(self, folder: StudyFolder) -> tuple[list[str], list[int]]:
        """Return the arms and the seeds of a study.

        Raises:
            UserError: `study.yaml` is damaged, or gone.
            KeyError, TypeError: it has no arms or no seeds.
        """
        written, now = folder.frozen_at(), time.time()
        match self.stored.get(folder.name):
            case {"written": float(before), "arms": list(arms), "seeds": list(seeds)} if (
                before == written and {*map(type, arms)} <= {str} and {*map(type, seeds)} <= {int}
            ):
                pass
            case _:
                study = folder.read_study()
                arms, seeds = [*study["arms"]], [*study["seeds"]]
        if now - written > SETTLED:
            self.current[folder.name] = {"written": written, "arms": arms, "seeds": seeds}
        return arms, seeds

    def save(self) -> None:
        """Write the index where anything in it is new; not being able to is no error."""
        if self.current == self.stored:
            return
        with suppress(OSError, TypeError, ValueError):
            disk.write_file(self.file, json.dumps(self.current).encode(), replace=True)


def _entry(folder: StudyFolder, index: Index) -> StudyEntry:
    problem, asked, arms, seeds = None, set[tuple[str, int]](), 0, 0
    try:
        names, numbers = index.arms_and_seeds(folder)
        arms, seeds = len(names), len(numbers)
        asked = set(product(names, numbers))
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
