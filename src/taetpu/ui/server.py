"""Server for the live page, which serves the pages, their data, and a stream of messages for each open page.

The server only reads the store, so it can be restarted while a study trains. It rejects requests without the token in
the printed link, since other users of the machine can reach 127.0.0.1. It also rejects requests that name another host
(DNS rebinding) and requests from other origins.
"""

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from taetpu.core.errors import UserError
from taetpu.report.chart_files import vega_bundle
from taetpu.store.documents import finite
from taetpu.ui import pages
from taetpu.ui.feed import Feed, Message

COOKIE = "taetpu"
MAX_PORT = 65535
HEARTBEAT = 15.0
"""Seconds between heartbeats in an idle stream."""
PERIOD = 2.0
"""Seconds between polls of the store while pages are open."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HOST = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\])(?::\d{1,5})?", re.ASCII | re.IGNORECASE)
"""Pattern for accepted Host headers: this machine with any port, since `ssh -L` may forward a different port."""
STATIC = {"live.js": "text/javascript", "live.css": "text/css"}
PAGES = ("/", "/study/{name}", "/run/{study}/{arm}/{run}", "/runs")


class WatchedFeed:
    """Feed that is polled while it has listeners. Listeners are notified of new messages."""

    def __init__(self, feed: Feed, period: float = PERIOD):
        self.feed, self.period = feed, period
        self.listeners = 0
        self.changed = asyncio.Condition()
        self.task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Register a listener inside the `async with` block. The store is polled while there are listeners."""
        self.listeners += 1
        if self.task is None:
            await self.poll()
            self.task = asyncio.create_task(self._read())
        try:
            yield
        finally:
            self.listeners -= 1
            if not self.listeners and self.task:
                self.task.cancel()
                self.task = None

    async def poll(self) -> None:
        """Poll the store once and notify listeners if there are new messages."""
        if await asyncio.to_thread(self.feed.poll):
            async with self.changed:
                self.changed.notify_all()

    async def _read(self) -> None:
        while True:
            await asyncio.sleep(self.period)
            await self.poll()

    async def since(self, cursor: str | None, timeout: float) -> list[Message]:
        """Return the messages after a cursor. If there are none, wait up to `timeout` seconds for a new message."""
        found = self.feed.since(cursor)
        if not found:
            with suppress(TimeoutError):
                async with self.changed:
                    await asyncio.wait_for(self.changed.wait(), timeout)
            found = self.feed.since(cursor)
        return found


