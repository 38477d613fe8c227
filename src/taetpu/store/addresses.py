"""Addresses: the names by which commands and functions refer to stored studies, arms and runs.

An address is `STUDY`, `STUDY/ARM`, `STUDY/ARM/SEED`, the start of a run's ID, `latest`, or a path. It is read as a path
first, then as a study under the root of studies, then as an ID.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from taetpu.core.errors import UserError, suggest
from taetpu.store.backend import default_root, open_store
from taetpu.store.errors import ADDRESS_FORMS, LATEST, NotStored
from taetpu.store.gcs_client import parse_address
from taetpu.store.index import find_studies
from taetpu.store.runs import RESULT, RunFolder
from taetpu.store.study import StudyFolder

RUN_ID = re.compile(r"[0-9a-f]{4,8}")
FOLDER = re.compile(r"(?P<seed>\d+)-(?P<id>[0-9a-f]{8})")
SHOWN = 8
"""Maximum number of runs in a remedy."""


@dataclass(frozen=True)
class Match:
    """The stored studies or runs that an address names.

    Attributes:
        studies: The studies; more than one only if the address is the path of a folder with several studies.
        arm: The arm, if the address names an arm or a run.
        seed: The seed, if the address names a seed or a run.
        run: The run, if the address is the path or the ID of a run, or is `latest`.
        root: The folder, if the address is the path of a folder that contains studies.
        address: The address.
    """

    studies: tuple[StudyFolder, ...]
    arm: str | None = None
    seed: int | None = None
    run: RunFolder | None = None
    root: str | None = None
    address: str = ""

    @property
    def name(self) -> str:
        """The study, arm and seed, as far as the address names them, joined by `/`."""
        parts = ", ".join(study.name for study in self.studies), self.arm, self.seed
        return "/".join(str(part) for part in parts if part is not None)

    @property
    def place(self) -> str:
        """The folder of the study, or the folder that contains the studies."""
        return self.root or self.studies[0].where

    @property
    def study(self) -> StudyFolder:
        """The only study.

        Raises:
            UserError: if the address names several studies.
        """
        if len(self.studies) == 1:
            return self.studies[0]
        remedy = f"Pass the folder of one of these studies: {', '.join(study.name for study in self.studies)}."
        raise UserError(f"{len(self.studies)} studies are stored here", file=self.place, remedy=remedy)

    def selects(self, run: RunFolder) -> bool:
        """Return whether the address names this run, or its study, arm or seed."""
        if self.run is not None:
            return self.run.where == run.where
        known = run.store.where(run.study) in [study.where for study in self.studies]
        return known and self.arm in (None, run.arm) and self.seed in (None, run.seed)

    def runs(self) -> list[RunFolder]:
        """Return the runs that the address names, started or done, sorted by study, arm and seed."""
        if self.run is not None:
            return [self.run]
        return [run for study in self.studies for run in study.runs() if self.selects(run)]


def resolve(
    address: str | Path, root: str | Path | None = None, *, folder: Path = Path(), finished: bool = False
) -> Match:
    """Return the studies or runs that an address names.

    Args:
        address: the address. `latest` is the study in which a run started or finished last.
        root: the root of the studies; by default, `TAETPU_ROOT` or `runs`.
        folder: the folder to which a path is relative.
        finished: whether `latest` is the run that finished last.

    Raises:
        NotStored: if no study or run has this address.
        UserError: if the study has no such arm or seed, or if the address is the ID of several runs.
    """
    text = str(address)
    return replace(_match(text, default_root(None if root is None else str(root)), folder, finished), address=text)


def _match(text: str, place: str, folder: Path, finished: bool) -> Match:
    if (match := _match_path(text, folder)) is not None:
        return match
    parts = _split(text)
    studies = {study.name: study for study in find_studies(place)}
    if parts and parts[0] in studies:
        return _narrow(studies[parts[0]], parts[1:])
    if text == LATEST:
        return _latest(studies.values(), place, finished)
    if RUN_ID.fullmatch(text):
        runs = [run for study in studies.values() for run in study.runs() if run.id.startswith(text)]
        if runs:
            return _match_run(only_run(runs, text, place))
    raise _unknown(text, studies, place, folder)


def find_study(address: str | Path, root: str | Path | None = None, *, folder: Path = Path()) -> StudyFolder:
    """Return the study with an address, or the study of the arm or run with this address.

    Args:
        address: see `resolve`. A folder with several studies is refused.
        root: see `resolve`.
        folder: see `resolve`.

    Raises:
        UserError: if there is no such study, or if the address names several.
    """
    return resolve(address, root, folder=folder).study


def find_run(address: str | Path, root: str | Path | None = None) -> RunFolder:
    """Return the run with an address.

    Args:
        address: see `resolve`. The address of a study or arm is accepted if it has one run, or one finished run;
            `latest` is the run that finished last.
        root: see `resolve`.

    Raises:
        UserError: if the run does not exist, or if several runs match.
    """
    match = resolve(address, root, finished=True)
    return only_run(match.runs(), str(address), match.place)


def find_run_folder(path: str | Path) -> RunFolder | None:
    """Return the run whose folder has a path; None if this is not a run's folder."""
    match = _match_path(str(path), Path())
    return None if match is None else match.run


