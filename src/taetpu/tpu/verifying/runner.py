"""All checks of a machine, each on its own: what fails, hangs or takes its process with it leaves the others theirs."""

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from queue import Empty, SimpleQueue
from typing import IO, Any

from taetpu.tpu.verifying.checks import START, Check, Finding, chosen

PAGE = "docs/verify.md"
LAST_WORDS = 2000  # characters of what a process said before it ended
Told = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Outcome:
    """A check, what came of it, and the seconds that it took."""

    check: Check
    finding: Finding
    seconds: float

    @property
    def remedy(self) -> str | None:
        """What to do about it; None where all is well."""
        if self.finding.status not in ("FAILED", "slow"):
            return None
        return self.finding.remedy or self.check.remedy

    @property
    def page(self) -> str:
        """Where it is explained."""
        return f"{PAGE}#{self.check.name}"


def verify(names: Sequence[str] = (), told: Told = lambda name, done, of: None) -> list[Outcome]:
    """Make these checks, or all of them.

    Args:
        told: called with the name of the check that begins, how many are done, and of how many.

    Raises:
        UserError: a name is no check's.
    """
    checks, outcomes = chosen(list(names)), []
    for group, members in groupby(checks, key=lambda check: check.group):
        begins = Progress(len(checks), len(outcomes), told)
        if group == "machine":
            for check in members:
                begins(check.name)
                began = time.monotonic()
                outcomes.append(Outcome(check, check.make(), time.monotonic() - began))
        else:
            outcomes += in_children(list(members), begins)
    return outcomes


class Progress:
    """Counts checks as they begin."""

    def __init__(self, of: int, done: int, told: Told):
        self.of, self.done, self.told = of, done, told

    def __call__(self, name: str) -> None:
        self.told(name, self.done, self.of)
        self.done += 1


def in_children(checks: list[Check], begins: Callable[[str], None]) -> list[Outcome]:
    """Checks in a child process; in a new one from where it hung or was ended. Nothing is tried without devices."""
    outcomes: list[Outcome] = []
    while len(outcomes) < len(checks):
        found = in_child(checks[len(outcomes) :], begins)
        outcomes += found
        last = found[-1]
        if last.check.name == START and last.finding.status == "FAILED":
            nothing = Finding("skipped", "jax has no device to try")
            outcomes += [Outcome(check, nothing, 0.0) for check in checks[len(outcomes) :]]
    return outcomes


def in_child(checks: list[Check], begins: Callable[[str], None]) -> list[Outcome]:
    """The outcomes of one child: of all checks, or up to the one at which it was lost, or jax did not start."""
    command = [sys.executable, "-m", "taetpu.tpu.verifying.worker", *(check.name for check in checks)]
    outcomes: list[Outcome] = []
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, text=True)
        try:
            assert child.stdout is not None
            lines = listened(child.stdout)
            for check in checks:
                began = time.monotonic()
                finding = answered(lines, check, lambda check=check: begins(check.name))
                if finding is None:
                    finding = lost(child, check, errors)
                outcomes.append(Outcome(check, finding, time.monotonic() - began))
                if finding.status == "FAILED" and (check.name == START or child.poll() is not None):
                    break
        finally:
            child.kill()
            child.wait()
    return outcomes


def listened(stream: IO[str]) -> SimpleQueue[str | None]:
    """The lines of a stream as they come, and None at its end. Closes it."""
    heard: SimpleQueue[str | None] = SimpleQueue()

    def listen() -> None:
        with stream:
            for line in stream:
                heard.put(line)
        heard.put(None)

    threading.Thread(target=listen, daemon=True).start()
    return heard


def answered(lines: SimpleQueue[str | None], check: Check, begun: Callable[[], None]) -> Finding | None:
    """What the child says of a check; None when it ends, or says nothing for as long as the check may take."""
    try:
        while (line := lines.get(timeout=check.seconds)) is not None:
            said: dict[str, Any] = json.loads(line)
            if "finding" in said:
                return Finding(**said["finding"])
            begun()
    except Empty:
        pass
    return None


def lost(child: subprocess.Popen[str], check: Check, errors: IO[str]) -> Finding:
    """Why a child gave no answer, with its last words. It is ended."""
    try:
        ended = child.wait(timeout=1)  # its output closes a moment before it does
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        figure = f"no answer within {check.seconds:g} s"
    else:
        how = signal.Signals(-ended).name if ended < 0 else f"exit code {ended}"
        figure = f"the process was ended by {how}"
    errors.seek(0)
    words = errors.read().strip()[-LAST_WORDS:]
    reason = words.splitlines()[-1] if words else ""
    return Finding("FAILED", f"{figure}: {reason}" if reason else figure, {"stderr": words})


def as_data(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Outcomes as plain data, as `taetpu verify --json` has them."""
    return {
        "checks": [
            {
                "check": one.check.name,
                "about": one.check.about,
                "status": one.finding.status,
                "figure": one.finding.figure,
                "values": one.finding.values,
                "seconds": round(one.seconds, 3),
                "remedy": one.remedy,
                "page": one.page,
            }
            for one in outcomes
        ],
        "failed": [one.check.name for one in outcomes if one.finding.status == "FAILED"],
        "slow": [one.check.name for one in outcomes if one.finding.status == "slow"],
    }
