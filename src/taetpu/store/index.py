"""The studies under a root and their progress."""

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
"""Seconds after which a rewritten file has a new modification time on file systems with coarse timestamps too."""


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
    """Number of pairs of an arm and a seed whose run is done. Tuning trials are not counted."""
    total: int
    """Number of arms times number of seeds."""
    changed: datetime
    """Time of the last write, in UTC."""
    problem: str | None = None
    """The reason why the study cannot be read; None if it can. With a problem, `arms`, `seeds` and `total` are 0."""


def find_studies(place: str | Path) -> list[StudyFolder]:
    """Return the studies at `place`, sorted by name.

    Args:
        place: a study's folder, or a root of studies.

    Raises:
        UserError: if `place` is a file or cannot be read, or if its URL scheme is not supported.
    """
    address = parse_address(place)
    if address is None and Path(place).is_file():
        remedy = f"Name the folder in which the study was run, such as {default_root()}/{Path(place).stem}."
        raise UserError("this is a file, not a study's folder", file=place, remedy=remedy)
    store = open_store(place)
    if store.exists("study.yaml"):
        if address is not None and address.parent:
            return [StudyFolder(open_store(str(address.parent)), address.last)]
        folder = Path(place).expanduser().absolute()
        return [StudyFolder(open_store(folder.parent), folder.name)]
    keys = [key for key in store.list("", depth=2) if key.endswith("/study.yaml")]
    return [StudyFolder(store, key.partition("/")[0]) for key in keys]


def find_study(place: str | Path) -> StudyFolder:
    """Return the only study at `place`.

    Args:
        place: a study's folder, or a root that contains exactly one study.

    Raises:
        UserError: if `place` contains no study or several studies.
    """
    found = find_studies(place)
    if len(found) == 1:
        return found[0]
    if not found:
        raise UserError("no study is stored here", file=place, remedy="Run `taetpu list --root DIR` to list studies.")
    remedy = f"Name the folder of one of them: {', '.join(folder.name for folder in found)}."
    raise UserError(f"{len(found)} studies are stored here", file=place, remedy=remedy)


def list_studies(place: str | Path) -> list[StudyEntry]:
    """Return an entry for every study at `place`, with its counts. The entry of a damaged study contains its problem.

    Parsing `study.yaml` takes most of the time. The arms and seeds of a study are therefore cached in the user's cache
    folder as long as its `study.yaml` is unchanged.
    """
    index = Index(str(place))
    found = [_entry(folder, index) for folder in find_studies(place)]
    index.save()
    return found


class Index:
    """A cache of the arms and seeds of the studies at a place.

    An entry is valid while the modification time of `study.yaml` is unchanged. A damaged cache file is ignored.
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
            UserError: if `study.yaml` is damaged or missing.
            KeyError, TypeError: if `study.yaml` has no arms or no seeds.
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
        """Write the cache if it has changed. Failures are ignored."""
        if self.current == self.stored:
            return
        with suppress(OSError, TypeError, ValueError):
            disk.write_file(self.file, json.dumps(self.current).encode(), replace=True)


def _entry(folder: StudyFolder, index: Index) -> StudyEntry:
    problem, planned, arms, seeds = None, set[tuple[str, int]](), 0, 0
    try:
        names, numbers = index.arms_and_seeds(folder)
        arms, seeds = len(names), len(numbers)
        planned = set(product(names, numbers))
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
        with suppress(NotStored):  # another process may have deleted it
            times.append(folder.store.modified(key))
    return datetime.fromtimestamp(max(times), UTC)