def only_run(runs: list[RunFolder], text: str, place: str) -> RunFolder:
    """Return the only run of a list; the finished one if just one run is finished.

    Args:
        runs: the runs that match.
        text: the address, for errors.
        place: the folder in which the runs were sought, for errors.

    Raises:
        UserError: if there is no run, or if several runs match.
    """
    if len(runs) > 1:
        runs = [run for run in runs if run.status() == "done"] or runs
    if not runs:
        raise UserError(f"{text!r} has no runs yet", file=place, remedy="Train the study with `taetpu run`.")
    if len(runs) > 1:
        shown = ", ".join(f"{run.study}/{run.arm}/{run.seed} ({run.id})" for run in runs[:SHOWN])
        more = f", and {len(runs) - SHOWN} more" if len(runs) > SHOWN else ""
        raise UserError(f"{text!r} matches {len(runs)} runs", file=place, remedy=f"Use one of: {shown}{more}.")
    return runs[0]


# --- paths -----------------------------------------------------------------------------------------------------------


def _match_path(text: str, folder: Path) -> Match | None:
    """Return the match of a path of a run, an arm, a study or a root of studies; None if nothing is stored there.

    The path of a study may be followed by an arm and a seed.
    """
    place = _absolute(text, folder)
    if (match := _match_folder(place)) is not None:
        return match
    parts = _split(text)
    for count in (1, 2):
        head, tail = place.rsplit("/", count)[0], parts[-count:]
        if len(parts) > count and (match := _match_folder(head, nested=False)) is not None:
            return _narrow(match.studies[0], tail)
    return None


def _match_folder(place: str, nested: bool = True) -> Match | None:
    """Return the match of a folder; None if nothing is stored there.

    Args:
        place: an absolute path or the address of a bucket.
        nested: whether the folder may be that of an arm or a run, or a root of studies.
    """
    remote = parse_address(place) is not None
    if not remote and not Path(place).is_dir():
        return None
    if open_store(place).exists("study.yaml"):
        return Match(tuple(find_studies(place)))
    if not nested:
        return None
    parts = place.rstrip("/").split("/")
    if len(parts) > 4 and parts[-3] == "runs" and (run := FOLDER.fullmatch(parts[-1])):
        store = open_store("/".join(parts[:-4]) or "/")
        return _match_run(RunFolder(store, parts[-4], parts[-2], int(run["seed"]), run["id"]))
    if len(parts) > 3 and parts[-2] == "runs":
        study = StudyFolder(open_store("/".join(parts[:-3]) or "/"), parts[-3])
        if study.exists():
            return Match((study,), parts[-1])
    studies = find_studies(place)
    return Match(tuple(studies), root=place) if studies else None


