"""The live page in a real browser during training."""

import json

import pytest

pytest.importorskip("uvicorn")

from tests.browsers import DESK, PHONE, until, violations
from tests.ui.conftest import Growing
from tests.ui.served import TOKEN, serving

STATE = "document.getElementById('main').state"
HERE = "toy"


def address(port: int, path: str) -> str:
    return f"http://127.0.0.1:{port}/{path}?token={TOKEN}"


def points(growing) -> dict[str, list]:
    """Return the stored training losses of each run."""
    losses = {run.key: run.metrics()["train/loss"] for run in growing.folder.runs()}
    return {key.partition("/")[2]: [series.step.tolist(), series.value.tolist()] for key, series in losses.items()}


def shown(page) -> dict[str, list]:
    """Return the training losses of each run in the page."""
    runs = page.evaluate(f"{STATE}?.runs ?? {{}}")
    return {key: run["series"]["train/loss"] for key, run in runs.items() if "train/loss" in run["series"]}


def wait_until_shown(page, growing) -> None:
    held = f"Object.values({STATE}?.runs ?? {{}}).map((run) => (run.series['train/loss'] ?? [[]])[0].length)"
    stored = sorted(len(steps) for steps, _ in points(growing).values())
    until(page, f"JSON.stringify({held}.sort((a, b) => a - b)) === '{json.dumps(stored, separators=(',', ':'))}'")


@pytest.mark.slow
def test_page_follows_the_store(growing, tmp_path, opened) -> None:
    growing.train("baseline", 0, 0, 100)
    with serving(tmp_path) as port:
        page = opened(address(port, f"study/{HERE}"), offline=False)
        wait_until_shown(page, growing)
        growing.train("baseline", 0, 100, 400)
        growing.train("other", 1, 0, 50)
        wait_until_shown(page, growing)
        assert shown(page) == points(growing)
        page.wait_for_selector(".chart canvas")
        growing.finish("baseline", 0, 0.25)
        until(page, "document.querySelector('progress').value === 1")
        until(page, "document.body.innerText.includes('lower is better')")
        page.context.close()


@pytest.mark.slow
def test_restarted_server_neither_loses_nor_duplicates_points(growing, tmp_path, opened) -> None:
    growing.train("baseline", 0, 0, 100)
    with serving(tmp_path) as port:
        page = opened(address(port, f"study/{HERE}"), offline=False)
        wait_until_shown(page, growing)
    growing.train("baseline", 0, 100, 200)
    growing.train("other", 0, 0, 60)
    until(page, "document.getElementById('link').textContent.includes('not reachable')")
    with serving(tmp_path, port):
        wait_until_shown(page, growing)
        growing.train("other", 0, 60, 90, utilisation=0.25, memory_bytes=2.0**30)
        wait_until_shown(page, growing)
        until(page, "document.body.textContent.includes('Device: 25% of peak, memory 1.0 GiB')")
        assert shown(page) == points(growing)
        page.context.close()
    assert all("ERR_" in fault for fault in page.faults)  # what the browser says of a server that is gone
    page.faults.clear()


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(DESK, "dark"), (PHONE, "light")])
def test_every_page_fits_and_is_accessible(growing, tmp_path, opened, width: int, scheme: str) -> None:
    for arm in ("baseline", "other"):
        for seed in (0, 1):
            growing.train(arm, seed, 0, 100)
            growing.finish(arm, seed, 0.3 + 0.1 * seed)
    run = growing.run("other", 1)
    with serving(tmp_path) as port:
        for path in ("", f"study/{HERE}", f"run/{HERE}/other/1-{run.id}", "runs"):
            page = opened(address(port, path), width, scheme, offline=False)
            until(page, "document.querySelector('h1') !== null && document.querySelector('main').innerText.length > 40")
            page.wait_for_timeout(400)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert violations(page) == [], path
            page.context.close()


@pytest.mark.slow
def test_empty_root_says_so_until_a_study_appears(tmp_path, opened) -> None:
    with serving(tmp_path) as port:
        page = opened(address(port, ""), offline=False)
        page.get_by_text("There is no study here yet.").wait_for()
        Growing(tmp_path).train("baseline", 0, 0, 10)
        page.get_by_role("link", name="toy").wait_for()
        page.context.close()


@pytest.mark.slow
def test_tables_are_searched_and_sorted_and_runs_compared(growing, tmp_path, opened) -> None:
    for seed, loss in ((0, 0.5), (1, 0.2)):
        for arm in ("baseline", "other"):
            growing.train(arm, seed, 0, 100)
            growing.finish(arm, seed, loss + (0.1 if arm == "other" else 0))
    with serving(tmp_path) as port:
        page = opened(address(port, "runs"), offline=False)
        rows = page.locator("table").last.locator("tbody tr")
        until(page, "document.querySelectorAll('tbody tr').length === 4")
        page.get_by_role("button", name="val/loss").click()
        assert [row.locator("td").nth(2).inner_text() for row in rows.all()] == [
            "0.20000",
            "0.30000",
            "0.50000",
            "0.60000",
        ]
        page.get_by_role("button", name="val/loss").click()
        assert rows.first.locator("td").nth(2).inner_text() == "0.60000"
        page.get_by_role("searchbox").fill("other 0.3")
        assert rows.count() == 1
        page.get_by_role("searchbox").fill("")
        for name in ("baseline/0", "other/0"):
            rows.filter(has_text=name).get_by_role("checkbox").check()
        differ = page.get_by_role("table", name="Settings that differ")
        differ.wait_for()
        assert differ.locator("tbody").inner_text().split() == ["model.dim", "8", "16"]
        page.reload()  # the address says what was chosen
        differ.wait_for()
        rows.filter(has_text="other/0").get_by_role("checkbox").uncheck()
        rows.filter(has_text="baseline/1").get_by_role("checkbox").check()
        page.get_by_text("These runs differ only in the seed.").wait_for()
        page.context.close()
