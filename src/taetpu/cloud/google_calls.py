"""Calls of Google's clients, with their errors as ours; and how often a question is asked again."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from taetpu.cloud.clients import FAKE, FAKE_GRPC, imported
from taetpu.cloud.errors import Transient
from taetpu.cloud.google_errors import classify

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds for which a question is asked again while the service does not answer it."""


@contextmanager
def explained(zone: str = "", doing: str = "", *, reading: bool = False) -> Iterator[None]:
    """Raise Google's errors as ours. A request that changes something is made once: nothing here repeats it."""
    try:
        yield
    except _kinds() as error:
        raise classify(error, zone, doing, reading=reading) from error


def reading(call: Callable[[], T], zone: str = "", doing: str = "") -> T:
    """What a request that changes nothing answers, asked again for a while where there is no answer or too many asked.

    Raises:
        CloudError: see `classify`.
    """
    api_core = imported("google.api_core.retry")
    quick = bool(os.environ.get(FAKE) or os.environ.get(FAKE_GRPC))
    again = api_core.Retry(
        predicate=lambda error: (
            isinstance(error, _kinds()) and isinstance(classify(error, zone, reading=True), Transient)
        ),
        initial=0.01 if quick else 1.0,
        maximum=0.05 if quick else 10.0,
        multiplier=2.0,
        timeout=0.3 if quick else PATIENCE,
    )
    with explained(zone, doing, reading=True):
        return again(call)()


def _kinds() -> tuple[type[BaseException], ...]:
    """What Google's libraries raise."""
    return (
        imported("google.api_core.exceptions").GoogleAPIError,
        imported("google.auth.exceptions").GoogleAuthError,
        imported("requests").RequestException,
        ConnectionError,
        TimeoutError,
    )
