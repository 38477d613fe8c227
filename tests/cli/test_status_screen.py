"""The screen of `taetpu status --watch`: what it shows in little room."""

from dataclasses import replace

import pytest
from tests.cli.screens import check_screen

from taetpu.cli.status_model import ArmView, PackView, StudyView
from taetpu.cli.status_screen import block, screen, share_lines, shorten, sparkline

# --- how it fits -----------------------------------------------------------------------------------------------------

LONG = "an-arm-whose-name-does-not-know-how-to-end-and-goes-on-beyond-what-any-screen-can-show-in-a-line"


def arm(i: int, name: str = LONG, verdict: str = "inconclusive") -> ArmView:
    losses = {"train/loss": 12345.678, "val/loss": 2.5}
    return ArmView(f"{name}-{i}", 16, 16, 1_000_000, losses, "+12345.6789", verdict, [5, 4, 3.5, 3.2, 3.1, 3.05])


def study(arms: int, name: str = "s", **more) -> StudyView:
    packs = [PackView(i, 120, 4000, 10**6, 10**9, 0.01, "41% of peak") for i in range(5)]
    fields = {"headline": "One of many changes did something. " * 6, "interim": False, "departures": [LONG * 2, "b"]}
    return StudyView(name, [arm(i) for i in range(arms)], packs, **{**fields, **more})


@pytest.mark.parametrize("verdict", ["inconclusive", "+12345.6789 to +22345.6789", ""])
def test_a_screen_fits_80_columns_and_its_height(verdict: str) -> None:
    for studies in (1, 3, 30):
        arms = [arm(i, verdict=verdict) for i in range(40)]
        views = [replace(study(0, LONG + str(i), interim="to" in verdict), arms=arms) for i in range(studies)]
        views[-1] = StudyView(LONG, problem="a problem\n  where:  " + "x" * 200)
        for height in (None, 60, 24, 10, 5, 3, 2, 1):
            lines = screen(views, height)
            assert max(line.cell_len for line in lines) <= 80
            assert height is None or len(lines) <= height


def test_the_screen_of_two_studies() -> None:
    arms = [arm(0, "baseline", ""), arm(1, "no-ffn", "worse"), replace(arm(2, "one-head", ""), done=7)]
    packs = [PackView(2, 3, 8, 100, 400, 2.5, "9% of peak"), PackView(3, 3, 1, 0, 400, None)]
    running = StudyView(
        "heads", arms, packs, headline="One of 2 changes has an effect.", interim=False, metrics=("val/loss",),
        departures=["seeds are [0, 5], the plan says [0, 1]"],
    )  # fmt: skip
    done = StudyView(
        "norms", [arm(i, "arm", "better") for i in range(40)], metrics=("val/loss",), interim=False, ended=True
    )
    check_screen("status-watch", "\n".join(line.plain for line in screen([running, done], 24)))


def test_arms_that_do_not_fit_are_summarised() -> None:
    arms = [arm(i, "arm", "worse" if i == 39 else "inconclusive") for i in range(40)]
    view = StudyView("s", arms, headline="One worse.", interim=False)
    lines = [line.plain for line in block(view, 24, signs=True)]
    assert len(lines) == 24
    assert lines[-1] == "and 20 more arms: 320 of 320 runs done; 1 worse"
    shown = [line for line in lines if line.startswith("arm-")]
    assert len(shown) == 20
    assert [line.plain for line in block(view, 3, signs=True)][-1] == "40 arms: 640 of 640 runs done; 1 worse"


def test_studies_that_do_not_fit_are_summarised_finished_ones_first() -> None:
    views = [study(2, f"s{i}", ended=i < 9) for i in range(10)]
    lines = [line.plain for line in screen(views, 6)]
    assert [line.split()[0] for line in lines if "━" in line] == ["s9"]
    assert lines[-1] == "and 9 more studies: 288 of 288 runs done"


def test_lines_are_shared_between_studies() -> None:
    assert share_lines([3, 30, 4], 20) == [3, 13, 4]
    assert share_lines([30, 30], 21) == [10, 11]
    assert share_lines([], 20) == []


def test_long_names_lose_their_middle() -> None:
    assert shorten("abcdefghij", 10) == "abcdefghij"
    assert shorten("abcdefghijk", 8) == "abc..ijk"
    view = StudyView("研究" * 30, [arm(0, "研究" * 30)])
    assert max(line.cell_len for line in screen([view])) <= 80


def test_a_sparkline_spans_its_values() -> None:
    assert sparkline([8, 1], 5) == "█▁"
    assert sparkline([1, 2, 3, 4, 5, 6, 7, 8], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline(range(1000), 5) == "▁▃▅▆█"
    assert sparkline([2.0, 2.0], 5) == "▁▁"
    assert sparkline([], 5) == ""


def test_a_screen_without_signs_is_ascii() -> None:
    lines = [line.plain for line in screen([study(3)], 24, signs=False)]
    assert all(line.isascii() for line in lines)
