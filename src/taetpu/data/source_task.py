"""The base of tasks on files: where their training and evaluation data are."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from taetpu.core.errors import UserError
from taetpu.data.base import Task
from taetpu.data.corpora import Corpus, Sources, has_split, list_local, names_of, open_corpus
from taetpu.data.document_files import Layout

EVALUATED = ("val", "test")
SOURCES = ("source", "val_source", "test_source")
"""Fields that name files."""


class Opened(NamedTuple):
    """The corpora of a task.

    Attributes:
        training: the corpora that shares divide, by name in a mixture, else with the name "".
        held_out: the corpora of evaluation data, by split.
    """

    training: dict[str, Corpus]
    held_out: dict[str, Corpus]


class SourceTask(Task):
    """Base of tasks on files. Evaluation data are shares of `source`, or files in `val_source` and `test_source`."""

    @property
    def evaluation_sets(self) -> tuple[str, ...]:
        """See `Task.evaluation_sets`."""
        given: dict[str, Any] = {name: getattr(self, name) or getattr(self, f"{name}_source") for name in EVALUATED}
        return self.sets_of(**given)

    @property
    def sources(self) -> tuple[str, ...]:
        """See `Task.sources`."""
        return names_of(*(getattr(self, field) for field in SOURCES))

    def files(self, folder: Path) -> list[Path]:
        """See `Task.files`."""
        return [path for field in SOURCES for path in list_local(getattr(self, field), folder, field)]

    def open_held_out(self, names: Sources, folder: Path, layout: Layout) -> dict[str, Corpus]:
        """Open the evaluation data of each split: separate files, or a published split of `source`."""
        held_out: dict[str, Corpus] = {}
        for name in EVALUATED:
            if (given := getattr(self, f"{name}_source")) is not None:
                held_out[name] = open_corpus(given, folder, layout, f"{name}_source", name)
            elif getattr(self, name) and has_split(names, folder, name):
                held_out[name] = open_corpus(names, folder, layout, split=name)
        return held_out

    def shares(self, held_out: Mapping[str, Corpus], what: str) -> dict[str, float]:
        """Return the shares of `source` that evaluation splits take. Raise `UserError` if nothing is left to train."""
        shares: dict[str, float] = {name: 0.0 if name in held_out else getattr(self, name) for name in EVALUATED}
        if sum(shares.values()) >= 1:
            problem = " and ".join(f"{name} {getattr(self, name)}" for name in EVALUATED)
            remedy = "Set `val` and `test` so that their sum is below 1."
            raise UserError(f"{problem} leave no training {what}", path=("val",), remedy=remedy)
        return shares


def check_crop(field: str, wanted: int, available: int, source: str = "") -> None:
    """Raise `UserError` if a field asks for more training data of a source than there are."""
    if wanted > available:
        problem = f"{field} {wanted:,} are more than the {available:,} {f'of {source!r}' if source else 'there are'}"
        raise UserError(problem, path=(field,), remedy=f"Use fewer, or remove {field}.")
