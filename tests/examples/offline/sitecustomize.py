"""Refuse connections to other machines, in each Python process that has this folder in PYTHONPATH."""

import sys

HERE = ("127.", "localhost", "::1", "0.0.0.0")


def refuse(event: str, arguments: tuple) -> None:
    """Raise `PermissionError` for an address that is not this machine's."""
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    elif event == "socket.getaddrinfo":
        host = arguments[0]
    else:
        return
    host = host.decode() if isinstance(host, bytes) else host
    if host and not host.startswith(HERE):
        raise PermissionError(f"connection to {host} refused: notebooks run without a network")


sys.addaudithook(refuse)
