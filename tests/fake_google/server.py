"""One HTTP server for every REST service of the fakes."""

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.fake_google.world import NAMES, Cut, Refused, World

READING = {"GET", "HEAD"}


@dataclass(frozen=True)
class Request:
    """A request: path without query, matched groups of the route, headers in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    address: str
    parts: Mapping[str, str] = field(default_factory=dict)

    def json(self) -> Any:
        return json.loads(self.body or b"{}")


@dataclass(frozen=True)
class Answer:
    """A reply other than JSON with status 200."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True)
class Route:
    """A call of a service: what it is named, and who answers.

    Attributes:
        pattern: a regular expression of the whole path; a group `zone` says where, for faults.
        answer: gives JSON data, bytes or an `Answer`.
        changes: whether the call changes something; by default all do that are no GET.
    """

    service: str
    name: str
    method: str
    pattern: str
    answer: Callable[[Request], Any]
    changes: bool | None = None


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    """Length of the queue of connections: a client that finds it full retries after a second."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # who asked has been killed
            super().handle_error(request, client_address)


class Server:
    """A context manager that serves routes on 127.0.0.1, in threads."""

    def __init__(self, world: World, routes: list[Route], port: int = 0):
        self.world, self.routes = world, [(re.compile(route.pattern), route) for route in routes]
        self.http = _Quiet(("127.0.0.1", port), _handler(self))

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}"

    def __enter__(self) -> "Server":
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.http.shutdown()
        self.http.server_close()

    def answer(self, request: Request) -> Answer:
        """Return the reply to a request; raise `Cut` to send none."""
        try:
            return _as_answer(self._routed(request))
        except Refused as refused:
            return _as_answer(_error(refused), refused.http)

    def _routed(self, request: Request) -> Any:
        for pattern, route in self.routes:
            found = pattern.fullmatch(request.path) if route.method == request.method else None
            if found:
                parts = {name: text for name, text in found.groupdict().items() if text is not None}
                return self._called(route, replace(request, parts=parts))
        raise Refused(5, f"the fake cloud has no {request.method} {request.path}")

    def _called(self, route: Route, request: Request) -> Any:
        changes = request.method not in READING if route.changes is None else route.changes
        zone = request.parts.get("zone", "")
        return self.world.call(route.service, route.name, zone, changes, lambda: route.answer(request))


def _as_answer(data: Any, status: int = 200) -> Answer:
    if isinstance(data, Answer):
        return data
    if isinstance(data, bytes):
        return Answer(status, {"Content-Type": "application/octet-stream"}, data)
    if data is None:
        return Answer(204)
    return Answer(status, {"Content-Type": "application/json"}, json.dumps(data).encode())


def _error(refused: Refused) -> dict[str, Any]:
    """Return the reply of an error in Google's REST APIs."""
    told: dict[str, Any] = {"code": refused.http, "message": refused.message, "status": NAMES[refused.code]}
    told["errors"] = [{"message": refused.message, "domain": "global", "reason": refused.reason}]
    if refused.facts:
        kind = "type.googleapis.com/google.rpc.ErrorInfo"
        info = {"@type": kind, "reason": refused.reason, "domain": "googleapis.com", "metadata": refused.facts}
        told["details"] = [info]
    return {"error": told}


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Headers and body in one packet, at once: a client waits 40 ms for the second of two.
        wbufsize = -1
        disable_nagle_algorithm = True

        def log_message(self, format: str, *args: object) -> None:
            pass

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string(server.world.now() if timestamp is None else timestamp)

        def answer(self) -> None:
            split = urlsplit(self.path)
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(
                self.command, split.path, dict(parse_qsl(split.query)), headers, self.body(), server.address
            )
            try:
                reply = server.answer(request)
            except Cut:
                self.close_connection = True
                return
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.write(reply.body)

        def write(self, body: bytes) -> None:
            step = len(body) + 1 if server.world.pause is None else 2**20
            for start in range(0, len(body), step):
                self.wfile.write(body[start : start + step])
                server.world.sent += len(body[start : start + step])
                if server.world.pause is not None:
                    self.wfile.flush()
                    time.sleep(server.world.pause)

        def body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.whole(int(self.headers.get("Content-Length") or 0))
            read = b""
            while size := int(self.rfile.readline().strip() or "0", 16):
                read += self.whole(size)
                self.rfile.readline()
            if self.rfile.readline() != b"\r\n":
                raise ConnectionResetError
            return read

        def whole(self, size: int) -> bytes:
            """So many bytes of the request. One that was cut off is no request."""
            if len(read := self.rfile.read(size)) < size:
                raise ConnectionResetError
            return read

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = answer

    return Handler
