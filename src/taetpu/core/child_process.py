"""Child processes that answer requests: the parent's and the child's code. Messages are lines of JSON."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from queue import SimpleQueue
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


class ChildFailed(Exception):
    """A child process ended without an answer for a reason other than a lack of memory."""


def child_command(module: str) -> list[str]:
    """Return the command that runs a module in a new process. `-P` excludes the working folder from imports."""
    return [sys.executable, "-P", "-m", module]


class Child:
    """A child process that reads and answers lines of JSON.

    Args:
        command: The command to run; see `child_command`.
        environ: The environment of the child. By default, it is the environment of this process.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str] | None = None):
        self.stderr = tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (open as long as the process runs)
        # In a new session, because Ctrl-C must reach only the parent. The parent then ends its children.
        self.process = subprocess.Popen(
            command, encoding="utf-8", errors="replace", start_new_session=True, env=environ,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.stderr, pipesize=2**20,
        )  # fmt: skip

    def ask(self, line: Any) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises:
            MemoryError: if the child ran out of memory or was killed.
            ChildFailed: if the child failed for another reason.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(line) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        return json.loads(answer) if answer else self.fail()

    def fail(self) -> NoReturn:
        """Raise the error of a process that ended, or is about to end, without an answer; see `ask`."""
        code = self.process.wait()
        if code < 0:  # killed by the out-of-memory killer, or aborted by a failed allocation
            raise MemoryError(f"killed by {signal.Signals(-code).name}")
        self.stderr.seek(0)
        raise ChildFailed(f"the process ended with code {code}: {self.stderr.read()[-2000:]}")

    def close(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.communicate()
        self.stderr.close()


def read_requests(requests: Iterable[T]) -> Iterator[T]:
    """Yield the parent's requests, and end this process when the parent ends, even in the middle of a compile.

    Args:
        requests: The requests as they arrive, such as `sys.stdin`. They end when the parent ends.
    """
    waiting: SimpleQueue[T] = SimpleQueue()

    def listen() -> None:
        for request in requests:
            waiting.put(request)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        yield waiting.get()
