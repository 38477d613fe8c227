"""Run checks in child processes, so that a check that hangs or kills its process does not stop the others."""

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import IO, Any

from taetpu.tpu.verifying.checks import DEVICES, Check, Finding, select_checks

PAGE = "docs/verify.md"
STDERR_LIMIT = 2000
"""Maximum number of characters kept from the standard error of a child process that failed."""
OnStart = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Outcome:
    """A check, its result, and its duration in seconds."""

    check: Check
    finding: Finding
    seconds: float

    @property
    def remedy(self) -> str | None:
        """Instruction to fix the problem; None if the check found no problem."""
        if self.finding.status not in ("FAILED", "slow"):
            return None
        return self.finding.remedy or self.check.remedy

    @property
    def page(self) -> str:
        """Address of the docs section on the check."""
        return f"{PAGE}#{self.check.name}"


def verify(names: Sequence[str] = (), on_start: OnStart = lambda name, done, total: None) -> list[Outcome]:
    """Run the named checks, or all checks, and return their outcomes.

    Args:
        on_start: called when a check starts, with its name, the number of completed checks, and the total number.

    Raises:
        UserError: if no check has a given name.
    """
    checks, outcomes = select_checks(list(names)), []
    order = [check.name for check in checks]

    def started(name: str) -> None:
        on_start(name, order.index(name), len(order))

    for check in (check for check in checks if check.group == "machine"):
        started(check.name)
        start = time.monotonic()
        outcomes.append(Outcome(check, check.run(), time.monotonic() - start))
    return outcomes + run_in_children([check for check in checks if check.group == "jax"], started)


def run_in_children(checks: list[Check], on_start: Callable[[str], None]) -> list[Outcome]:
    """Run checks in a child process, and continue in a new process after a hang or crash.

    If the check `devices` fails, the remaining checks are skipped.
    """
    outcomes: list[Outcome] = []
    while len(outcomes) < len(checks):
        outcomes += _run_in_child(checks[len(outcomes) :], on_start)
        last = outcomes[-1]
        if last.check.name == DEVICES and last.finding.status == "FAILED":
            skipped = Finding("skipped", "jax has no device")
            outcomes += [Outcome(check, skipped, 0.0) for check in checks[len(outcomes) :]]
    return outcomes


def _run_in_child(checks: list[Check], on_start: Callable[[str], None]) -> list[Outcome]:
    """Run checks in one child process; stop after a check that ends the process, or if `devices` fails."""
    command = [sys.executable, "-m", "taetpu.tpu.verifying.worker", *(check.name for check in checks)]
    outcomes: list[Outcome] = []
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL,
            encoding="utf-8", errors="replace",
        )  # fmt: skip
        try:
            assert child.stdout is not None
            lines = _read_lines(child.stdout)
            for check in checks:
                start = time.monotonic()
                finding = _await_finding(lines, check, on_start) or _diagnose(child, check, errors)
                outcomes.append(Outcome(check, finding, time.monotonic() - start))
                if finding.status == "FAILED" and (check.name == DEVICES or child.poll() is not None):
                    break
        finally:
            child.kill()
            child.wait()
    return outcomes


def _read_lines(stream: IO[str]) -> SimpleQueue[str | None]:
    """Return a queue that a thread fills with the lines of a stream and a final None. The thread closes the stream."""
    lines: SimpleQueue[str | None] = SimpleQueue()

    def read() -> None:
        with stream:
            for line in stream:
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _await_finding(lines: SimpleQueue[str | None], check: Check, on_start: Callable[[str], None]) -> Finding | None:
    """Return the result of a check from the child process; None if the child ends or exceeds the time limit."""
    try:
        while (line := lines.get(timeout=check.seconds)) is not None:
            message: dict[str, Any] = json.loads(line)
            if "finding" in message:
                return Finding(**message["finding"])
            on_start(check.name)
    except Empty:
        pass
    return None


def _diagnose(child: subprocess.Popen[str], check: Check, errors: IO[str]) -> Finding:
    """Return a finding that explains why a child process gave no result.

    The finding has the end of the child's standard error. A child that is still running is killed.
    """
    try:
        code = child.wait(timeout=1)  # the output of a child closes a moment before the child ends
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        figure = f"no result within {check.seconds:g} s"
    else:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        figure = f"the process {how}"
    errors.seek(0)
    text = errors.read().strip()[-STDERR_LIMIT:]
    reason = text.splitlines()[-1] if text else ""
    return Finding("FAILED", f"{figure}: {reason}" if reason else figure, {"stderr": text})


def as_data(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return outcomes as plain data, for `taetpu verify --json`."""
    return {
        "checks": [
            {
                "check": outcome.check.name,
                "about": outcome.check.about,
                "status": outcome.finding.status,
                "figure": outcome.finding.figure,
                "values": outcome.finding.values,
                "seconds": round(outcome.seconds, 3),
                "remedy": outcome.remedy,
                "page": outcome.page,
            }
            for outcome in outcomes
        ],
        "failed": [outcome.check.name for outcome in outcomes if outcome.finding.status == "FAILED"],
        "slow": [outcome.check.name for outcome in outcomes if outcome.finding.status == "slow"],
    }
