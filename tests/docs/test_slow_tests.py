"""The selection of slow tests by what the last day's commits touched (`make rest`)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.slow_tests import ROOT, closeness, touched_files

SOURCES = {
    "src/taetpu/core/keys.py": "",
    "src/taetpu/stats/plan.py": "from taetpu.core.keys import key",
    "src/taetpu/stats/power.py": "",
    "src/taetpu/report/page.py": "def page():\n    from taetpu.stats import power",
    "src/taetpu/ui/server.py": "from taetpu.report.page import page",
    "tests/stats/test_plan.py": "",
    "tests/stats/test_power.py": "",
    "tests/spec/test_arms.py": "from taetpu.stats.plan import Plan",
    "tests/report/test_page.py": "",
    "tests/ui/test_server.py": "",
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A repository whose last day touched `stats.plan`, and whose day before touched everything."""
    folder = tmp_path_factory.mktemp("repository")

    def commit(when):
        names = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        dates = {"GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when}
        for line in (("add", "."), (*names, "commit", "--quiet", "-m", "x")):
            subprocess.run(("git", *line), cwd=folder, check=True, env={**os.environ, **dates})

    subprocess.run(("git", "init", "--quiet"), cwd=folder, check=True)
    for name, text in SOURCES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    commit("2026-01-01T12:00:00+00:00")
    (folder / "src/taetpu/stats/plan.py").write_text("from taetpu.core.keys import other")
    commit("2026-01-03T12:00:00+00:00")
    return folder


def test_only_the_last_day_counts(repository):
    assert touched_files(repository) == {"src/taetpu/stats/plan.py"}
    assert touched_files(repository, hours=72) == set(SOURCES)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("stats/test_plan.py", 0),  # the module of its name
        ("spec/test_arms.py", 1),  # imports it
        ("stats/test_power.py", 2),  # the same package
        ("report/test_page.py", 3),  # its package imports `stats`, inside a function
        ("ui/test_server.py", None),  # imports are followed once
    ],
)
def test_the_closest_tests_come_first(repository, name, rank):
    assert closeness(repository / "tests" / name, touched_files(repository), repository) == rank


def run_slow(folder: Path, processes: str = "2", **limits: str) -> str:
    environment = {**os.environ, "SHARE": "1", "NEAR_MINUTES": "0", **limits, "PYTHONPATH": str(ROOT)}
    line = (sys.executable, "-m", "pytest", "-n", processes, "--dist", "loadgroup")
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


PLUGIN = """\
from tests.slow_tests import SlowTests
def pytest_configure(config):
    config.pluginmanager.register(SlowTests())
"""


@pytest.mark.slow
def test_fixtures_of_tests_that_are_left_out_end(tmp_path):
    """Of each file, one slow test is in time and one is not; the fixture of a file ends before the next one begins."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow: slow\n")
    late = "def pytest_collection_finish(session):\n    for item in session.items:\n"
    late += "        item.stash[LIMIT] = -1 if 'late' in item.name else 9\n"
    (tmp_path / "conftest.py").write_text(PLUGIN + "from tests.slow_tests import LIMIT\n" + late)
    for name in "abc":
        (tmp_path / f"test_{name}.py").write_text(
            "import pytest\n@pytest.fixture(scope='module')\ndef shared():\n    yield\n    open('ended', 'a').write("
            f"'{name}')\n@pytest.mark.slow\ndef test_some(shared): pass\n"
            "@pytest.mark.slow\ndef test_late(shared): pass\n"
        )
    shown = run_slow(tmp_path, processes="1")
    assert "3 passed" in shown
    assert "error" not in shown
    assert "   1  test_c.py" in shown
    assert (tmp_path / "ended").read_text() == "abc"


@pytest.mark.slow
def test_tests_whose_time_is_over_are_counted_by_file(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow: slow\n")
    text = "import pytest\n@pytest.mark.slow\ndef test_slow(): pass\ndef test_quick(): pass\n"
    (tmp_path / "test_some.py").write_text(text)
    (tmp_path / "conftest.py").write_text(PLUGIN)
    assert "2 passed" in run_slow(tmp_path)
    shown = run_slow(tmp_path, REST_MINUTES="0")
    assert "1 passed" in shown
    assert "   1  test_some.py" in shown
