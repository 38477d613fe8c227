"""The Ray cluster on which the tasks of a study run. This module does not import JAX."""

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from taetpu.core.errors import UserError

RETRIES = 20
"""Maximum number of restarts of a task whose node or process died."""
CONNECT_SECONDS = 10.0
HELD_SECONDS = 120.0
"""Seconds that a task waits for its claim. If the host of an earlier attempt died, its claim must expire."""


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Connect to a Ray cluster for the duration of a `with` block.

    Args:
        address: the address of the cluster. With None, a running cluster is used, or a local one is started.

    Raises:
        UserError: if Ray is not installed or the cluster does not answer.
    """
    try:
        import ray
    except ImportError:
        raise UserError("ray is not installed", remedy="Run `pip install 'taetpu[ray]'`.") from None
    try:
        _check_answers(address or "")
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        remedy = "Start a cluster with `ray start --head`, and pass HOST:6379."
        raise UserError(f"no Ray cluster at {address}: {error}", path=("--address",), remedy=remedy) from None
    try:
        yield
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Raise `OSError` if no process listens at HOST:PORT. Ray itself would retry for minutes, and could hang."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()


def live_nodes() -> list[dict[str, float]]:
    """Return the resources of each node that is alive."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]
