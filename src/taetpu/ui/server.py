"""Server for the live page and its data. An open page polls for new messages.

The server only reads the store, so it can be restarted while a study trains. Other users of the machine can reach
127.0.0.1. Requests without the token in the printed link are therefore rejected. Requests that name another host (DNS
rebinding) and requests from other origins are also rejected.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from importlib.resources import files
from threading import Lock
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from taetpu.core.errors import UserError
from taetpu.report.chart_files import vega_bundle
from taetpu.report.verdict_style import verdict_css
from taetpu.store.documents import finite
from taetpu.ui import page_data
from taetpu.ui.feed import Feed

COOKIE = "taetpu"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
REPORT_POLICY = "sandbox allow-scripts allow-popups; frame-ancestors 'none'"
"""Policy of a report in addition to the policy that it contains. In a sandbox, its scripts cannot read other pages."""
HOSTS = ("127.0.0.1", "localhost")
"""Hosts that requests may name. Any port is allowed, because `ssh -L` may forward a different port."""
PAGES = ("/", "/study/{name}", "/run/{study}/{arm}/{run}", "/runs")


class Server:
    """Application that serves the live page."""

    def __init__(self, root: page_data.Root, token: str):
        self.root, self.token = root, token
        self.feeds: dict[str, Feed] = {}
        self.reading = Lock()  # requests are answered in threads

    def app(self) -> Starlette:
        """Return the ASGI application."""
        routes = [
            *(Route(path, self.shell) for path in PAGES),
            Route("/vega.js", self.vega),
            Route("/verdicts.css", self.verdict_style),
            Route("/report/{name}", self.report),
            Mount("/static", StaticFiles(packages=[("taetpu.ui", "static")])),
            Route("/data/studies", self.data(lambda request: self.root.studies())),
            Route("/data/runs", self.data(lambda request: self.root.runs())),
            Route("/data/run/{study}/{arm}/{run}", self.data(lambda request: self.root.run(**request.path_params))),
            Route("/data/study/{name}", self.data(self.messages)),
        ]
        hosts = Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False)
        return Starlette(routes=routes, middleware=[hosts, Middleware(BaseHTTPMiddleware, dispatch=self.guard)])

    async def guard(self, request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        """Reject requests from other origins or without the token, and add security headers to every response."""
        origin = request.headers.get("origin", "").lower()
        if origin and origin != f"{request.url.scheme}://{request.headers.get('host', '').lower()}":
            answer: Response = PlainTextResponse(
                f"Pages from {origin!r} are not allowed to read the data of taetpu's live page.\n", 403
            )
        else:
            answer = await self.admitted(request, go_on)
        answer.headers.setdefault("Content-Security-Policy", POLICY)
        answer.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        answer.headers["Referrer-Policy"] = "no-referrer"
        answer.headers["X-Content-Type-Options"] = "nosniff"
        return answer

    async def admitted(self, request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        """Answer requests with the token in a cookie or in the query, and reject all other requests.

        A request with the token in the query is redirected to the same address without the token. The response stores
        the token in a cookie.
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
        return PlainTextResponse("Open the link that `taetpu ui` printed, because the link contains a token.\n", 403)

    async def shell(self, request: Request) -> Response:
        """Return the HTML shared by all pages. The page's script selects the content according to the address."""
        return HTMLResponse(files("taetpu.ui").joinpath("static/shell.html").read_bytes())

    async def vega(self, request: Request) -> Response:
        """Return the script that draws charts."""
        return Response(vega_bundle(), media_type="text/javascript", headers={"Cache-Control": "max-age=86400"})

    async def verdict_style(self, request: Request) -> Response:
        """Return the colours of verdicts."""
        return Response(verdict_css(), media_type="text/css")

    async def report(self, request: Request) -> Response:
        """Return the report of a study, or status 404 if it cannot be made."""
        try:
            page = await asyncio.to_thread(self.root.report, request.path_params["name"])
        except UserError as error:
            return PlainTextResponse(f"{error}\n", 404)
        return HTMLResponse(page, headers={"Content-Security-Policy": REPORT_POLICY})

    def data(self, make: Callable[[Request], Any]) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint that responds with the JSON of `make`, or with status 404 if `make` raises `UserError`."""

        async def answer(request: Request) -> Response:
            try:
                return JSONResponse(finite(await asyncio.to_thread(make, request)))
            except UserError as error:
                return JSONResponse({"problem": str(error)}, 404)

        return answer

    def messages(self, request: Request) -> list[dict[str, Any]]:
        """Read the store and return the messages on a study after the cursor in `?since=`.

        Raises:
            UserError: If the study does not exist.
        """
        name = request.path_params["name"]
        with self.reading:
            if name not in self.feeds:
                self.feeds[name] = Feed(self.root.study(name))
            feed = self.feeds[name]
            feed.poll()
            messages = feed.since(request.query_params.get("since"))
            return [{"id": feed.cursor(message), "kind": message.kind, "data": message.data} for message in messages]