class Server:
    """Application that serves the live page."""

    def __init__(self, root: pages.Root, token: str, period: float = PERIOD):
        self.root, self.token, self.period = root, token, period
        self.watched: dict[str, WatchedFeed] = {}

    def app(self) -> Starlette:
        """Return the ASGI application."""
        routes = [
            *(Route(path, self.shell) for path in PAGES),
            Route("/vega.js", lambda request: _script(vega_bundle())),
            *(Route(f"/{name}", _static_route(name)) for name in STATIC),
            Route("/data/studies", self.data(lambda request: self.root.studies())),
            Route("/data/runs", self.data(lambda request: self.root.runs())),
            Route("/data/run/{study}/{arm}/{run}", self.data(lambda request: self.root.run(**request.path_params))),
            Route("/data/study/{name}", self.messages),
            Route("/events/study/{name}", self.events),
        ]
        return Starlette(routes=routes, middleware=[Middleware(BaseHTTPMiddleware, dispatch=self.guard)])

    async def guard(self, request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        """Reject requests from other origins or without the token, and add security headers to every response."""
        answer = _reject_origin(request) or await self.admitted(request, go_on)
        answer.headers["Content-Security-Policy"] = POLICY
        answer.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        answer.headers["Referrer-Policy"] = "no-referrer"
        answer.headers["X-Content-Type-Options"] = "nosniff"
        return answer

    async def admitted(self, request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        """Answer requests with the token in a cookie or in the query, and reject all other requests.

        A request with the token in the query is redirected to the same address without the token, which the response
        stores in a cookie.
        """
        given = request.query_params.get("token")
        if given is not None and secrets.compare_digest(given.encode(), self.token.encode()):
            rest = [(key, value) for key, value in request.query_params.multi_items() if key != "token"]
            path = "/" + request.url.path.lstrip("/\\")  # `//host` would be another host
            answer = RedirectResponse(f"{path}?{urlencode(rest)}" if rest else path, 303)
            answer.set_cookie(f"{COOKIE}-{request.url.port}", self.token, httponly=True, samesite="strict")
            return answer
        cookie = request.cookies.get(f"{COOKIE}-{request.url.port}", "")
        if secrets.compare_digest(cookie.encode(), self.token.encode()):
            return await go_on(request)
        return PlainTextResponse("Open the link that `taetpu ui` printed: it holds a token.\n", 403)

    async def shell(self, request: Request) -> Response:
        """Return the HTML shared by all pages. The script selects the content according to the address."""
        return Response(_resource("shell.html"), media_type="text/html")

    def data(self, make: Callable[[Request], Any]) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint that responds with the JSON of `make`, or with status 404 if `make` raises `UserError`."""

        async def answer(request: Request) -> Response:
            try:
                return JSONResponse(finite(await asyncio.to_thread(make, request)))
            except UserError as error:
                return JSONResponse({"problem": str(error)}, 404)

        return answer

    def watch(self, name: str) -> WatchedFeed:
        """Return the feed for a study.

        Raises:
            UserError: If there is no study with this name.
        """
        if name not in self.watched:
            self.watched[name] = WatchedFeed(Feed(self.root.study(name)), self.period)
        return self.watched[name]

    async def messages(self, request: Request) -> Response:
        """Return the messages after the cursor in `?since=`, for pages that cannot keep a stream open."""
        try:
            watched = self.watch(request.path_params["name"])
        except UserError as error:
            return JSONResponse({"problem": str(error)}, 404)
        await watched.poll()
        found = watched.feed.since(request.query_params.get("since"))
        return JSONResponse([{"id": watched.feed.cursor(m), "kind": m.kind, "data": finite(m.data)} for m in found])

    async def events(self, request: Request) -> Response:
        """Stream messages as server-sent events while the page is open."""
        try:
            watched = self.watch(request.path_params["name"])
        except UserError as error:
            return JSONResponse({"problem": str(error)}, 404)
        cursor = request.headers.get("last-event-id") or request.query_params.get("since")

        async def stream() -> AsyncIterator[str]:
            at = cursor
            async with watched.listening():
                while not await request.is_disconnected():
                    found = await watched.since(at, HEARTBEAT)
                    for message in found:
                        at = watched.feed.cursor(message)
                        yield format_event(at, message)
                    if not found:
                        yield ": heartbeat\n\n"

        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(stream(), media_type="text/event-stream", headers=headers)


def _reject_origin(request: Request) -> Response | None:
    """Return a response that rejects a request for another host or from another origin; None for other requests."""
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    if HOST.fullmatch(host) is None or int(host.rpartition("]")[2].partition(":")[2] or 80) > MAX_PORT:
        problem = f"The live page is at 127.0.0.1 or localhost; the request names {host!r}."
        return PlainTextResponse(f"{problem}\nFrom another machine, use the `ssh -L` line of `taetpu ui`.\n", 403)
    if origin is not None and origin.lower() != f"{request.url.scheme}://{host.lower()}":
        return PlainTextResponse(f"A page of {origin!r} may not read the live page.\n", 403)
    return None


def format_event(cursor: str, message: Message) -> str:
    """Format a message as a server-sent event."""
    body: Mapping[str, Any] = finite(message.data)
    return f"id: {cursor}\nevent: {message.kind}\ndata: {json.dumps(body, separators=(',', ':'), allow_nan=False)}\n\n"


def _static_route(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return Response(_resource(name), media_type=STATIC[name], headers={"Cache-Control": "no-cache"})

    return answer


def _script(text: str) -> Response:
    return Response(text, media_type="text/javascript", headers={"Cache-Control": "max-age=86400"})


@cache
def _resource(name: str) -> str:
    return files("taetpu.ui").joinpath("static", name).read_text(encoding="utf-8")
