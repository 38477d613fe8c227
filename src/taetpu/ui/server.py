"""The server of the live page: pages, their data, and one stream of messages for each page that is open.

It reads the store alone, so it may be started, killed and started again while a study trains. Who has not the token of
the printed link is refused: other users of the machine can reach 127.0.0.1, too.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cache
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from taetpu.core.errors import UserError
from taetpu.report.vega import vega
from taetpu.store.documents import finite
from taetpu.ui import pages
from taetpu.ui.feed import Feed, Message

COOKIE = "taetpu"
HEARTBEAT = 15.0
"""Seconds after which an idle stream says that it is still there."""
PERIOD = 2.0
"""Seconds between two looks at the store, while anybody watches."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
STATIC = {"live.js": "text/javascript", "live.css": "text/css"}
PAGES = ("/", "/study/{name}", "/run/{study}/{arm}/{run}", "/runs")


class Watched:
    """A feed that is read while somebody listens, and wakes who does."""

    def __init__(self, feed: Feed, period: float = PERIOD):
        self.feed, self.period = feed, period
        self.listeners = 0
        self.changed = asyncio.Condition()
        self.task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Read the store in the background for as long as the block lasts."""
        self.listeners += 1
        if self.task is None:
            await self.look()
            self.task = asyncio.create_task(self._read())
        try:
            yield
        finally:
            self.listeners -= 1
            if not self.listeners and self.task:
                self.task.cancel()
                self.task = None

    async def look(self) -> None:
        """Read what is new, once."""
        if await asyncio.to_thread(self.feed.poll):
            async with self.changed:
                self.changed.notify_all()

    async def _read(self) -> None:
        while True:
            await asyncio.sleep(self.period)
            await self.look()

    async def since(self, cursor: str | None, timeout: float) -> list[Message]:
        """The messages since a cursor; waits for one, but no longer than that."""
        found = self.feed.since(cursor)
        if not found:
            with suppress(TimeoutError):
                async with self.changed:
                    await asyncio.wait_for(self.changed.wait(), timeout)
            found = self.feed.since(cursor)
        return found


class Server:
    """What the pages are made of."""

    def __init__(self, root: pages.Root, token: str, period: float = PERIOD):
        self.root, self.token, self.period = root, token, period
        self.watched: dict[str, Watched] = {}

    def app(self) -> Starlette:
        """The application, to be served by uvicorn."""
        routes = [
            *(Route(path, self.shell) for path in PAGES),
            Route("/vega.js", lambda request: _script(vega())),
            *(Route(f"/{name}", _static(name)) for name in STATIC),
            Route("/data/studies", self.data(lambda request: self.root.studies())),
            Route("/data/runs", self.data(lambda request: self.root.runs())),
            Route("/data/run/{study}/{arm}/{run}", self.data(lambda request: self.root.run(**request.path_params))),
            Route("/data/study/{name}", self.messages),
            Route("/events/study/{name}", self.events),
        ]
        return Starlette(routes=routes, middleware=[Middleware(BaseHTTPMiddleware, dispatch=self.guard)])

    async def guard(self, request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        """Refuse who has no token; one that comes in the link moves to a cookie, out of sight."""
        given = request.query_params.get("token")
        if given is not None and secrets.compare_digest(given.encode(), self.token.encode()):
            rest = [(key, value) for key, value in request.query_params.multi_items() if key != "token"]
            there = request.url.replace(query="&".join(f"{key}={value}" for key, value in rest))
            answer: Response = RedirectResponse(f"{there.path}{'?' + there.query if there.query else ''}", 303)
            answer.set_cookie(f"{COOKIE}-{request.url.port}", self.token, httponly=True, samesite="strict")
        elif secrets.compare_digest(
            request.cookies.get(f"{COOKIE}-{request.url.port}", "").encode(), self.token.encode()
        ):
            answer = await go_on(request)
        else:
            answer = PlainTextResponse("Open the link that `taetpu ui` printed: it holds a token.\n", 403)
        answer.headers["Content-Security-Policy"] = POLICY
        answer.headers["Referrer-Policy"] = "no-referrer"
        answer.headers["X-Content-Type-Options"] = "nosniff"
        return answer

    async def shell(self, request: Request) -> Response:
        """Every page is the same few lines; what it shows follows from its address."""
        return Response(_resource("shell.html"), media_type="text/html")

    def data(self, make: Callable[[Request], Any]) -> Callable[[Request], Awaitable[Response]]:
        """An answer in JSON; a mistake in the address, or a damaged file, as its message."""

        async def answer(request: Request) -> Response:
            try:
                return JSONResponse(finite(await asyncio.to_thread(make, request)))
            except UserError as error:
                return JSONResponse({"problem": str(error)}, 404)

        return answer

    def watch(self, name: str) -> Watched:
        """The feed of a study. Raises `UserError` where there is none of that name."""
        if name not in self.watched:
            self.watched[name] = Watched(Feed(self.root.study(name)), self.period)
        return self.watched[name]

    async def messages(self, request: Request) -> Response:
        """The messages since `?since=`, for pages that cannot hold a stream open."""
        try:
            watched = self.watch(request.path_params["name"])
        except UserError as error:
            return JSONResponse({"problem": str(error)}, 404)
        await watched.look()
        found = watched.feed.since(request.query_params.get("since"))
        return JSONResponse([{"id": watched.feed.cursor(m), "kind": m.kind, "data": finite(m.data)} for m in found])

    async def events(self, request: Request) -> Response:
        """The same as server-sent events, for as long as the page is open."""
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
                        yield event(at, message)
                    if not found:
                        yield ": still here\n\n"

        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(stream(), media_type="text/event-stream", headers=headers)


def event(cursor: str, message: Message) -> str:
    """One server-sent event."""
    body: Mapping[str, Any] = finite(message.data)
    return f"id: {cursor}\nevent: {message.kind}\ndata: {json.dumps(body, separators=(',', ':'), allow_nan=False)}\n\n"


def _static(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return Response(_resource(name), media_type=STATIC[name], headers={"Cache-Control": "no-cache"})

    return answer


def _script(text: str) -> Response:
    return Response(text, media_type="text/javascript", headers={"Cache-Control": "max-age=86400"})


@cache
def _resource(name: str) -> str:
    return files("taetpu.ui").joinpath("static", name).read_text(encoding="utf-8")
