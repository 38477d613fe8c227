"""Errors a user can act on: what is wrong, where it stands, and what would be right."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

KeyPath = tuple[str | int, ...]
MAX_SUGGESTIONS = 24
"""A list of more names than this is not read."""
MAX_ERRORS_SHOWN = 10
"""More errors than this are counted rather than shown."""
MAX_LENGTH = 1000
"""Longer messages, names and values are cut in their middle."""


class UserError(Exception):
    """The user's input is wrong. The CLI prints the message alone and exits with 2.

    Args:
        problem: what is wrong, with the offending value in it.
        path: keys from the document's root to the offending place, e.g. `("base", "model", "ffn")`.
        file: the document itself.
        line: 1-based line in `file`.
        remedy: what would be right.

    Attributes:
        others: further mistakes that were found with this one (see `Mistakes`).
    """

    exit_code = 2
    others: "tuple[UserError, ...]" = ()

    def __init__(
        self,
        problem: str,
        *,
        path: KeyPath = (),
        file: str | Path | None = None,
        line: int | None = None,
        remedy: str | None = None,
    ):
        self.problem, self.remedy = shorten(problem), remedy and shorten(remedy)
        super().__init__(self.problem)
        self.path, self.file, self.line = path, file, line

    def within(self, *prefix: str | int, file: str | Path | None = None, line: int | None = None) -> "UserError":
        """The same error seen from further up: `prefix` goes before the path; a known file or line stays."""
        return self.map(
            lambda error: UserError(
                error.problem,
                path=(*prefix, *error.path),
                file=error.file or file,
                line=error.line or line,
                remedy=error.remedy,
            )
        )

    @property
    def all_errors(self) -> "list[UserError]":
        """This error and the others that were found with it."""
        return [self, *self.others]

    def map(self, change: "Callable[[UserError], UserError]") -> "UserError":
        """The error after a change, which is made to the others too."""
        made = change(self)
        made.others = tuple(change(other) for other in self.others)
        return made

    def __str__(self) -> str:
        errors = self.all_errors
        shown = [error.message for error in errors[:MAX_ERRORS_SHOWN]]
        return "\n".join([*shown, f"and {len(errors) - len(shown)} more"] if len(errors) > len(shown) else shown)

    @property
    def message(self) -> str:
        """This error without the others."""
        place = f"{self.file}:{self.line}" if self.file and self.line else str(self.file or "")
        where = " at ".join(part for part in (place, shorten(dotted_path(self.path), 200)) if part)
        lines = [self.problem, f"  where:  {where}" if where else "", f"  remedy: {self.remedy}" if self.remedy else ""]
        return "\n".join(line for line in lines if line)


class ErrorList(list[UserError]):
    """Errors that do not depend on each other, collected to be raised together."""

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Go on after the `with` block where it raises `UserError`."""
        try:
            yield
        except UserError as error:
            self.extend(error.all_errors)

    def raise_all(self) -> None:
        """Raise what was collected, in the order of the lines; nothing otherwise."""
        if self:
            ordered = sorted(self, key=lambda error: error.line or 0)
            first, *others = {error.message: error for error in ordered}.values()
            first.others = tuple(other.map(lambda error: error) for other in others)
            raise first


class Failed(Exception):
    """The command did its work, and something came out wrong: runs raised, a claim does not hold. The CLI
    exits with 3.
    """

    exit_code = 3


def dotted_path(path: Iterable[str | int]) -> str:
    """`("model", "layers", 0)` as `model.layers.0`, the way overrides are written."""
    return ".".join(str(part) for part in path)


def shorten(text: str, longest: int = MAX_LENGTH) -> str:
    """A text, its middle left out where it is longer than `longest` characters."""
    if len(text) <= longest:
        return text
    return f"{text[: longest // 2]} ... {text[-(longest // 4) :]}"


def suggest(word: str, known: Iterable[str]) -> str:
    """A remedy for a misspelt name: the nearest known one, then all of them, or the nearest few of many."""
    names = sorted(set(known))
    near = get_close_matches(word[:MAX_LENGTH], names, n=MAX_SUGGESTIONS, cutoff=0.5)  # quadratic in the length
    hint = f"did you mean {near[0]!r}? " if near else ""
    if not names:
        return "nothing is known here"
    if len(names) <= MAX_SUGGESTIONS:
        return f"{hint}known: {', '.join(names)}"
    last = [name for name in names if name.rpartition(".")[2] == word.rpartition(".")[2]]
    shown = list(dict.fromkeys([*near, *last, *names]))[:MAX_SUGGESTIONS]
    hint = hint or (f"did you mean {last[0]!r}? " if last else "")
    return f"{hint}known: {', '.join(shown)}, and {len(names) - MAX_SUGGESTIONS} more"
