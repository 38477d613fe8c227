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
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any

from taetpu.core.errors import UserError
from taetpu.tpu.verifying.checks import DEVICES, TORCH, TORCH_CHECKS, Check, Finding, select_checks

PAGE = "docs/verify.md"
STDERR_LIMIT = 2000
"""Maximum number of characters kept from the standard error of a child process that failed."""
OnStart = Callable[[str, int, int], None]
STARTS = {DEVICES: "jax has no device", TORCH: "PyTorch has no TPU"}
"""The checks on which those after them in their process depend, and why these are skipped if one fails."""
JAX_WORKER = (sys.executable, "-m", "taetpu.tpu.verifying.worker")
TORCH_INSTALL = "uv venv ~/torch && uv pip install -p ~/torch torch torch_tpu"


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


def verify_torch(
    python: str, names: Sequence[str] = (), on_start: OnStart = lambda name, done, total: None
) -> list[Outcome]:
    """Run the named checks of PyTorch, or all of them, with a Python, and return their outcomes.

    Args:
        python: path of a Python that has torch, numpy, and torch_tpu or torch_xla. It needs neither taetpu nor jax.
        names: names of checks.
        on_start: as for `verify`.

    Raises:
        UserError: if no check has a given name, or the Python lacks one of these packages.
    """
    checks = select_checks(list(names), TORCH_CHECKS)
    order = [check.name for check in checks]
    _require_torch(python)
    worker = (python, str(Path(__file__).with_name("torch_script.py")))
    return run_in_children(checks, lambda name: on_start(name, order.index(name), len(order)), worker)


def _require_torch(python: str) -> None:
    """Raise `UserError` unless a Python has numpy, torch, and torch_tpu or torch_xla."""
    names = ("numpy", "torch", "torch_tpu", "torch_xla")
    code = f"from importlib.util import find_spec; print(*(name for name in {names} if find_spec(name)))"
    other = "Name a Python that has torch_tpu or torch_xla."
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = f"{python} is not a Python that starts: {error}"
        raise UserError(problem, path=("--python",), remedy=other) from None
    if done.returncode != 0:
        reason = (done.stderr.strip() or "no message").splitlines()[-1]
        problem = f"{python} ended with exit code {done.returncode}: {reason}"
        raise UserError(problem, path=("--python",), remedy=other)
    installed = done.stdout.split()
    missing = [name for name in names[:2] if name not in installed]
    if not {"torch_tpu", "torch_xla"} & {*installed}:
        missing.append("torch_tpu or torch_xla")
    if missing:
        remedy = f"Install PyTorch for TPUs, as in `{TORCH_INSTALL}`, and add --python ~/torch/bin/python."
        raise UserError(f"{python} lacks {', '.join(missing)}", path=("--torch",), remedy=remedy)


def run_in_children(
    checks: list[Check], on_start: Callable[[str], None], worker: Sequence[str] = JAX_WORKER
) -> list[Outcome]:
    """Run checks in a child process, and continue in a new process after a hang or crash.

    If the check that starts jax or PyTorch fails, the remaining checks are skipped.

    Args:
        checks: the checks.
        on_start: called with the name of each check when it starts.
        worker: the command that runs the checks named in its further arguments.
    """
    outcomes: list[Outcome] = []
    while len(outcomes) < len(checks):
        outcomes += _run_in_child(checks[len(outcomes) :], on_start, worker)
        last = outcomes[-1]
        if last.check.name in STARTS and last.finding.status == "FAILED":
            skipped = Finding("skipped", STARTS[last.check.name])
            outcomes += [Outcome(check, skipped, 0.0) for check in checks[len(outcomes) :]]
    return outcomes


def _run_in_child(checks: list[Check], on_start: Callable[[str], None], worker: Sequence[str]) -> list[Outcome]:
    """Run checks in one child process; stop after a check that ends the process, or if a check in `STARTS` fails."""
    command = [*worker, *(check.name for check in checks)]
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
                if finding.status == "FAILED" and (check.name in STARTS or child.poll() is not None):
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
