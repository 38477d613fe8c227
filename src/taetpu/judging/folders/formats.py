"""What a format of results is."""

from collections.abc import Callable
from dataclasses import dataclass

from taetpu.judging.folders.tree import Tree
from taetpu.judging.records import Record


@dataclass(frozen=True)
class Format:
    """A kind of folder that runs are read from.

    Attributes:
        kind: The name for `--from`.
        layout: What such a folder contains, for messages.
        recognises: Returns whether the names of the files are those of this format.
        read: Reads the runs. Raises `UserError` with the file and the place of what cannot be read.
    """

    kind: str
    layout: str
    recognises: Callable[[Tree], bool]
    read: Callable[[Tree], list[Record]]
