"""The time that a step takes in different layouts, measured in turns on one machine."""

import json
import math
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import jax

from taetpu.train.memory import memory_bytes, out_of_memory
from taetpu.train.plan import Layout
from taetpu.train.trial import Trial

FIRST_LOOK = 0.5  # seconds that every layout is timed for, to drop the slow ones
WINDOW, ROUNDS = 2.0, 2  # the others take turns after that; one window alone picked wrong
KEPT = 0.7  # of the best rate so far: slower layouts are dropped
FINALISTS = 4


def child_command(module: str) -> list[str]:
    """Starts a module as a process of its own; what lies in the working folder is no module (`-P`)."""
    return [sys.executable, "-P", "-m", module]


COMMAND = child_command("taetpu.train.trial")


class NotMeasured(Exception):
    """A layout could not be timed, for another reason than too little memory."""


class Tried(Protocol):
    """A layout that is ready to be timed; see `train.trial.Trial`."""

    def window(self, seconds: float) -> float: ...

    @property
    def bytes(self) -> int: ...

    def close(self) -> None: ...


class Bench:
    """Times layouts for a number of runs. A context manager: what it started ends with it.

    Args:
        runs: how many are to be trained.
        start: makes a layout ready. Raises as `Trial` or `Child` does.

    Attributes:
        seconds: the shortest time of a step by layout; infinite where memory did not suffice.
    """

    def __init__(self, runs: int, start: Callable[[Layout], Tried]):
        self.runs, self.start = runs, start
        self.seconds: dict[Layout, float] = {}
        self.ready: dict[Layout, Tried] = {}

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *_: object) -> None:
        for layout in list(self.ready):
            self.drop(layout)

    def first_look(self, layout: Layout) -> float:
        """The seconds of a step, from a short window; infinite where the layout needs too much memory."""
        self.seconds[layout] = math.inf
        with self.fitting(layout):
            self.ready[layout] = self.start(layout)
        self.time(layout, FIRST_LOOK)
        if self.slow(layout):  # or the machine was busy for a moment
            self.time(layout, FIRST_LOOK)
        held = 0
        for place, ready in enumerate(sorted(self.ready, key=self.whole)):
            held += self.ready[ready].bytes
            if self.slow(ready) or place >= FINALISTS or held > memory_bytes():
                self.drop(ready)
        return self.seconds[layout]

    def slow(self, layout: Layout) -> bool:
        """Is a layout that far behind another that it is not worth another look?"""
        return KEPT * self.whole(layout) > min(map(self.whole, self.seconds))

    def finish(self) -> None:
        """Time what is still ready in turns, which are long enough to tell neighbours apart."""
        for _ in range(ROUNDS):
            for layout in list(self.ready):
                self.time(layout, WINDOW)

    def time(self, layout: Layout, seconds: float) -> None:
        """Time a layout if it is ready."""
        with self.fitting(layout):
            if layout in self.ready:
                self.seconds[layout] = min(self.seconds[layout], self.ready[layout].window(seconds))
                if self.ready[layout].bytes > memory_bytes():
                    raise MemoryError

    @contextmanager
    def fitting(self, layout: Layout) -> Iterator[None]:
        """Rule a layout out when it needs too much memory."""
        try:
            yield
        except (MemoryError, jax.errors.JaxRuntimeError) as error:
            if not out_of_memory(error):
                raise NotMeasured(str(error)) from error
            self.seconds[layout] = math.inf
            if layout in self.ready:
                self.drop(layout)

    def whole(self, layout: Layout) -> float:
        """The seconds in which all runs take a step, pack after pack."""
        return -(-self.runs // layout.width) * self.seconds[layout]

    def drop(self, layout: Layout) -> None:
        self.ready.pop(layout).close()


class Here(Trial):
    """A trial on an accelerator, whose memory is not the machine's: what does not fit raises."""

    @property
    def bytes(self) -> int:
        return 0


class Child:
    """A process of its own that answers lines, such as a trial.

    Args:
        request: what it is asked first; None asks nothing yet.
        environ: its environment; this process' unless given.

    Attributes:
        about: its first answer; a trial's, when it is ready.

    Raises:
        MemoryError: it needs too much, or was killed.
        NotMeasured: it failed for another reason.
    """

    def __init__(
        self,
        request: dict[str, Any] | None,
        command: Sequence[str] = COMMAND,
        environ: Mapping[str, str] | None = None,
    ):
        self.bytes = 0
        self.said = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 (open as long as the process is)
        # A session of its own: Ctrl-C is the parent's to hear, which then ends its children.
        self.process = subprocess.Popen(
            command, text=True, start_new_session=True, env=environ,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said,
        )  # fmt: skip
        try:
            self.about = {} if request is None else self.ask(request)
        except BaseException:
            self.close()
            raise

    def window(self, seconds: float) -> float:
        return self.ask(seconds)["seconds"]

    def ask(self, line: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(line) + "\n")
            self.process.stdin.flush()
            heard = self.process.stdout.readline()
        except BrokenPipeError:
            heard = ""
        if not heard:
            code = self.process.wait()
            if code < 0:  # by the system for its memory, or by an allocator that could not go on
                raise MemoryError(f"killed by {signal.Signals(-code).name}")
            self.said.seek(0)
            raise NotMeasured(f"a trial ended with code {code}: {self.said.read()[-2000:]}")
        answer = json.loads(heard)
        if "error" in answer and "memory" in answer:
            raise MemoryError(answer["error"]) if answer["memory"] else NotMeasured(answer["error"])
        self.bytes = answer.get("bytes", 0)
        return answer

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self.process.kill()
        self.process.communicate()
        self.said.close()
