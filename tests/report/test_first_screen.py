"""The report in a browser: the answer on the first screen, on paper, and in one set of colours."""

import re
from pathlib import Path

import pytest
from tests.browsers import DESK, DRAWN, PHONE, seen_through, until

from taetpu.report.build import build_report
from taetpu.report.overview import count_labels
from taetpu.report.verdict_style import DARK, LIGHT, VERDICTS

PAPER = 718
"""Width of A4 paper without margins, in CSS pixels."""


@pytest.fixture(scope="module")
def url(study):
    """Return the address of a report."""
    return Path(build_report(study)["html"]).as_uri()


def bottom(page, selector: str) -> float:
    return page.evaluate(f"document.querySelector('{selector}').getBoundingClientRect().bottom")


def test_first_screen_has_the_counts_the_forest_plot_and_one_line_of_warnings(results, url, opened) -> None:
    for width, height in ((1400, 900), (PHONE, 812)):
        page = opened(url, width, height=height)
        page.wait_for_selector("[data-chart=forest] svg")
        items = [item.inner_text().split() for item in page.locator(".counts li:not(.total)").all()]
        assert [(label, int(number)) for _, number, label in items] == count_labels(results)
        assert 0 < bottom(page, ".counts") < bottom(page, "[data-chart=forest] svg") <= height
        warnings = page.locator(".notices summary")
        assert warnings.bounding_box()["height"] < 32
        assert page.locator(".notices li").first.is_hidden()
        warnings.click()
        assert page.locator(".notices li").count() == 3
        assert page.locator(".notices li").first.is_visible()


@pytest.mark.slow
def test_thirty_arms_fit_on_the_first_screen(store_study, opened) -> None:
    arms = {
        "baseline": ({}, 0.0),
        **{f"an-arm-with-a-long-name-{i}": ({"model.dim": 100 + i}, 0.01 * i) for i in range(30)},
    }
    address = Path(build_report(store_study(arms))["html"]).as_uri()
    for width, height in ((1400, 900), (PHONE, 812)):
        page = opened(address, width, height=height)
        page.wait_for_selector("[data-chart=forest] svg")
        assert bottom(page, "[data-chart=forest] svg") <= height
        names = page.locator("[data-chart=forest] svg text").all_text_contents()
        assert len({name for name in names if name.startswith("an-")}) == 30
        edges = (
            "[...document.querySelectorAll('[data-chart=forest] svg text')].map((t) => t.getBoundingClientRect().right)"
        )
        assert max(page.evaluate(edges)) <= width  # nothing is cut off


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "palette"), [("light", LIGHT), ("dark", DARK)])
def test_a_verdict_has_one_colour_in_text_and_charts(url, opened, scheme: str, palette) -> None:
    page = opened(url, scheme=scheme)
    seen_through(page)
    shown = page.evaluate(
        "[...document.querySelectorAll('[data-chart] svg *')].flatMap((mark) => "
        "[getComputedStyle(mark).fill, getComputedStyle(mark).stroke])"
    )
    drawn = {tuple(map(int, re.findall(r"\d+", colour)[:3])) for colour in shown if colour.startswith("rgb")}
    assert {colour for colour in drawn if max(colour) - min(colour) > 40} == {
        rgb(palette[verdict]) for verdict in ("better", "worse", "equivalent")
    }
    for verdict in VERDICTS:
        for selector in (f".counts .{verdict}", f"table .verdict.{verdict}", f".arm .verdict.{verdict}"):
            colour = page.evaluate(f"getComputedStyle(document.querySelector('{selector}')).color")
            assert tuple(map(int, re.findall(r"\d+", colour))) == rgb(palette[verdict]), selector


@pytest.mark.slow
def test_paper_has_tables_with_header_rows_and_what_is_folded_on_screens(url, opened) -> None:
    page = opened(url, PAPER)
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    until(page, DRAWN)
    row = "getComputedStyle(document.querySelector('table.verdicts tbody tr')).display"
    assert page.evaluate(row) == "table-row"
    assert page.get_by_role("columnheader", name="95 % interval").first.is_visible()
    assert page.get_by_role("columnheader", name="correlation").is_visible()  # of a folded section
    assert page.locator(".notices li").first.is_visible()
    assert page.locator(".contents").is_hidden()
    assert page.locator(".arm").first.is_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") <= PAPER
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert page.evaluate(row) == "grid"  # a narrow screen
    assert page.get_by_role("columnheader", name="correlation").is_hidden()


@pytest.mark.slow
def test_text_has_code_links_and_arrows_instead_of_their_plain_forms(url, opened) -> None:
    page = opened(url)
    for part in page.locator("details").all():
        part.evaluate("(part) => { part.open = true }")
    text = page.locator("main").inner_text()
    assert "`" not in text
    assert "->" not in text
    assert "rms \u2192 layer" in text
    assert page.locator("code", has_text="tune").count() == 1
    named = set(re.findall(r"arXiv \d{4}\.\d{5}", text))
    assert named
    assert {link.inner_text() for link in page.locator("main a[href^='https://arxiv.org/abs/']").all()} == named


@pytest.mark.slow
def test_tables_wider_than_the_page_say_that_they_scroll(url, opened) -> None:
    hint = "getComputedStyle(document.querySelector('.wide'), '::before').content"
    page = opened(url, PHONE)
    until(page, f"{hint}.includes('Scroll')")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
    wide = opened(url, 1800)
    wide.wait_for_timeout(200)
    assert wide.evaluate(hint) == "none"


@pytest.mark.slow
def test_contents_are_a_column_beside_a_wide_page_and_a_menu_on_a_phone(url, opened) -> None:
    links = "nav[aria-label=Contents] a"
    wide = opened(url, DESK)
    assert wide.locator(links).first.is_visible()
    assert wide.evaluate("document.querySelector('main').getBoundingClientRect().left") > 200
    phone = opened(url, PHONE)
    assert phone.locator(links).first.is_hidden()
    phone.locator(".contents summary").click()
    phone.locator(links).nth(1).click()
    assert phone.locator(links).first.is_hidden()
    assert phone.evaluate("document.getElementById('verdicts').getBoundingClientRect().top") < 200
