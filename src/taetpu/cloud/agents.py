"""How the hosts' agents are asked: see `vm.machine.agent`, which answers."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from taetpu.cloud.ssh import Slice, together
from taetpu.cloud.ssh_errors import CommandFailed, Done, refusal

PRIVATE = "${TAETPU_VM_ROOT:-/var/lib/taetpu}"
AGENT = (
    f'cd && exec python3 -I -c "import sys; sys.path.insert(0, sys.argv[1]); from machine import agent; '
    f'sys.exit(agent.main(sys.argv[2:]))" "{PRIVATE}" "$1"'
)
ANSWER = 30.0
"""Seconds in which a host that is up answers a small question."""
REFUSED = 3
"""The agent's exit code where it says why something cannot be done."""


class NoJob(CommandFailed):
    """What was asked of a job cannot be done: there is none, it runs, its name is taken."""

    exit_code = 2


def ask(
    slice: Slice, command: str, request: Mapping[str, Any], workers: Sequence[int] | None = None,
    timeout: float | None = ANSWER,
) -> dict[int, Any]:  # fmt: skip
    """What the agent of each host answers.

    Raises:
        CloudError: one does not, or refuses.
    """
    ended = send(slice, command, request, slice.all if workers is None else workers, timeout)
    return {done.worker: json.loads(done.out or "null") for done in told(ended, f"answer `{command}`")}


def send(
    slice: Slice, command: str, request: Mapping[str, Any] | Callable[[int], Mapping[str, Any]],
    workers: Sequence[int], timeout: float | None = ANSWER,
) -> list[Done]:  # fmt: skip
    """How the agent of each host took a request, or the request of its number, whatever came of it."""

    def written(worker: int) -> str:
        return json.dumps(request(worker) if callable(request) else request)

    return slice.everywhere(["sh", "-c", AGENT, "agent", command], input=written, timeout=timeout, workers=workers)


def remote(command: str) -> str:
    """The line for a host's shell that runs its agent, with the request on its standard input."""
    return shlex.join(["sh", "-c", AGENT, "agent", command])


def told(ended: Sequence[Done], doing: str) -> list[Done]:
    """As `together`; what an agent refuses is told in its own words."""
    for done in ended:
        if done.rc == REFUSED:
            if "No space left on device" in done.err:
                raise refusal(done, doing) or AssertionError
            raise NoJob(f"{done.place}: {done.err.strip()}")
    return together(ended, doing)
