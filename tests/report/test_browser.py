"""Browser tests of the report: offline, light and dark, wide and narrow, with the numbers of the results."""

from pathlib import Path

import pytest
from tests.browsers import DESK, DRAWN, PHONE, seen_through, until, violations

from taetpu.report import summary
from taetpu.report.build import build_report
from taetpu.stats import formatting


@pytest.fixture(scope="module")
def url(study):
    """Return the address of a report."""
    return Path(build_report(study)["html"]).as_uri()


@pytest.mark.slow
def test_table_and_forest_plot_show_the_results(results, url, opened) -> None:
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
    data = page.evaluate("data")
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
def test_page_fits_and_is_accessible(url, opened, width: int, scheme: str) -> None:
    page = opened(url, width, scheme)
    for part in page.locator("details.arm").all():
        part.evaluate("(part) => { part.open = true }")
    seen_through(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert "NaN" not in page.locator("main").inner_text()
    assert violations(page) == []


@pytest.mark.slow
def test_long_names_and_paths_fit_on_a_phone(store_study, opened) -> None:
    path = "/home/someone/experiments/" + "a_folder_with_a_long_name" * 5 + "/part_0001.txt"
    names = [f"an-arm-whose-name-goes-on-and-on-with-lr={lr},and-more-after-that" for lr in (1, 3)]
    arms = {name: ({"model.dim": 32}, 0.1) for name in names}
    folder = store_study({"baseline": ({"task.source": path}, 0.0), **arms})
    page = opened(Path(build_report(folder)["html"]).as_uri(), PHONE)
    assert path in page.locator("main").inner_text()
    for part in page.locator("details").all():
        part.evaluate("(part) => { part.open = true }")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE


@pytest.mark.slow
def test_keyboard_leads_from_a_verdict_to_its_arm(results, url, opened) -> None:
    page = opened(url)
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Verdicts"  # of the contents
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == results["arms"][0]["name"]
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    until(page, "document.getElementById('arm-1').open")
    assert page.locator("#arm-1").get_by_role("columnheader", name="minus baseline").is_visible()


@pytest.mark.slow
def test_colours_follow_the_system_and_prints_are_light_with_every_chart(url, opened) -> None:
    page = opened(url, scheme="light")
    label = "[data-chart=forest] svg text"
    page.locator("[data-chart=forest]").scroll_into_view_if_needed()
    page.wait_for_selector(label)
    before = page.locator(label).first.evaluate("(text) => getComputedStyle(text).fill")
    page.emulate_media(color_scheme="dark")
    until(page, f"getComputedStyle(document.querySelector('{label}')).fill !== '{before}'")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    until(page, DRAWN)
    until(page, f"getComputedStyle(document.querySelector('{label}')).fill === '{before}'")
    assert len(page.pdf()) > 20_000


@pytest.mark.slow
def test_a_reader_chooses_any_two_columns(url, opened) -> None:
    """If one column is chosen twice, the axes swap."""
    page = opened(url)
    seen_through(page)
    figure = page.locator(".frontier")
    x, y = (figure.locator(f"[data-axis={axis}]") for axis in "xy")
    names = [option.get_attribute("value") for option in x.locator("option").all()]
    assert (x.input_value(), y.input_value()) == (names[1], names[-1])
    y.select_option(names[0])
    labels = dict(zip(names, x.locator("option").all_inner_texts(), strict=True))
    axes = "[...document.querySelectorAll('.frontier .role-axis-title')]"
    until(page, f"{axes}.some((axis) => axis.textContent === {labels[names[0]]!r})")
    x.select_option(names[0])
    assert (x.input_value(), y.input_value()) == (names[0], names[1])
