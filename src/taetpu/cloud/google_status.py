"""What Google's libraries raise, in one shape: exceptions, ended operations, errors of sign-in and of the network.

`google.rpc.Code` numbers the kinds: 3 invalid, 5 not found, 7 denied, 8 exhausted, 14 unavailable.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

CODES = {
    "CANCELLED": 1, "UNKNOWN": 2, "INVALID_ARGUMENT": 3, "DEADLINE_EXCEEDED": 4, "NOT_FOUND": 5, "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7, "RESOURCE_EXHAUSTED": 8, "FAILED_PRECONDITION": 9, "ABORTED": 10, "OUT_OF_RANGE": 11,
    "UNIMPLEMENTED": 12, "INTERNAL": 13, "UNAVAILABLE": 14, "DATA_LOSS": 15, "UNAUTHENTICATED": 16,
}  # fmt: skip
HTTP = {
    400: 3, 401: 16, 403: 7, 404: 5, 408: 4, 409: 6, 412: 9, 416: 11, 429: 8, 499: 1, 500: 13, 501: 12, 502: 14,
    503: 14, 504: 4,
}  # fmt: skip
"""google/rpc/code.proto, the other way round where one status stands for several codes: the likeliest."""

UNSENT = re.compile(
    r"failed to connect|failed to resolve|connection refused|dns resolution failed|name or service not known"
    r"|name resolution|failed to establish a new connection|network is unreachable|no route to host",
    re.I,
)
CUT = re.compile(
    r"socket closed|connection (was )?(reset|closed|lost|dropped|aborted)|broken pipe|goaway|stream removed|rst_stream"
    r"|recvmsg|keepalive|remote end closed|timed out|incomplete ?read",
    re.I,
)


@dataclass(frozen=True)
class Told:
    """What is known of a failure.

    Attributes:
        code: of google.rpc.Code; 0: none was told.
        message: Google's words, or the network's.
        reasons: every name that was given for it: `RATE_LIMIT_EXCEEDED`, `quotaExceeded`, `RESOURCE_NOT_READY`.
        facts: what was told with it: `quota_limit`, `service`, `permission`.
        signed_out: nobody is signed in, or not any more.
        cut: the answer never came, so that the request may have been granted.
        unsent: nothing was reached that could have granted it.
    """

    code: int
    message: str
    reasons: frozenset[str] = frozenset()
    facts: Mapping[str, str] = field(default_factory=dict)
    signed_out: bool = False
    cut: bool = False
    unsent: bool = False


def told(error: Any) -> Told:
    """What an error says.

    Args:
        error: an exception of google.api_core, google.auth or requests; a `google.rpc.Status`; an operation of Compute
            Engine that ended badly, or its `error`; either as JSON data.
    """
    cause = getattr(error, "cause", None)  # of api_core's RetryError: the last of many
    if isinstance(cause, BaseException):
        return told(cause)
    module = type(error).__module__
    if module.startswith("google.auth"):
        return _of_sign_in(error)
    if module.startswith(("requests", "urllib3")) or isinstance(error, (ConnectionError, TimeoutError)):
        return _of_network(error)
    if isinstance(error, BaseException):
        return _of_call(error)
    return _of_operation(error)


def _of_sign_in(error: Any) -> Told:
    network = type(error).__name__ == "TransportError" or getattr(error, "retryable", False)
    return _unanswered(str(error)) if network else Told(16, str(error), signed_out=True)


def _of_network(error: Any) -> Told:
    response = getattr(error, "response", None)
    if response is not None:
        return _of_response(response)
    told = _unanswered(str(error))
    return replace(told, cut=not told.unsent)


def _unanswered(text: str) -> Told:
    return Told(14, in_short(text), unsent=bool(UNSENT.search(text)))


def in_short(text: str) -> str:
    """The host and what is the matter, of what the network's libraries say, who name their objects besides."""
    host, why = re.search(r"host='([^']+)'", text), re.search(r"\[Errno -?\d+\] ([^'\")\]]+)|(\w+ timed out)", text)
    return f"{host[1]}: {why[1] or why[2]}" if host and why else text


