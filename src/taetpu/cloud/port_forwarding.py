"""Ports of this computer that lead to ports of a host, as `ssh -L` forwards them."""

import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from taetpu.core.errors import UserError

OPTION = "-L"
FORM = re.compile(r"(\d{1,5})(?::([\w.-]+|\[[0-9a-fA-F:]+\]):(\d{1,5}))?", re.ASCII)


@dataclass(frozen=True)
class Forward:
    """A port of this computer's loopback address, and the host and port to which it leads, as seen from the machine."""

    port: int
    host: str
    host_port: int

    @property
    def option(self) -> str:
        """The value of ssh's option `-L`. Other computers cannot reach the port."""
        return f"127.0.0.1:{self.port}:{self.host}:{self.host_port}"


def parse_forward(text: str) -> Forward:
    """Return the forward that `PORT` or `PORT:HOST:PORT` describes. Without a host, it is the machine's same port.

    Raises:
        UserError: if the text has another form, or a port is not in 1 to 65535.
    """
    match = FORM.fullmatch(text)
    if not match:
        remedy = "Use PORT or PORT:HOST:PORT, as in -L 8888 or -L 8888:localhost:8888."
        raise UserError(f"invalid forward {text!r}", path=(OPTION,), remedy=remedy)
    ports = [int(number) for number in (match[1], match[3] or match[1])]
    for port in ports:
        if not 1 <= port <= 65535:
            problem = f"a port must be 1 to 65535, got {port} in {text!r}"
            raise UserError(problem, path=(OPTION,), remedy="Use a port of 1024 or more, such as 8888.")
    return Forward(ports[0], match[2] or "localhost", ports[1])


def check_free(forwards: Iterable[Forward]) -> None:
    """Raise `UserError` if a local port is in use or reserved for the superuser, or if two forwards share one."""
    taken = set[int]()
    for forward in forwards:
        problem = f"port {forward.port} is forwarded twice" if forward.port in taken else _describe_use(forward.port)
        if problem:
            remedy = f"Choose another port, as in -L {_free_port()}:{forward.host}:{forward.host_port}."
            raise UserError(problem, path=(OPTION,), remedy=remedy)
        taken.add(forward.port)


def _describe_use(port: int) -> str:
    """Return why no program can listen on a port of this computer, or "" if one can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as ssh does: closed connections do not count
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return f"port {port} of this computer is not available: {error.strerror}"
    return ""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
