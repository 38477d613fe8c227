"""The slow tests that the last day's commits concern, and the time that slow tests may take (`make rest`).

A test is *near* if it belongs to a package that the commits touched, or to one that imports a touched package. Near
tests come first, the closest at the front, and start within `NEAR_MINUTES`. The rotating part of all slow tests follows
and starts within `REST_MINUTES`. The summary names how many tests of each file were left out.
"""

import ast
import math
import os
import subprocess
import time
from collections import Counter
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.suites import in_part

ROOT = Path(__file__).parents[1]
PACKAGE = "taetpu"
NEAR_MINUTES = float(os.environ.get("NEAR_MINUTES", "0"))
"""Minutes within which near tests start; 0 selects the rotating part alone."""
REST_MINUTES = float(os.environ.get("REST_MINUTES", "inf"))
"""Minutes within which any slow test starts."""
LIMIT = pytest.StashKey[float]()
"""Minutes within which a slow test starts."""


def touched_files(root: Path = ROOT, hours: float = 24) -> set[str]:
    """Return the paths that the commits of the last `hours` before the newest commit touched, relative to `root`."""

    def git(*arguments: str) -> str:
        return subprocess.run(("git", "-C", root, *arguments), capture_output=True, text=True, check=True).stdout

    newest = datetime.fromisoformat(git("log", "-1", "--format=%cI").strip())
    since = (newest - timedelta(hours=hours)).isoformat()
    return set(git("log", f"--since={since}", "--name-only", "--format=", "--no-renames").splitlines()) - {""}


@cache
def imported_modules(file: Path) -> frozenset[str]:
    """Return the modules of taetpu that a file imports, inside functions too."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(name for name in names if name.split(".")[0] == PACKAGE)


def package_of(module: str) -> str:
    """Return the package of a module: `stats` of `taetpu.stats.plan`."""
    return module.removeprefix(f"{PACKAGE}.").partition(".")[0]


@cache
def package_imports(root: Path = ROOT) -> dict[str, set[str]]:
    """Return the packages that each package imports."""
    imports: dict[str, set[str]] = {}
    source = root / "src" / PACKAGE
    for file in source.rglob("*.py"):
        imports.setdefault(file.relative_to(source).parts[0].removesuffix(".py"), set()).update(
            package_of(module) for module in imported_modules(file)
        )
    return imports


def closeness(test: Path, touched: set[str], root: Path = ROOT) -> int | None:
    """Return how closely a test file is related to touched files; None if it is not.

    Returns:
        0 if the file itself or the module of its name was touched, 1 if it imports a touched module, 2 if its package
        was touched, 3 if its package imports a touched package.
    """
    place = test.relative_to(root / "tests")
    package = place.parts[0]
    modules = {
        ".".join(Path(name).relative_to("src").with_suffix("").parts).removesuffix(".__init__")
        for name in touched
        if name.startswith(f"src/{PACKAGE}/") and name.endswith(".py")
    }
    packages = {package_of(module) for module in modules}
    namesake = f"src/{PACKAGE}/{place.with_name(place.name.removeprefix('test_'))}"
    if touched & {namesake, str(test.relative_to(root))}:
        return 0
    if modules & imported_modules(test):
        return 1
    if package in packages:
        return 2
    return 3 if packages & package_imports(root).get(package, set()) else None


class SlowTests:
    """A pytest plugin that selects and orders slow tests, and starts none after its time."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.left_out: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Select near tests, the closest first, and the rotating part of the slow tests."""
        touched = touched_files() if NEAR_MINUTES else set()
        ranks: dict[pytest.Item, int] = {}
        for item in items:
            if not item.get_closest_marker("slow"):
                ranks[item] = 0
                continue
            near = closeness(item.path, touched) if touched else None
            if near is not None or in_part(item.nodeid):
                ranks[item] = 4 if near is None else near
                # Stored here because pytest-xdist appends the group of a test to its ID later.
                item.stash[LIMIT] = REST_MINUTES if in_part(item.nodeid) else NEAR_MINUTES
        config.hook.pytest_deselected(items=[item for item in items if item not in ranks])
        items[:] = sorted(ranks, key=lambda item: ranks[item])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Leave a test out if its time is over."""
        if (time.monotonic() - self.start) / 60 <= item.stash.get(LIMIT, math.inf):
            return None
        self.left_out.append(item.nodeid)
        # The test before kept the fixtures that it shares with this one. Those that the next does not share end here.
        item.session._setupstate.teardown_exact(nextitem)
        return True

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send the tests left out in this process to the main process of pytest-xdist."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["left_out"] = self.left_out

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Collect the tests left out in another process."""
        self.left_out += getattr(node, "workeroutput", {}).get("left_out", [])

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print how many tests of each file were left out."""
        if self.left_out:
            terminalreporter.section("slow tests left out for lack of time")
            for file, number in sorted(Counter(name.partition("::")[0] for name in self.left_out).items()):
                terminalreporter.write_line(f"{number:4d}  {file}")
