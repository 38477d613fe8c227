"""What a format of results is."""

from collections.abc import Callable
from dataclasses import dataclass

from taetpu.programs.folders.tree import Tree
from taetpu.programs.folders.unfinished import UnfinishedRuns
from taetpu.programs.records import Record


@dataclass(frozen=True)
class Format:
    """A kind of folder that runs are read from.

    Attributes:
        kind: The name for `--from`.
        layout: What such a folder contains, for messages.
        recognises: Returns whether the names of the files are those of this format.
        read: Reads the runs, and adds those that have not ended to its second argument. Raises `UserError` with the
            file and the place of what cannot be read.
    """

    kind: str
    layout: str
    recognises: Callable[[Tree], bool]
    read: Callable[[Tree, UnfinishedRuns], list[Record]]
