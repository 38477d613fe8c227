"""A real browser for the tests of pages: Chromium, driven by Playwright, with no way out of this machine."""

import shutil
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

PHONE, DESK = 375, 1280
QUIET = ("--no-proxy-server", "--disable-background-networking", "--disable-component-update", "--disable-sync")
"""The browser asks for nothing of its own accord."""
NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def chromium() -> Iterator:
    """The browser; skips where none is installed (see tests/SKIPPED.md)."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no chromium is installed")
    playwright = pytest.importorskip("playwright.sync_api").sync_playwright().start()
    browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu", *QUIET])
    yield browser
    browser.close()
    playwright.stop()


@pytest.fixture
def opened(chromium) -> Iterator[Callable]:
    """`opened(url, width=DESK, scheme="light", offline=True) -> page`.

    At the test's end, whatever a page's console complained of and whatever it asked for elsewhere is a failure.
    """
    faults: list[str] = []
    contexts = []

    def local(request) -> bool:
        there = urlsplit(request.url)
        return there.scheme in ("file", "data", "blob") or there.hostname == "127.0.0.1"

    def open_page(url: str, width: int = DESK, scheme: str = "light", offline: bool = True, height: int = 900):
        size = {"width": width, "height": height}
        context = chromium.new_context(offline=offline, color_scheme=scheme, viewport=size)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: faults.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: None if local(request) else faults.append(f"asked for {request.url}"))
        page.faults = faults
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not faults, "; ".join(faults)


DRAWN = """
  [...document.querySelectorAll("[data-chart]")].filter((p) => p.checkVisibility()).every((p) => p.querySelector("svg"))
"""
"""Has every chart been drawn whose place is not folded away?"""


def until(page, expression: str, seconds: float = 10) -> None:
    """Wait for a JavaScript expression to hold. Playwright's own waiting needs `eval`, which the pages forbid."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(50)


def seen_through(page) -> None:
    """Scroll to every chart that is not drawn yet, until all are."""
    undrawn = (
        "[...document.querySelectorAll('[data-chart]')].find((p) => p.checkVisibility() && !p.querySelector('svg'))"
    )
    until(page, f"(() => {{ const next = {undrawn}; next?.scrollIntoView(); return !next; }})()", seconds=60)
    page.evaluate("scrollTo(0, 0)")


def violations(page) -> list[str]:
    """Serious and critical faults of accessibility that axe finds, each with what it is about."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        f"{fault['id']}: {node['html'][:200]} {node.get('failureSummary', '')}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"][:3]
    ]
