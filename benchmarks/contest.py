"""Start contestants in child processes, time them in turns, and compare them."""

import platform
import statistics
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.shapes import Shape
from taetpu.core.child_process import Child, ChildFailed
from taetpu.core.jax_setup import cpu_cores
from taetpu.train.step_time import cpu_model

COMMAND = (sys.executable, "-m", "benchmarks.contestants")

Round = Mapping[str, Mapping[str, float]]
"""Results of one window by contestant."""


class Contestant(Child):
    """A child process that trains a contestant. `about` is its answer to the first request."""

    def __init__(self, command: Sequence[str], request: Mapping[str, Any], environ: Mapping[str, str] | None = None):
        super().__init__(command, environ)
        try:
            self.about = self.ask(dict(request))
        except BaseException:
            self.close()
            raise


class Timed(Contestant):
    """A contestant that is killed at a deadline on the monotonic clock, even while it compiles.

    Attributes:
        ready: The seconds until it answered the first request.
    """

    def __init__(self, command: Sequence[str], request: Mapping[str, Any], environ: Mapping[str, str], deadline: float):
        self.deadline, began = deadline, time.monotonic()
        super().__init__(command, request, environ)
        self.ready = time.monotonic() - began

    def ask(self, line: Any) -> dict[str, Any]:
        """Return the answer to a request; see `Child.ask`. Killing the process raises `MemoryError`."""
        timer = threading.Timer(max(0.0, self.deadline - time.monotonic()), self.process.kill)
        timer.daemon = True
        timer.start()
        try:
            return super().ask(line)
        finally:
            timer.cancel()


def turns_of_survivors(
    ready: Mapping[str, Contestant], rounds: int, asked: Any
) -> tuple[list[dict[str, dict[str, Any]]], dict[str, str]]:
    """Return the answers of all contestants by round, and why others failed. The others go on without one that fails.

    Args:
        ready: The contestants by name.
        rounds: The number of rounds.
        asked: The request of each window.
    """
    going, failed = dict(ready), dict[str, str]()
    answers: list[dict[str, dict[str, Any]]] = []
    for _ in range(rounds):
        answers.append({})
        for name, child in list(going.items()):
            try:
                answers[-1][name] = child.ask(asked)
            except (ChildFailed, MemoryError) as error:
                failed[name] = why(error)
                del going[name]
    return answers, failed


def why(error: BaseException) -> str:
    """Return why a contestant ended: the last line of its error output, or that it was killed at the deadline."""
    if isinstance(error, MemoryError):
        return "no memory or no time was left"
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), repr(error))[:200]


def request(name: str, shape: Shape, text: Path, **more: Any) -> dict[str, Any]:
    """The request for a contestant; see `contestants.contestant`."""
    return {"name": name, "shape": shape.data, "text": str(text), **more}


@contextmanager
def contest(requests: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Contestant]]:
    """Start contestants one after another, each in a separate process."""
    with ExitStack() as stack:
        ready = {}
        for name, asked in requests.items():
            ready[name] = Contestant(COMMAND, asked)
            stack.callback(ready[name].close)
        yield ready


def take_turns(ready: Mapping[str, Contestant], rounds: int, seconds: float) -> list[Round]:
    """Time windows of all contestants in turns, for a number of rounds."""
    return [{name: child.ask(seconds) for name, child in ready.items()} for _ in range(rounds)]


def rate(window: Mapping[str, float], what: str = "tokens") -> float:
    """Return the rate per second."""
    return window[what] / window["seconds"]


def over_rounds(rounds: Sequence[Round], value: Callable[[Round], float]) -> dict[str, float]:
    """Return the median and range over rounds of a value computed within each round."""
    found = [value(one) for one in rounds]
    return {"median": statistics.median(found), "least": min(found), "most": max(found)}


def machine() -> dict[str, Any]:
    """Return the machine and the versions that were measured."""
    packages = ("jax", "jaxlib", "torch", "transformers", "x-transformers")
    return {
        "cpu": cpu_model(),
        "cores": cpu_cores(),
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def shown_machine() -> str:
    """Return the machine and the versions as lines."""
    return textwrap.fill(", ".join(f"{name} {value}" for name, value in machine().items()), 80)
