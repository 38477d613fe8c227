"""The parent's side of a contest: starts contestants, gives them turns, compares what they did."""

import platform
import statistics
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.shapes import Shape
from taetpu.core.child import Child
from taetpu.core.runtime import cpu_cores
from taetpu.train.step_time import cpu_model

COMMAND = (sys.executable, "-m", "benchmarks.contestants")

Round = Mapping[str, Mapping[str, float]]
"""What each contestant said of its window, by name."""


def request(name: str, shape: Shape, text: Path, **more: Any) -> dict[str, Any]:
    """A contestant as its process is asked for it (see `contestants.contestant`)."""
    return {"name": name, "shape": shape.data, "text": str(text), **more}


@contextmanager
def contest(requests: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Child]]:
    """Contestants by name, ready one after another, each in a process of its own."""
    with ExitStack() as stack:
        ready = {}
        for name, asked in requests.items():
            ready[name] = Child(COMMAND, dict(asked))
            stack.callback(ready[name].close)
        yield ready


def take_turns(ready: Mapping[str, Child], rounds: int, seconds: float) -> list[Round]:
    """Windows of all, one after another, so many rounds."""
    return [{name: child.ask(seconds) for name, child in ready.items()} for _ in range(rounds)]


def rate(window: Mapping[str, float], what: str = "tokens") -> float:
    """How many a second."""
    return window[what] / window["seconds"]


def over_rounds(rounds: Sequence[Round], value: Callable[[Round], float]) -> dict[str, float]:
    """The median over rounds of what is computed within a round, and its range."""
    found = [value(one) for one in rounds]
    return {"median": statistics.median(found), "least": min(found), "most": max(found)}


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    packages = ("jax", "jaxlib", "torch", "transformers", "x-transformers")
    return {
        "cpu": cpu_model(),
        "cores": cpu_cores(),
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def shown_machine() -> str:
    """The same as lines to print."""
    return textwrap.fill(", ".join(f"{name} {value}" for name, value in machine().items()), 80)
