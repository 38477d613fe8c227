"""The gallery: studies of known results, which are part of the package, with what was measured.

`gallery/index.yaml` lists them. `gallery/NAME.yaml` is the study `gallery-NAME`, and `gallery/NAME.claims.yaml` its
expected outcome.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from taetpu.core.config import Config
from taetpu.core.config_parsing import load_config
from taetpu.core.errors import check_known
from taetpu.store.documents import from_yaml

FOLDER = "gallery"
PREFIX = "gallery-"
"""What the names of the studies start with."""
NOT_RUN = "not run yet"

Text = Annotated[str, Field(min_length=1)]


class PublishedSource(Config):
    """Who found a result."""

    by: Text
    """Authors and year."""
    title: Text
    """Title of the paper."""
    arxiv: str | None = None
    """Number on arXiv, if it is there."""
    read: Text
    """What was read of it."""


class Measured(Config):
    """What a run of a study gave."""

    outcome: Literal["reproduced", "not reproduced"]
    """Whether all claims hold."""
    values: Text
    """What was measured."""
    seconds: PositiveInt
    """Time of the command, in seconds."""
    cpu_seconds: PositiveInt | None = None
    """CPU time of the command and its children; `none`: not measured."""
    date: Annotated[str, Field(pattern=r"\d{4}-\d{2}-\d{2}")]
    """Date of the run."""
    machine: Text
    """Where it ran, and beside what."""
    reason: str = ""
    """Why the result is not reproduced, if it is known."""


class Entry(Config):
    """A study of the gallery."""

    name: Text
    """Name of the study, without `gallery-`."""
    title: Annotated[str, Field(min_length=1, max_length=60)]
    """The result in a few words."""
    claim: Text
    """The result."""
    tolerance: Text
    """How far a measurement may be from the expected outcome."""
    source: PublishedSource
    """Who found it."""
    measured: Measured | None = None
    """The last measurement; `none`: not run yet."""

    @property
    def study(self) -> str:
        """The name of the study."""
        return PREFIX + self.name

    @property
    def outcome(self) -> str:
        """The outcome in a few words."""
        return self.measured.outcome if self.measured else NOT_RUN


@cache
def read_gallery() -> Mapping[str, Entry]:
    """Return the studies of the gallery by name, in their order."""
    file = files("taetpu.study").joinpath(FOLDER, "index.yaml")
    rows = from_yaml(file.read_bytes(), str(file))
    return {name: load_config(Entry, {"name": name, **row}) for name, row in rows.items()}


def find_entry(name: str) -> Entry:
    """Return a study of the gallery. Its name may start with `gallery-`.

    Raises:
        UserError: If there is no such study.
    """
    known, short = read_gallery(), name.removeprefix(PREFIX)
    check_known(short, known, f"the gallery has no study {name!r}", path=("NAME",))
    return known[short]


@contextmanager
def entry_files(entry: Entry) -> Iterator[tuple[Path, Path]]:
    """Yield the files of the study and of its claims, on the disk as long as the context lasts."""
    with as_file(files("taetpu.study").joinpath(FOLDER)) as folder:
        yield folder / f"{entry.name}.yaml", folder / f"{entry.name}.claims.yaml"
