"""Errors that a user can act on: the problem, its location and a remedy."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from difflib import get_close_matches
from pathlib import Path

KeyPath = tuple[str | int, ...]
MAX_SUGGESTIONS = 24
"""The maximum number of names in a remedy."""
MAX_ERRORS_SHOWN = 10
"""The maximum number of errors in one message. The message ends with the number of omitted errors."""
MAX_LENGTH = 1000
"""The maximum length of a message, a name or a value in characters. The middle of a longer text is omitted."""


class UserError(Exception):
    """An error in the user's input. The CLI prints its message without a traceback and exits with status 2.

    Args:
        problem: What is wrong, with the offending value.
        path: Keys from the document's root to the location of the problem, e.g. `("base", "model", "ffn")`.
        file: The document.
        line: 1-based line in `file`.
        remedy: An instruction that solves the problem.

    Attributes:
        others: Further errors that were found together with this one (see `ErrorList`).
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
        """Return the error with `prefix` prepended to its path. `file` and `line` are used if the error has none."""
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
        """This error, followed by the errors in `others`."""
        return [self, *self.others]

    def map(self, change: "Callable[[UserError], UserError]") -> "UserError":
        """Return `change(self)`, with `change` also applied to each error in `others`."""
        changed = change(self)
        changed.others = tuple(change(other) for other in self.others)
        return changed

    def __str__(self) -> str:
        errors = self.all_errors
        shown = [error.message for error in errors[:MAX_ERRORS_SHOWN]]
        return "\n".join([*shown, f"and {len(errors) - len(shown)} more"] if len(errors) > len(shown) else shown)

    @property
    def message(self) -> str:
        """The message of this error, without the errors in `others`."""
        place = f"{self.file}:{self.line}" if self.file and self.line else str(self.file or "")
        where = " at ".join(part for part in (place, shorten(dotted_path(self.path), 200)) if part)
        lines = [self.problem, f"  where:  {where}" if where else "", f"  remedy: {self.remedy}" if self.remedy else ""]
        return "\n".join(line for line in lines if line)


@contextmanager
def change_errors(change: Callable[[UserError], UserError]) -> Iterator[None]:
    """Raise `change(error)` in place of a `UserError` raised in the `with` block."""
    try:
        yield
    except UserError as error:
        raise change(error) from None


def errors_at(*path: str | int) -> AbstractContextManager[None]:
    """Replace the place of a `UserError` raised in the `with` block by `path`."""
    return change_errors(lambda error: UserError(error.problem, path=path, remedy=error.remedy))


def locate_errors(
    *prefix: str | int, file: str | Path | None = None, line: int | None = None
) -> AbstractContextManager[None]:
    """Prepend `prefix` to the path of a `UserError` raised in the `with` block (see `UserError.within`)."""
    return change_errors(lambda error: error.within(*prefix, file=file, line=line))


def check_known(
    name: str, known: Iterable[str], problem: str, *, path: KeyPath = (), file: str | Path | None = None
) -> None:
    """Raise `UserError` with a suggestion if a name is not one of the known names."""
    names = [*known]
    if name not in names:
        raise UserError(problem, path=path, file=file, remedy=suggest(name, names))


class DataWarning(UserWarning):
    """A warning about the user's data, such as NaN in weights. The CLI prints it in one line."""


class ErrorList(list[UserError]):
    """Independent errors, collected to be raised together."""

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Collect a `UserError` raised in the `with` block instead of propagating it."""
        try:
            yield
        except UserError as error:
            self.extend(error.all_errors)

    def raise_all(self) -> None:
        """Raise the first error by line, with the remaining errors in its `others`. Do nothing if the list is empty."""
        if self:
            ordered = sorted(self, key=lambda error: error.line or 0)
            first, *others = {error.message: error for error in ordered}.values()
            first.others = tuple(other.map(lambda error: error) for other in others)
            raise first


class Failed(Exception):
    """The command finished with a negative result, such as failed runs. The CLI exits with status 3."""

    exit_code = 3


class StudyFailed(Failed):
    """A failure that ends the whole study, not a single pack."""


def dotted_path(path: Iterable[str | int]) -> str:
    """Return a path in the notation of overrides: `("model", "layers", 0)` as `model.layers.0`."""
    return ".".join(str(part) for part in path)


def shorten(text: str, longest: int = MAX_LENGTH) -> str:
    """Return `text`, with its middle replaced by "..." if it is longer than `longest` characters."""
    if len(text) <= longest:
        return text
    return f"{text[: longest // 2]} ... {text[-(longest // 4) :]}"


def suggest(word: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Return a remedy for a misspelt name: the closest known name, then up to `MAX_SUGGESTIONS` known names.

    Args:
        word: The misspelt name.
        known: The known names.
        cutoff: The least similarity of the closest name, from 0 to 1 for equal names.
    """
    names = sorted(set(known))
    short = word[:MAX_LENGTH]  # the time is quadratic in its length
    longer = [name for name in names if name.startswith(f"{short}-")]  # `gelu-tanh` for `gelu`, rather than `geglu`
    near = list(dict.fromkeys([*longer, *get_close_matches(short, names, n=MAX_SUGGESTIONS, cutoff=cutoff)]))
    hint = f"Did you mean {near[0]!r}? " if near else ""
    if not names:
        return "No names are known here."
    if len(names) <= MAX_SUGGESTIONS:
        return f"{hint}Use one of: {', '.join(names)}."
    last = [name for name in names if name.rpartition(".")[2] == word.rpartition(".")[2]]
    shown = list(dict.fromkeys([*near, *last, *names]))[:MAX_SUGGESTIONS]
    hint = hint or (f"Did you mean {last[0]!r}? " if last else "")
    return f"{hint}Use one of: {', '.join(shown)}, and {len(names) - MAX_SUGGESTIONS} more."
