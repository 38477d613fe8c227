"""Questions to Google that change nothing, asked with little patience: whoever looks around does not want to wait.

Libraries are used where they have a call (`answered` wraps it); `ask` is for the APIs that no installed library speaks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from taetpu.cloud.clients import Clients, imported
from taetpu.cloud.errors import Transient
from taetpu.cloud.google_calls import explained

PATIENCE = 20
"""Seconds within which one answer has to come."""
UNANSWERED = {"reason": "UNANSWERED"}
"""`facts` of an error where nothing answered at all: there is no network, or something is in the way."""


@dataclass(frozen=True)
class Answered:
    """What an API said: JSON, and the moment by its own clock (an HTTP date; "" where it says none)."""

    data: dict[str, Any]
    date: str


def ask(
    clients: Clients, service: str, path: str, *, doing: str, body: Any = None, query: dict[str, str] | None = None
) -> Answered:
    """GET a path of an API, or POST where there is a body.

    Args:
        service: the part of its address before `.googleapis.com`.
        doing: what for, as in "reading the project", for the error.
        query: of the URL.

    Raises:
        CloudError: it refuses, or nothing answers; see `answered`.
    """
    url, session = clients.url(service, path), clients.session
    with answered(service, doing):
        if body is None:
            response = session.get(url, params=query, timeout=PATIENCE)
        else:
            response = session.post(url, json=body, timeout=PATIENCE)
        response.raise_for_status()
        return Answered(response.json(), response.headers.get("Date", ""))


@contextmanager
def answered(service: str, doing: str) -> Iterator[None]:
    """Raise Google's errors as ours, and the network's in one sentence.

    Raises:
        Transient: with `UNANSWERED` as its facts where nothing answered.
        CloudError: any other, see `google_errors.explained`.
    """
    try:
        with explained(doing=doing, reading=True):
            yield
    except Transient as error:
        requests = imported("requests")
        silent = (requests.ConnectionError, requests.Timeout, imported("google.auth.exceptions").TransportError)
        if not isinstance(error.__cause__, silent):
            raise
        problem, remedy = f"{service}.googleapis.com did not answer", "look at the network, then try again"
        raise Transient(problem, remedy=remedy, facts=UNANSWERED) from error


def patience() -> dict[str, Any]:
    """Arguments of a library's call: asked again for a few seconds where the service is not well, not for minutes."""
    retry, errors = imported("google.api_core.retry"), imported("google.api_core.exceptions")
    unwell = retry.if_exception_type(errors.ServiceUnavailable, errors.TooManyRequests, errors.InternalServerError)
    return {"retry": retry.Retry(unwell, initial=0.2, maximum=2.0, timeout=5.0), "timeout": PATIENCE}
