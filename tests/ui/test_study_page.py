"""The page of a study in a browser: what one sees while it trains, on a desk and on a phone."""

import pytest

pytest.importorskip("uvicorn")

from tests.browsers import PHONE, until
from tests.ui.served import TOKEN, serving
from tests.ui.test_browser import HERE, address

from taetpu.report.verdict_style import LIGHT, MARKS

HEADS = (
    "[...document.querySelectorAll('th[scope=col]')].filter((head) => head.checkVisibility()).map((h) => h.innerText)"
)
FOREST = ".forest svg"


def finish(growing, losses: dict[tuple[str, int], float]) -> None:
    for (arm, seed), loss in losses.items():
        growing.train(arm, seed, 0, 100)
        growing.finish(arm, seed, loss)


@pytest.mark.slow
def test_forest_plot_forms_and_the_first_screen_has_effect_and_verdict(growing, tmp_path, opened) -> None:
    growing.train("baseline", 0, 0, 100)
    growing.train("other", 0, 0, 100)
    with serving(tmp_path) as port:
        page = opened(address(port, f"study/{HERE}"), PHONE, offline=False, height=812)
        page.get_by_text("0 of 4 runs finished").wait_for()
        assert page.locator(FOREST).count() == 0
        assert "effect" not in page.locator(".title").inner_text()
        assert page.evaluate(HEADS)[:3] == ["arm", "verdict", "train/loss"]  # no column is empty
        assert "tokens" not in page.locator("select").first.inner_text()
        finish(growing, {("baseline", 0): 0.3, ("other", 0): 0.5})
        page.wait_for_selector(FOREST)
        page.get_by_text("effects of 1 arm on val/loss so far").wait_for()
        finish(growing, {("baseline", 1): 0.31, ("other", 1): 0.52})
        page.locator(".counts .worse").wait_for()
        until(page, f"document.querySelector('{FOREST}').getBoundingClientRect().bottom < 812")
        row = page.locator("tr", has_text="other").first
        for text in ("+0.2", f"{MARKS['worse']} worse"):
            box = row.locator("td", has_text=text).first.bounding_box()
            assert 0 <= box["x"] <= box["x"] + box["width"] <= PHONE
            assert box["y"] < 812
        colour = page.evaluate("getComputedStyle(document.querySelector('.counts .worse')).color")
        assert colour == f"rgb({', '.join(str(int(LIGHT['worse'][i : i + 2], 16)) for i in (1, 3, 5))})"
        page.context.close()


@pytest.mark.slow
def test_report_opens_from_the_page_and_cannot_read_it(growing, tmp_path, opened) -> None:
    finish(growing, {(arm, seed): 0.3 + seed / 50 for arm in ("baseline", "other") for seed in (0, 1)})
    with serving(tmp_path) as port:
        page = opened(address(port, f"study/{HERE}"), offline=False)
        page.get_by_role("link", name="Report").click()
        page.wait_for_selector("[data-chart=forest] svg")
        assert page.locator("table.verdicts tbody tr").count() == 2
        assert page.evaluate("self.origin") == "null"  # a sandbox
        assert "charset" in page.evaluate("document.head.innerHTML")
        page.context.close()


@pytest.mark.slow
def test_runs_have_one_name_and_one_word_for_each_state(growing, tmp_path, opened) -> None:
    finish(growing, {("baseline", 0): 0.3})
    growing.train("other", 1, 0, 50)
    run = growing.run("other", 0)
    run.append(0, 10, {"train/loss": ([10], [9.0])}, {})
    outcome = {"outcome": "diverged", "diverged_at": 10, "steps": 10, "metrics": {"val/loss": None}}
    run.finish({**outcome, "params": 10, "environment": {}})
    wanted = {"baseline/0 finished", "other/0 diverged", "other/1 unfinished"}
    read = "[...document.querySelectorAll('table')].at(-1)?.innerText"
    with serving(tmp_path) as port:
        for path in (f"study/{HERE}", "runs"):
            page = opened(address(port, path), offline=False)
            until(page, f"{read}?.includes('other/1')")
            lines = [" ".join(line.split()) for line in page.evaluate(read).splitlines()]
            for name, state in (text.split() for text in wanted):
                assert any(line.startswith(name) and state in line.split() for line in lines), lines
            page.context.close()
        page = opened(address(port, f"study/{HERE}"), offline=False)
        page.locator("td", has_text="1/2, 1 diverged").wait_for()
        page.context.close()
        page = opened(
            f"http://127.0.0.1:{port}/run/{HERE}/other/1-{growing.run('other', 1).id}?token={TOKEN}", offline=False
        )
        page.get_by_role("heading", name="other/1").wait_for()
        assert "unfinished" in page.locator("main").inner_text()
        page.context.close()


@pytest.mark.slow
def test_opened_warnings_stay_open_while_the_study_trains(growing, tmp_path, opened) -> None:
    finish(growing, {("baseline", 0): 0.3, ("other", 0): 0.5})
    with serving(tmp_path) as port:
        page = opened(address(port, f"study/{HERE}"), offline=False)
        page.locator(".notices summary").click()
        assert page.locator(".notices li").first.is_visible()
        finish(growing, {("baseline", 1): 0.31})
        page.get_by_text("3 of 4 runs finished").wait_for()
        assert page.locator(".notices li").first.is_visible()
        page.context.close()


@pytest.mark.slow
def test_messages_have_code_instead_of_backticks(growing, tmp_path, opened) -> None:
    finish(growing, {("baseline", 0): 0.3, ("other", 0): 0.5})
    file = next((tmp_path / HERE).glob("runs/other/0-*/result.json"))
    file.write_text(file.read_text()[:-9])
    with serving(tmp_path) as port:
        for path in (f"study/{HERE}", "runs"):
            page = opened(address(port, path), offline=False)
            page.locator(".notice code").first.wait_for()
            assert "`" not in page.locator("main").inner_text()
            page.context.close()
