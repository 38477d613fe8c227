"""What every source that is no path gives: files by split, which are downloaded when they are read."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from taetpu.core.errors import UserError

NAMED = ""
"""The split of files that the source names one by one."""
OWN_SPLITS = {"train": ("train",), "val": ("validation", "valid", "dev", "val"), "test": ("test",)}
"""The names that the split of a task may have in a source."""


@dataclass(frozen=True)
class Fetched:
    """The files of a source.

    Attributes:
        source: how the study names it.
        splits: the names of the files of each split; of `NAMED` alone if the source names files and not a dataset.
        about: facts for reports: where the files are from.
        open_files: downloads files, and returns their names and paths.
    """

    source: str
    splits: Mapping[str, Sequence[str]]
    about: Mapping[str, Any]
    open_files: Callable[[Sequence[str]], list[tuple[str, Path]]]

    def own_split(self, wanted: str) -> str | None:
        """Return the source's name for the split `train`, `val` or `test`; None if it has no such split."""
        return own_split(self.splits, wanted)

    def files(self, wanted: str = "train") -> list[tuple[str, Path]]:
        """Return names and paths of the files of a split, which are downloaded if they are not there.

        A source with a single split gives this one.

        Raises:
            UserError: if the source has several splits, but not this one, or if a download fails.
        """
        return self.open_files(self.splits[self._choose(wanted)])

    def about_split(self, wanted: str) -> dict[str, Any]:
        """Return facts about the files of a split: where they are from, and the source's name for the split."""
        name = self._choose(wanted)
        return {**self.about, **({"split": name} if name else {}), "files": len(self.splits[name])}

    def _choose(self, wanted: str) -> str:
        name = self.own_split(wanted) or (next(iter(self.splits)) if len(self.splits) == 1 else None)
        if name is None:
            problem = f"{self.source} has no split for {wanted}, but {', '.join(map(repr, self.splits))}"
            remedy = "Use a share of the training data, or other files."
            if "://" in self.source:
                remedy = f"Name a split after the question mark, e.g. ?split={next(iter(self.splits))}."
            raise UserError(problem, remedy=remedy)
        return name


def own_split(splits: Collection[str], wanted: str) -> str | None:
    """Return the name that the split `train`, `val` or `test` has among those of a dataset; None if it has none."""
    return next((name for name in OWN_SPLITS[wanted] if name in splits), None)


def is_pattern(path: str) -> bool:
    """Return whether a path contains wildcards."""
    return any(sign in path for sign in "*?[")


def index_of(file: str) -> str:
    """Return the name of the index that a file of tokens has in Megatron's format."""
    return str(PurePosixPath(file).with_suffix(".idx")) if file.endswith(".bin") else ""
