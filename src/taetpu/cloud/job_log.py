"""A job's log on one host, read to its end over as many connections as it takes."""

import json
import os
import subprocess
import time
from collections.abc import Callable

from taetpu.cloud.agents import remote, told
from taetpu.cloud.ssh import Slice
from taetpu.cloud.ssh_errors import NO_CONNECTION, Done, OtherKey, refusal

PAUSE = 2.0
"""Seconds between two tries to reach a host again."""


class Reader:
    """Reads the log of one host: no line is lost, and none comes twice.

    Args:
        follow: until the job has ended, not only what is there.
        patience: seconds for which the host may be out of reach.
        tell: is told once of each loss of the connection.
        offset: the byte to begin at.
    """

    def __init__(
        self, slice: Slice, worker: int, name: str, follow: bool, patience: float, tell: Callable[[str], None],
        offset: int = 0,
    ):  # fmt: skip
        self.slice, self.worker, self.name, self.follow = slice, worker, name, follow
        self.patience, self.tell = patience, tell
        self.offset, self.rest = offset, b""
        self.heard, self.lost = time.monotonic(), False

    def read(self, write: Callable[[str], None]) -> None:
        """Hand every line to `write`.

        Raises:
            Unreachable: the host was out of reach for longer than there is patience.
            NoJob: the job is not there any more.
        """
        while (done := self._once(write)).rc == NO_CONNECTION:
            problem = refusal(done, "read the log")
            if isinstance(problem, OtherKey) or time.monotonic() - self.heard > self.patience:
                raise problem or AssertionError
            if not self.lost:
                self.tell(f"the connection to {done.place} is lost; trying again for {self.patience:.0f} s")
            self.lost = True
            time.sleep(min(PAUSE, self.patience / 10))
        told([done], "read the log")
        if self.rest:
            write(self.rest.decode(errors="replace"))
            self.rest = b""

    def _once(self, write: Callable[[str], None]) -> Done:
        """Read until the log or the connection ends."""
        request = json.dumps({"name": self.name, "offset": self.offset, "follow": self.follow})
        process = subprocess.Popen(
            [*self.slice.ssh(self.worker), remote("tail")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
        )  # fmt: skip
        assert process.stdin
        assert process.stdout
        assert process.stderr
        with process:
            try:
                process.stdin.write(request.encode())
                process.stdin.close()
            except BrokenPipeError:
                pass
            while data := os.read(process.stdout.fileno(), 1 << 16):
                self.offset += len(data)
                self.heard, self.lost = time.monotonic(), False
                *lines, self.rest = (self.rest + data).split(b"\n")
                for line in lines:
                    write(line.decode(errors="replace"))
            said = process.stderr.read().decode(errors="replace")
        return Done(self.worker, self.slice.place(self.worker), process.returncode, "", said)