def _match_run(run: RunFolder) -> Match:
    return Match((StudyFolder(run.store, run.study),), run.arm, run.seed, run)


def _absolute(text: str, folder: Path) -> str:
    address = parse_address(text)
    return str(address if address is not None else (folder / Path(text).expanduser()).absolute())


def _split(text: str) -> list[str]:
    """Return the parts of a name that is not an absolute path."""
    return [part for part in text.rstrip("/").split("/") if part != "."]


# --- names -----------------------------------------------------------------------------------------------------------


def _narrow(study: StudyFolder, parts: list[str]) -> Match:
    """Return the match of an arm, or of an arm and a seed, of a study.

    Raises:
        UserError: if the study has no runs of this arm or seed.
    """
    if not parts:
        return Match((study,))
    runs, arm = study.runs(), parts[0]
    arms = sorted({run.arm for run in runs})
    if arm not in arms:
        problem = f"no arm {arm!r} has runs in this study"
        raise UserError(problem, file=study.where, remedy=suggest(arm, arms) if arms else "Train the study first.")
    if len(parts) == 1:
        return Match((study,), arm)
    seeds = {str(run.seed): run.seed for run in sorted(runs, key=lambda run: run.seed) if run.arm == arm}
    if len(parts) > 2 or parts[1] not in seeds:
        problem = f"arm {arm!r} has no seed {'/'.join(parts[1:])}"
        raise UserError(problem, file=study.where, remedy=f"Use one of: {', '.join(seeds)}.")
    return Match((study,), arm, seeds[parts[1]])


def _latest(studies: Iterable[StudyFolder], place: str, finished: bool) -> Match:
    """Return the run that finished last, or the study in which a run started or finished last.

    Raises:
        UserError: if there is none.
    """
    newest: tuple[float, RunFolder] | None = None
    for run in (run for study in studies for run in study.runs()):
        for written in _times(run, finished):
            if newest is None or written > newest[0]:
                newest = written, run
    if newest is None:
        problem = f"no run has {'finished' if finished else 'started'} here"
        raise UserError(problem, file=place, remedy="Train a study with `taetpu run`, or use --root.")
    match = _match_run(newest[1])
    return match if finished else Match(match.studies)


def _times(run: RunFolder, finished: bool) -> Iterator[float]:
    """Yield the times at which a run finished and, unless `finished` is set, started."""
    for name in (RESULT,) if finished else (RESULT, "config.json"):
        with suppress(NotStored):
            yield run.store.modified(f"{run.key}/{name}")


def _unknown(text: str, studies: Iterable[str], place: str, folder: Path) -> NotStored:
    """Return the error for an address that nothing has."""
    parts, path = _split(text), _absolute(text, folder)
    parent = path.rpartition("/")[0]
    if parse_address(text) is not None or Path(path).exists() or (len(parts) > 1 and Path(parent).is_dir()):
        if Path(path).is_file():
            remedy = f"Pass the folder in which the study was run, such as {default_root()}/{Path(path).stem}."
            return NotStored("this is a file, not a study's folder", file=text, remedy=remedy)
        return NotStored("no study is stored here", file=text, remedy="List studies with `taetpu list --root DIR`.")
    if len(parts) > 1 and parts[0] == LATEST:
        remedy = f"Use {LATEST} alone, or STUDY/{'/'.join(parts[1:])}."
        return NotStored(f"{LATEST!r} is followed by {'/'.join(parts[1:])!r}, but takes no arm or seed", remedy=remedy)
    if len(parts) > 1:
        return NotStored(f"no study {parts[0]!r}", file=place, remedy=suggest(parts[0], studies))
    nearest = f"{suggest(text, names)} Or use" if (names := list(studies)) else "Use"
    return NotStored(f"no study or run {text!r}", file=place, remedy=f"{nearest} {ADDRESS_FORMS}.")