def _of_call(error: Any) -> Told:
    """An exception of api_core, by gRPC or by REST, or one raised for an operation's error."""
    response = getattr(error, "response", None)
    if hasattr(response, "json") and hasattr(response, "status_code"):
        return _of_response(response)
    message, cause = str(getattr(error, "message", error)), next(iter(getattr(error, "errors", ())), None)
    if type(cause).__name__ == "Status":
        return _of_operation(cause)
    if getattr(getattr(response, "error", None), "errors", None):  # an operation of Compute Engine
        return _of_operation(response)
    status = getattr(error, "grpc_status_code", None)
    code = status.value[0] if status is not None else HTTP.get(getattr(error, "code", None) or 0, 0)
    reasons, facts = _details(getattr(error, "details", ()) or ())
    plugin = re.search(r"invalid_grant|reauthenticat|RefreshError|expired or revoked", message, re.I)
    cut = code == 4 or (code == 14 and bool(CUT.search(message)) and not UNSENT.search(message))
    unsent = code == 14 and bool(UNSENT.search(message))
    return Told(code, message, reasons, facts, signed_out=bool(plugin), cut=cut, unsent=unsent)


def _of_response(response: Any) -> Told:
    """An answer of a REST API that tells an error."""
    document: Any = None
    with suppress(ValueError):
        document = response.json()
    whole: Any = (document[:1] or [None])[0] if isinstance(document, list) else document
    data: Any = whole.get("error") if isinstance(whole, Mapping) else None
    if isinstance(data, str):  # as the token service has it: {"error": "invalid_grant", ...}
        words = str(whole.get("error_description", data))
        return Told(16, words, frozenset({data}), signed_out=True)
    if not isinstance(data, Mapping):
        code = HTTP.get(response.status_code, 0)
        return Told(code, response.text.strip() or f"HTTP {response.status_code}", cut=code == 4)
    code = CODES.get(data.get("status", ""), 0) or HTTP.get(response.status_code, 0)
    reasons, facts = _details(data.get("details", ()))
    named = {str(one["reason"]) for one in data.get("errors", ()) if one.get("reason")}
    return Told(code, str(data.get("message", "")), reasons | named, facts, cut=code == 4)


def _of_operation(error: Any) -> Told:
    """A google.rpc.Status, or what Compute Engine's operations hold: a list of errors, the first of which counts."""
    if isinstance(error, Mapping):
        error = error.get("error", error)
        listed, get = error.get("errors"), error.get
    else:
        inner = getattr(error, "error", error)
        listed, get = getattr(inner, "errors", None), lambda name, default=None: getattr(inner, name, default)
    if not listed:
        reasons, facts = _details(get("details", ()) or ())
        return Told(int(get("code", 0) or 0), str(get("message", "")), reasons, facts)
    first = listed[0] if isinstance(listed[0], Mapping) else type(listed[0]).to_dict(listed[0])
    name = str(first.get("code", ""))
    facts: dict[str, str] = {}
    reasons = {name} if name else set()
    for one in first.get("error_details") or first.get("errorDetails") or ():
        info = one.get("error_info") or one.get("errorInfo") or {}
        limit = one.get("quota_info") or one.get("quotaInfo") or {}
        reasons |= {info["reason"]} if info.get("reason") else set()
        facts |= {key: str(value) for key, value in (info.get("metadatas") or {}).items()}
        if limit:
            facts["quota_limit"] = str(limit.get("limit_name") or limit.get("limitName") or "")
            facts["quota_limit_value"] = str(limit.get("limit", ""))
    return Told(0, str(first.get("message", "")), frozenset(reasons), facts)


def _details(items: Iterable[Any]) -> tuple[frozenset[str], dict[str, str]]:
    """The reasons and facts of ErrorInfo and QuotaFailure, however they are packed."""
    from google.protobuf.json_format import MessageToDict
    from google.rpc import error_details_pb2  # noqa: F401 (packed details are only readable once it is imported)

    reasons: set[str] = set()
    facts: dict[str, str] = {}
    for item in items:
        with suppress(TypeError, AttributeError, ValueError):  # a detail of a kind that is not known here
            data = item if isinstance(item, Mapping) else MessageToDict(item)
            kind = data.get("@type", "").rpartition(".")[2] or type(item).__name__
            if kind == "ErrorInfo":
                reasons.add(data.get("reason", ""))
                facts |= {key: str(value) for key, value in data.get("metadata", {}).items()}
            elif kind == "QuotaFailure":
                reasons.add(kind)
                for violation in data.get("violations", ()):
                    facts.setdefault("violation", violation.get("description", ""))
                    facts.setdefault("quota_limit", violation.get("quotaId", ""))
    return frozenset(reasons - {""}), {key: value for key, value in facts.items() if value}
