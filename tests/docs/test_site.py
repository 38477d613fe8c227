"""The documentation is built strictly, and its pages work from a folder: search, narrow screens, no network."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from tests.browsers import DESK, PHONE, until

ROOT = Path(__file__).parents[2]
PAGES = ("index", "how-do-i", "catalogue", "reference/study-file", "reference/python", "statistics", "contributing")


def listed(entries) -> set[str]:
    """Return the pages in a part of the navigation."""
    if isinstance(entries, str):
        return {entries}
    return {page for entry in (entries.values() if isinstance(entries, dict) else entries) for page in listed(entry)}


def test_every_page_is_in_the_navigation():
    pages = listed(YAML().load((ROOT / "mkdocs.yml").read_text())["nav"])  # keeps the tags of Python as they are
    assert {page.name for page in (ROOT / "docs").glob("*.md")} <= pages


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The folder of the built site."""
    if find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    return folder


@pytest.mark.slow
def test_generated_pages_have_what_the_package_has(site):
    import taetpu
    from taetpu.cli.main import COMMANDS
    from taetpu.core.registry import slots

    reference = site / "reference"
    commands, python = ((reference / f"{name}.html").read_text() for name in ("commands", "python"))
    assert all(f"taetpu {name}" in commands for name in COMMANDS)
    assert all(f"taetpu.{name}" in python for name in taetpu.__all__)
    assert {file.stem for file in (reference / "catalogue").glob("*.html")} == {*slots()}
    assert "equivalence" in (reference / "study-file.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(DESK, "light"), (PHONE, "dark")])
def test_pages_fit_and_ask_for_nothing(site, opened, width, scheme):
    page = opened((site / "index.html").as_uri(), width, scheme)
    for name in PAGES:
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.locator("main h1").count() == 1, name


@pytest.mark.slow
def test_the_search_works_without_a_server(site, opened):
    page = opened((site / "index.html").as_uri())
    page.locator(".md-search__input").press_sequentially("equivalence margin")
    until(page, "document.querySelectorAll('.md-search-result__item').length > 0")
    assert "statistics" in page.locator(".md-search-result__list").inner_html()
