"""Changes to the baseline on the command line: `--set PATH=VALUE`."""

from collections.abc import Iterable, Mapping
from typing import Any

from taetpu.core.errors import ErrorList, UserError, locate_errors, shorten
from taetpu.spec.document import parse_value, read_document

Sets = Iterable[str] | Mapping[str, Any]
"""Changes to the baseline: texts of the form `path=value`, or a mapping of paths to values."""


def parse_sets(sets: Sets) -> dict[str, tuple[str, Any]]:
    """Return the place and the value of each change to the baseline, by path.

    Raises:
        UserError: If changes are invalid or a path is set twice. All errors are raised together.
    """
    if isinstance(sets, Mapping):
        with locate_errors("sets"):
            return {str(path): (f"sets[{path!r}]", value) for path, value in read_document(sets).data.items()}
    if isinstance(sets, str) or not isinstance(sets, Iterable):
        problem = f"sets must be a list of texts or a dictionary, got {shorten(repr(sets))}"
        raise UserError(problem, path=("sets",), remedy='Write e.g. ["train.steps=200"] or {"train.steps": 200}.')
    values: dict[str, tuple[str, Any]] = {}
    mistakes = ErrorList()
    for text in map(str, sets):
        path, _, value = (part.strip() for part in text.partition("="))
        place = (f"--set {text}",)
        with mistakes.collect():
            if not path or not value:
                problem = f"{text!r} is not of the form path=value"
                raise UserError(problem, path=place, remedy="Write e.g. train.steps=200.")
            if path in values:
                raise UserError(f"{path} is set twice", path=place, remedy="Remove one of the options.")
            with locate_errors(*place):
                values[path] = place[0], parse_value(value)
    mistakes.raise_all()
    return values
