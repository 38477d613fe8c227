"""Finished runs by the names that people give them: a folder, `study/arm/seed`, an ID, or `latest`."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from taetpu.core.errors import UserError, suggest
from taetpu.store.backend import default_root, open_store
from taetpu.store.errors import NotStored
from taetpu.store.gcs_client import parse_address
from taetpu.store.index import find_studies
from taetpu.store.runs import RESULT, RunFolder

LATEST = "latest"
RUN_ID = re.compile(r"[0-9a-f]{4,8}")
FOLDER = re.compile(r"(?P<seed>\d+)-(?P<id>[0-9a-f]{8})")
FORMS = "Use a run's folder, its ID, study/arm/seed, or latest."


def find_run(name: str | Path, root: str | Path | None = None) -> RunFolder:
    """Return the run with a name.

    Args:
        name: a run's folder, the start of its ID (at least 4 characters), `study/arm/seed`, `study/arm` if the arm has
            one finished run, or `latest` for the run that finished last.
        root: the root of the studies; by default, `TAETPU_ROOT` or `runs`.

    Raises:
        UserError: if the run does not exist, or if several runs match.
    """
    if (folder := run_in_folder(name)) is not None:
        return folder
    place, text = default_root(None if root is None else str(root)), str(name)
    if text == LATEST:
        return _latest(place)
    if RUN_ID.fullmatch(text):
        return _only([run for run in _all_runs(place) if run.id.startswith(text)], text, place)
    parts = text.strip("/").split("/")
    if len(parts) in (2, 3) and ".." not in parts and parse_address(text) is None:
        return _by_arm(parts, text, place)
    raise UserError(f"{text!r} is not a run", remedy=FORMS)


def run_in_folder(name: str | Path) -> RunFolder | None:
    """Return the run whose folder is `name`; None if this is not a run's folder."""
    address = parse_address(name)
    if address is None and not Path(name).expanduser().is_dir():
        return None
    path = address if address is not None else Path(name).expanduser().absolute()
    parts = str(path).rstrip("/").split("/")
    match = FOLDER.fullmatch(parts[-1])
    if match is None or len(parts) < 5 or parts[-3] != "runs":
        return None
    root, study, arm = "/".join(parts[:-4]), parts[-4], parts[-2]
    return RunFolder(open_store(root or "/"), study, arm, int(match["seed"]), match["id"])


def _all_runs(place: str) -> Iterator[RunFolder]:
    for study in find_studies(place):
        yield from study.runs()


def _latest(place: str) -> RunFolder:
    newest: tuple[float, RunFolder] | None = None
    for run in _all_runs(place):
        with suppress(NotStored):
            written = run.store.modified(f"{run.key}/{RESULT}")
            if newest is None or written > newest[0]:
                newest = written, run
    if newest is None:
        raise UserError(
            "no run has finished here", file=place, remedy="Train a study with `taetpu run`, or use --root."
        )
    return newest[1]


def _by_arm(parts: list[str], text: str, place: str) -> RunFolder:
    studies = {study.name: study for study in find_studies(place)}
    if parts[0] not in studies:
        raise UserError(f"no study {parts[0]!r}", file=place, remedy=suggest(parts[0], studies))
    runs = studies[parts[0]].runs()
    arms = sorted({run.arm for run in runs})
    if parts[1] not in arms:
        where = studies[parts[0]].where
        raise UserError(f"no arm {parts[1]!r} has runs in this study", file=where, remedy=suggest(parts[1], arms))
    runs = [run for run in runs if run.arm == parts[1]]
    if len(parts) == 3:
        seeds = sorted({run.seed for run in runs})
        if parts[2] not in map(str, seeds):
            shown = ", ".join(map(str, seeds))
            raise UserError(f"arm {parts[1]!r} has no seed {parts[2]}", path=(text,), remedy=f"Use one of: {shown}.")
        runs = [run for run in runs if str(run.seed) == parts[2]]
    return _only(runs, text, place)


def _only(runs: list[RunFolder], text: str, place: str) -> RunFolder:
    """Return the only run of a list; the finished one if just one run is finished."""
    if len(runs) > 1:
        runs = [run for run in runs if run.status() == "done"] or runs
    if not runs:
        raise UserError(f"no run has the ID {text!r}", file=place, remedy=FORMS)
    if len(runs) > 1:
        shown = ", ".join(f"{run.study}/{run.arm}/{run.seed} ({run.id})" for run in runs[:8])
        raise UserError(f"{text!r} matches {len(runs)} runs", file=place, remedy=f"Use one of: {shown}.")
    return runs[0]
