"""What was checked of a component and what came of it, told to its author."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taetpu.core.config import Component
from taetpu.core.errors import UserError
from taetpu.core.plugins import explain_plugin_error
from taetpu.core.signals import is_interrupt

# What jax says when a value is used as Python cannot use a traced one, and what to do about it.
HINTS = {
    "TracerBoolConversionError": "a Python `if`, `and` or `while` asks a traced value: write jnp.where, "
    "or take Number or Traced off the field so that it is part of the program",
    "TracerArrayConversionError": "numpy cannot work on a traced value: write jnp for np",
    "TracerIntegerConversionError": "a traced value cannot be a size or an index of Python: take Number or Traced off "
    "the field so that it is part of the program",
    "ConcretizationTypeError": "a traced value cannot be a plain number of Python: write it with jnp, "
    "or take Number or Traced off the field",
    "UnexpectedTracerError": "something computed in one call was kept for another, in an attribute or a global: "
    "a component keeps nothing between calls",
}


class Unmet(Exception):
    """What a check expected is not so.

    Args:
        said: what was expected and what was seen, in numbers.
        at: `(owner, method)` whose source is to be looked at.
        remedy: what to look for.
    """

    def __init__(self, said: str, *, at: tuple[Any, str] | None = None, remedy: str = ""):
        super().__init__(said)
        self.said, self.at, self.remedy = said, at, remedy


@dataclass(frozen=True)
class Finding:
    """What came of one check: `passed`, `failed`, `note` (nothing wrong, but worth knowing) or `not checked`."""

    check: str
    outcome: str
    said: str
    where: str = ""
    remedy: str = ""


@dataclass
class Report:
    """All checks of one component, in the order they were made."""

    name: str
    file: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def failed(self) -> list[Finding]:
        """The checks that failed."""
        return [finding for finding in self.findings if finding.outcome == "failed"]

    def outcome(self, check: str) -> str:
        """What came of a check, by its name."""
        return next(finding.outcome for finding in self.findings if finding.check == check)

    def __str__(self) -> str:
        width = max(len(finding.check) for finding in self.findings)
        lines = [f"  {f.check:<{width}}  {f.outcome:<11}  {f.said}" for f in self.findings]
        return "\n".join([f"{self.name} ({self.file})", *lines])


class ComponentError(AssertionError):
    """A component failed checks: its text is for the component's author, `report` holds every check."""

    def __init__(self, report: Report):
        self.report = report
        made = sum(finding.outcome != "not checked" for finding in report.findings)
        parts = [f"{report.name} fails {len(report.failed)} of {made} checks ({report.file})"]
        for finding in report.failed:
            lines = [f"{finding.check}: {finding.said}"]
            lines += [f"  where:  {finding.where}"] if finding.where else []
            lines += [f"  remedy: {finding.remedy}"] if finding.remedy else []
            parts.append("\n".join(lines))
        left = [finding.check for finding in report.findings if finding.outcome == "not checked"]
        parts += [f"not checked before that is right: {', '.join(left)}"] if left else []
        super().__init__("\n\n".join(parts))


class Checks:
    """Makes checks one by one, so that every failure is told and not the first alone.

    Args:
        component: what is checked; exceptions are placed in the file that its class stands in.
    """

    def __init__(self, component: Component):
        self.component = component
        self.file = Path(inspect.getsourcefile(type(component)) or "?")
        self.report = Report(f"{component.slot} {component.kind!r}", _shown(self.file))

    def make(self, name: str, check: Callable[..., str], *args: Any) -> bool:
        """Make a check: it gives what it saw, or raises. Did it pass?"""
        try:
            finding = Finding(name, "passed", check(*args))
        except Unmet as unmet:
            place = _place(*unmet.at) if unmet.at else ""
            finding = Finding(name, "failed", unmet.said, place, unmet.remedy)
        except BaseException as error:  # SystemExit too
            if is_interrupt(error):
                raise
            finding = self._raised(name, error)
        self.report.findings.append(finding)
        return finding.outcome == "passed"

    def note(self, name: str, said: str) -> None:
        """Something that the author should know, and that may be meant so."""
        self.report.findings.append(Finding(name, "note", said))

    def leave(self, *names: str) -> None:
        """Name checks that make no sense after one that failed."""
        self.report.findings += [Finding(name, "not checked", "") for name in names]

    def _raised(self, name: str, error: BaseException) -> Finding:
        kind = type(error).__name__
        if isinstance(error, UserError):
            place = f"{_shown(Path(error.file))}:{error.line}" if error.file else _place(type(self.component), "check")
            return Finding(name, "failed", error.problem, place, error.remedy or "")
        text = str(error).strip().split("\n")[0]
        found = explain_plugin_error(error, self.file)
        hint = HINTS.get(kind, "")
        if found is None:
            return Finding(name, "failed", f"{kind}: {text}", _place(type(self.component), ""), hint)
        line = (found.remedy or "").removeprefix("look at: ")
        where = f"{_shown(Path(found.file or ''))}:{found.line}: {line}"
        return Finding(name, "failed", f"{kind}: {text}", where, hint)


def _place(owner: Any, method: str) -> str:
    """`file:line in method`, as far as it is known."""
    owner = owner if isinstance(owner, type) else type(owner)
    target = inspect.unwrap(getattr(owner, method, owner))
    try:
        line = inspect.getsourcelines(target)[1]
        return f"{_shown(Path(inspect.getsourcefile(target) or '?'))}:{line} in {getattr(target, '__name__', method)}"
    except (OSError, TypeError):
        return ""


def _shown(file: Path) -> str:
    """A path from the working folder, where it is below it."""
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else str(file)
