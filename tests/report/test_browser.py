"""The report as a browser shows it: without a network, in light and dark, wide and narrow, with the true numbers."""

from pathlib import Path

import pytest
from tests.browsers import DESK, DRAWN, PHONE, seen_through, until, violations

from taetpu.report import summary
from taetpu.report.build import build_report
from taetpu.stats import formatting


@pytest.fixture
def report(store_study):
    """A study's results, and its report's address."""
    folder = store_study(equivalence=0.01)
    return folder.read_results(), Path(build_report(folder)["html"]).as_uri()


def test_the_verdicts_are_those_of_the_results(report, opened) -> None:
    results, url = report
    page = opened(url)
    lines = page.locator("table.verdicts tbody tr")
    assert lines.count() == len(results["arms"])
    for i, arm in enumerate(results["arms"]):
        cells = lines.nth(i).locator("td")
        mean, effect, interval, sd, p, verdict = (cells.nth(k).inner_text() for k in range(6))
        for text, value in ((mean, arm["mean"]), (effect, arm["effect"]), (sd, arm["effect_sd"])):
            assert text == "-" if value is None else float(text) == pytest.approx(value, abs=0.06)
        assert interval == summary.format_interval(arm["ci95"], results)
        assert p == formatting.p_value(arm["p_holm"])
        assert verdict.split()[-1] == (arm["verdict"] or "baseline")


def test_the_charts_have_the_results_own_values(report, opened) -> None:
    """To the last digit: what is drawn is what `results.json` holds."""
    results, url = report
    data = opened(url).evaluate("data")
    drawn = {
        row["arm"]: row for part in data["charts"]["forest"]["layer"] for row in _values(data, part) if "low" in row
    }
    for arm in results["arms"][1:]:
        assert drawn[arm["name"]]["effect"] == arm["effect"]
        assert [drawn[arm["name"]]["low"], drawn[arm["name"]]["high"]] == (arm["ci95"] or [None, None])


def _values(data, part) -> list[dict]:
    found = part.get("data", {})
    return found.get("values") or data["charts"]["forest"].get("datasets", {}).get(found.get("name"), [])


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(DESK, "light"), (PHONE, "dark")])
def test_everything_is_drawn_fits_and_can_be_read_by_all(report, opened, width: int, scheme: str) -> None:
    page = opened(report[1], width, scheme)
    seen_through(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert "NaN" not in page.locator("main").inner_text()
    for part in page.locator("details.arm").all():
        part.evaluate("(part) => { part.open = true }")
    seen_through(page)
    assert violations(page) == []


def test_a_long_path_or_name_does_not_make_a_phone_scroll_sideways(store_study, opened) -> None:
    path = "/home/someone/experiments/" + "a_folder_with_a_long_name" * 5 + "/part_0001.txt"
    names = [f"an-arm-whose-name-goes-on-and-on-with-lr={lr},and-more-after-that" for lr in (1, 3)]
    arms = {name: ({"model.dim": 32}, 0.1) for name in names}
    folder = store_study({"baseline": ({"task.source": path}, 0.0), **arms})
    page = opened(Path(build_report(folder)["html"]).as_uri(), PHONE)
    assert path in page.locator("main").inner_text()
    for part in page.locator("details").all():
        part.evaluate("(part) => { part.open = true }")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE


def test_by_keyboard_from_a_verdict_to_its_arm(report, opened) -> None:
    page = opened(report[1])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Verdicts"  # of the contents
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == report[0]["arms"][0]["name"]
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    until(page, "document.getElementById('arm-1').open")
    assert page.locator("#arm-1").get_by_role("columnheader", name="minus baseline").is_visible()


@pytest.mark.slow
def test_paper_is_light_and_has_every_chart(report, opened) -> None:
    page = opened(report[1], scheme="dark")
    page.locator("[data-chart=forest]").scroll_into_view_if_needed()
    page.wait_for_selector("[data-chart=forest] svg")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    until(page, DRAWN)
    label = "document.querySelector('[data-chart=forest] svg text')"
    until(page, f"getComputedStyle({label}).fill === 'rgb(61, 67, 75)'")
    assert len(page.pdf()) > 20_000


@pytest.mark.slow
def test_colours_follow_the_readers_setting(report, opened) -> None:
    page = opened(report[1], scheme="light")
    label = "[data-chart=forest] svg text"
    page.locator("[data-chart=forest]").scroll_into_view_if_needed()
    page.wait_for_selector(label)
    before = page.locator(label).first.evaluate("(text) => getComputedStyle(text).fill")
    page.emulate_media(color_scheme="dark")
    until(page, f"getComputedStyle(document.querySelector('{label}')).fill !== '{before}'")
