"""The report on a component's checks, and the runner that collects the findings."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taetpu.core.config import Component
from taetpu.core.errors import UserError
from taetpu.core.plugins import explain_plugin_error


class CheckFailed(Exception):
    """Raised by a check that fails.

    Args:
        message: The problem, with the expected and the actual value.
        at: The pair `(owner, method)` that identifies the relevant source code; None if unknown.
        remedy: An instruction for the author of the component.
    """

    def __init__(self, message: str, *, at: tuple[Any, str] | None = None, remedy: str = ""):
        super().__init__(message)
        self.message, self.at, self.remedy = message, at, remedy


@contextmanager
def failing_at(owner: Any, method: str) -> Iterator[None]:
    """Raise `CheckFailed` in place of a `UserError` in the `with` block, at a method of an object."""
    try:
        yield
    except UserError as error:
        raise CheckFailed(error.problem, at=(owner, method), remedy=error.remedy or "") from None


class CheckNote(Exception):
    """Raised by a check whose result may be intended, but that the author should know about."""


@dataclass(frozen=True)
class Finding:
    """The result of one check. `outcome` is `passed`, `failed`, `note` (valid, but notable) or `not checked`."""

    check: str
    outcome: str
    message: str
    where: str = ""
    remedy: str = ""


@dataclass
class Report:
    """The findings for one component, in the order of the checks."""

    name: str
    file: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def failed(self) -> list[Finding]:
        """The findings of failed checks."""
        return [finding for finding in self.findings if finding.outcome == "failed"]

    def __str__(self) -> str:
        width = max(len(finding.check) for finding in self.findings)
        lines = [f"  {f.check:<{width}}  {f.outcome:<11}  {f.message}" for f in self.findings]
        return "\n".join([f"{self.name} ({self.file})", *lines])


class ComponentError(AssertionError):
    """Raised if a component fails checks. The message lists the failures, and `report` holds all findings."""

    def __init__(self, report: Report):
        self.report = report
        total = sum(finding.outcome != "not checked" for finding in report.findings)
        parts = [f"{report.name} fails {len(report.failed)} of {total} checks ({report.file})"]
        for finding in report.failed:
            lines = [f"{finding.check}: {finding.message}"]
            lines += [f"  where:  {finding.where}"] if finding.where else []
            lines += [f"  remedy: {finding.remedy}"] if finding.remedy else []
            parts.append("\n".join(lines))
        skipped = [finding.check for finding in report.findings if finding.outcome == "not checked"]
        parts += [f"not checked because of these failures: {', '.join(skipped)}"] if skipped else []
        super().__init__("\n\n".join(parts))


class Checks:
    """A runner of checks that reports all failures, not only the first.

    Args:
        component: The component to check. Exceptions are located in the file that defines the component's class.
    """

    def __init__(self, component: Component):
        self.component = component
        self.file = Path(inspect.getsourcefile(type(component)) or "?")
        self.report = Report(f"{component.slot} {component.kind!r}", _relative(self.file))

    def run(self, name: str, check: Callable[..., str], *args: Any, after: str | None = None) -> bool:
        """Run a check, and return whether it passed.

        Args:
            name: The name of the check.
            check: The function to call. It returns a summary, or raises an exception if the check fails.
            args: The arguments of the function.
            after: The name of an earlier check. If it has not passed, this check is skipped.
        """
        if after is not None and not any(f.outcome == "passed" for f in self.report.findings if f.check == after):
            self.skip(name)
            return False
        try:
            finding = Finding(name, "passed", check(*args))
        except CheckFailed as failure:
            place = _place(*failure.at) if failure.at else ""
            finding = Finding(name, "failed", failure.message, place, failure.remedy)
        except CheckNote as note:
            finding = Finding(name, "note", str(note))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # including SystemExit
            finding = self._from_exception(name, error)
        self.report.findings.append(finding)
        return finding.outcome == "passed"

    def note(self, name: str, message: str) -> None:
        """Record a note on behaviour that may be intended, but that the author should know about."""
        self.report.findings.append(Finding(name, "note", message))

    def skip(self, *names: str) -> None:
        """Record checks that cannot run because an earlier check failed."""
        self.report.findings += [Finding(name, "not checked", "") for name in names]

    def _from_exception(self, name: str, error: BaseException) -> Finding:
        explained = error if isinstance(error, UserError) else explain_plugin_error(error, self.file)
        if explained is None:
            text = str(error).strip().split("\n")[0]
            return Finding(name, "failed", f"{type(error).__name__}: {text}", _place(type(self.component), ""))
        place = (
            f"{_relative(Path(explained.file))}:{explained.line}"
            if explained.file
            else _place(type(self.component), "")
        )
        return Finding(name, "failed", explained.problem, place, explained.remedy or "")


def _place(owner: Any, method: str) -> str:
    """Return `file:line in method`, or an empty text if the source is not available."""
    owner = owner if isinstance(owner, type) else type(owner)
    target = inspect.unwrap(getattr(owner, method, owner))
    try:
        line = inspect.getsourcelines(target)[1]
        return (
            f"{_relative(Path(inspect.getsourcefile(target) or '?'))}:{line} in {getattr(target, '__name__', method)}"
        )
    except (OSError, TypeError):
        return ""


def _relative(file: Path) -> str:
    """Return the path of a file, relative to the working folder if the file is in it."""
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else str(file)
