"""Questions to Google that read and change nothing: asked with little patience, and a refusal told as a `CloudError`.

Libraries are used where they have a call (`answered` wraps it); `ask` is for the APIs that no installed library speaks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from taetpu.cloud.clients import SIGN_IN, Clients, imported
from taetpu.cloud.errors import CloudError, Conflict, Invalid, NotFound, Permission, Transient

PATIENCE = 20.0
"""Seconds within which one answer has to come."""
UNANSWERED = {"reason": "UNANSWERED"}
"""`facts` of an error where nothing answered at all: there is no network, or a proxy in the way."""


@dataclass(frozen=True)
class Answered:
    """What an API said: JSON, and the moment by its own clock (an HTTP date; "" where it says none)."""

    data: dict[str, Any]
    date: str


def ask(clients: Clients, service: str, path: str, *, body: Any = None, query: Any = None) -> Answered:
    """GET a path of an API, or POST where there is a body.

    Args:
        service: the part of its address before `.googleapis.com`.
        query: pairs for the URL.

    Raises:
        Permission: the caller may not, or the API is not enabled.
        NotFound: there is no such thing.
        Transient: nothing answered, or the service could not.
        CloudError: it refuses otherwise.
    """
    url, session = clients.url(service, path), clients.session
    with answered(service, clients.project):
        if body is None:
            response = session.get(url, params=query, timeout=PATIENCE)
        else:
            response = session.post(url, json=body, timeout=PATIENCE)
    if response.status_code >= 400:
        message, reason = _told(response)
        raise refusal(service, clients.project, response.status_code, message, reason)
    return Answered(response.json(), response.headers.get("Date", ""))


@contextmanager
def answered(service: str, project: str) -> Iterator[None]:
    """Turn what Google's libraries raise into a `CloudError` that says what to do."""
    google = imported("google.api_core.exceptions")
    auth, requests = imported("google.auth.exceptions"), imported("requests.exceptions")
    try:
        yield
    except google.GoogleAPICallError as error:
        raise refusal(service, project, int(error.code or 0), error.message, error.reason or "") from error
    except auth.RefreshError as error:
        raise Permission("the sign-in to Google Cloud has run out", remedy=SIGN_IN) from error
    except (requests.RequestException, auth.TransportError, google.RetryError) as error:
        problem = f"{service}.googleapis.com did not answer"
        raise Transient(problem, remedy="look at the network, then try again", facts=UNANSWERED) from error


def refusal(service: str, project: str, status: int, message: str, reason: str) -> CloudError:
    """The error that an HTTP status is, with what to do about it."""
    facts = {"reason": reason, "service": service}
    said = message.strip().rstrip(".") or f"status {status}"
    if reason == "SERVICE_DISABLED" or "has not been used in project" in message:
        problem = f"{service}.googleapis.com is not enabled in {project}"
        facts["reason"] = "SERVICE_DISABLED"
        return Permission(
            problem, remedy=f"gcloud services enable {service}.googleapis.com --project={project}", facts=facts
        )
    if status == 401:
        return Permission(f"{service} does not know who asks: {said}", remedy=SIGN_IN, facts=facts)
    if status == 403:
        return Permission(f"{service} refuses: {said}", remedy="`taetpu doctor` names the role", facts=facts)
    if status == 404:
        return NotFound(f"{service}: {said}", facts=facts)
    if status == 409:
        return Conflict(f"{service}: {said}", facts=facts)
    if status == 429 or status >= 500:
        return Transient(f"{service} cannot answer just now: {said}", remedy="try again later", facts=facts)
    return Invalid(f"{service} refuses: {said}", facts=facts)


def patience() -> dict[str, Any]:
    """Arguments of a library's call: asked again for a few seconds where the service is not well, not for minutes."""
    retry = imported("google.api_core.retry")
    unwell = retry.if_exception_type(
        imported("google.api_core.exceptions").ServiceUnavailable,
        imported("google.api_core.exceptions").TooManyRequests,
        imported("google.api_core.exceptions").InternalServerError,
    )
    return {"retry": retry.Retry(unwell, initial=0.2, maximum=2.0, timeout=5.0), "timeout": PATIENCE}


def _told(response: Any) -> tuple[str, str]:
    """The message of an error and the reason of its ErrorInfo; what is no JSON of Google's is told as it is."""
    try:
        error = response.json()["error"]
    except (ValueError, LookupError, TypeError):
        return response.text[:200], ""
    reasons = [detail["reason"] for detail in error.get("details", []) if "reason" in detail]
    return error.get("message", ""), reasons[0] if reasons else ""
