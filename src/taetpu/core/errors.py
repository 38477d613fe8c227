"""Errors a user can act on: what is wrong, where it stands, and what would be right."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

Where = tuple[str | int, ...]
MANY = 24
"""A list of more names than this is not read."""
MOST = 10
"""More errors than this are counted rather than shown."""
LONGEST = 1000
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
        path: Where = (),
        file: str | Path | None = None,
        line: int | None = None,
        remedy: str | None = None,
    ):
        self.problem, self.remedy = shortened(problem), remedy and shortened(remedy)
        super().__init__(self.problem)
        self.path, self.file, self.line = path, file, line

    def at(self, *prefix: str | int, file: str | Path | None = None, line: int | None = None) -> "UserError":
        """The same error seen from further up: `prefix` goes before the path; a known file or line stays."""
        return self.mapped(
            lambda error: UserError(
                error.problem,
                path=(*prefix, *error.path),
                file=error.file or file,
                line=error.line or line,
                remedy=error.remedy,
            )
        )

    @property
    def each(self) -> "list[UserError]":
        """This error and the others that were found with it."""
        return [self, *self.others]

    def mapped(self, change: "Callable[[UserError], UserError]") -> "UserError":
        """The error after a change, which is made to the others too."""
        made = change(self)
        made.others = tuple(change(other) for other in self.others)
        return made

    def __str__(self) -> str:
        shown = [error.message for error in self.each[:MOST]]
        return "\n".join([*shown, f"and {len(self.each) - MOST} more"] if len(self.each) > MOST else shown)

    @property
    def message(self) -> str:
        """This error without the others."""
        place = f"{self.file}:{self.line}" if self.file and self.line else str(self.file or "")
        where = " at ".join(part for part in (place, shortened(dotted(self.path), 200)) if part)
        lines = [self.problem, f"  where:  {where}" if where else "", f"  remedy: {self.remedy}" if self.remedy else ""]
        return "\n".join(line for line in lines if line)


class Mistakes(list[UserError]):
    """Errors that do not depend on each other, collected to be raised together."""

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Go on after the `with` block where it raises `UserError`."""
        try:
            yield
        except UserError as error:
            self.extend(error.each)

    def raised(self) -> None:
        """Raise what was collected, in the order of the lines; nothing otherwise."""
        if self:
            ordered = sorted(self, key=lambda error: error.line or 0)
            first, *others = {error.message: error for error in ordered}.values()
            first.others = tuple(other.mapped(lambda error: error) for other in others)
            raise first


class Failed(Exception):
    """The command did its work, and something came out wrong: runs raised, a claim does not hold. The CLI
    exits with 3.
    """

    exit_code = 3


def dotted(path: Iterable[str | int]) -> str:
    """`("model", "layers", 0)` as `model.layers.0`, the way overrides are written."""
    return ".".join(str(part) for part in path)


def shortened(text: str, longest: int = LONGEST) -> str:
    """A text, its middle left out where it is longer than `longest` characters."""
    if len(text) <= longest:
        return text
    return f"{text[: longest // 2]} ... {text[-(longest // 4) :]}"


def suggest(word: str, known: Iterable[str]) -> str:
    """A remedy for a misspelt name: the nearest known one, then all of them, or the nearest few of many."""
    names = sorted(set(known))
    near = get_close_matches(word[:LONGEST], names, n=MANY, cutoff=0.5)  # quadratic in the length
    hint = f"did you mean {near[0]!r}? " if near else ""
    if not names:
        return "nothing is known here"
    if len(names) <= MANY:
        return f"{hint}known: {', '.join(names)}"
    last = [name for name in names if name.rpartition(".")[2] == word.rpartition(".")[2]]
    shown = list(dict.fromkeys([*near, *last, *names]))[:MANY]
    hint = hint or (f"did you mean {last[0]!r}? " if last else "")
    return f"{hint}known: {', '.join(shown)}, and {len(names) - MANY} more"
