"""Reports of arms on several tasks and under several settings, on made-up runs with known effects."""

import json

import pytest
import vl_convert
from tests.report.designed import designed

from taetpu.report import charts, design_charts, rungs, summary
from taetpu.report.repeats import ELSEWHERE
from taetpu.report.sections import build_sections
from taetpu.report.summary import verdict_rows
from taetpu.report.terminal_text import COLUMNS, table_text


def loss(run) -> float:
    """Return a loss with an effect of the ffn that reverses with the init, and of positions that does not."""
    layer, init = run.config.model.layers[0], run.config.model.init.kind
    ffn = 0.3 * (layer.ffn.kind == "none") * (-1 if init == "fan-in" else 1)
    return 2 + 0.2 * (layer.position.kind == "none") + ffn


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Return a function that stores the study of a design."""
    return lambda design: designed(tmp_path_factory.mktemp(design), design, loss).read_results()


def section(results, title):
    return next(part for part in build_sections(results, {}, {}) if part.title == title)


def rows_of(spec: dict) -> list[dict]:
    """Return the rows of a forest plot."""
    return next(part["data"]["values"] for part in spec["layer"] if "evidence" in json.dumps(part.get("data", {})))


def test_verdicts_on_verdicts_are_in_the_order_of_the_file_and_have_a_heatmap(study) -> None:
    results = study("across")
    shown = section(results, "Does it hold elsewhere?")
    assert [(row[0], row[-1]) for row in shown.tables[0].rows] == [
        ("no-position", "holds"),
        ("no-ffn", "reverses with init"),
    ]
    spec = design_charts.draw_panels(results, {})[ELSEWHERE]
    cells = {(cell["row"], cell["column"]): cell["effect"] for cell in spec["data"]["values"]}
    assert len(cells) == 2 * 3
    assert cells["no-ffn", "as written"] > 0.2 > -0.2 > cells["no-ffn", "init=fan-in"]
    assert "NaN" not in vl_convert.vegalite_to_svg({**spec, "width": 300, "config": charts.THEMES["light"]})


def test_the_headline_begins_with_the_verdicts_on_verdicts(study, monkeypatch) -> None:
    results = study("across")
    assert summary.headline(results).startswith("no-position: holds. no-ffn: reverses with init. 2 arms ")
    monkeypatch.setattr(rungs, "FEW", 1)
    assert summary.headline(results).startswith("Of 2 verdicts, 1: holds and 1: reverses. ")


def test_terminal_lists_the_settings_of_each_verdict(study) -> None:
    text = table_text(study("across"))
    assert max(map(len, text.splitlines())) <= COLUMNS
    words = " ".join(text.split())
    assert "no-ffn: reverses with init (worse: as written, lr=0.003; better: init=fan-in)." in words
    assert "no-position: holds (worse: as written, init=fan-in, lr=0.003)." in words


@pytest.mark.slow
def test_forest_plot_of_different_metrics_is_in_units_of_noise(study) -> None:
    results = study("tasks")
    noise = {group["baseline"]: group["residual_sd"] for group in results["groups"]}
    rows = {row["arm"]: row for row in rows_of(charts.forest_plot(results))}
    compared = [arm for arm in results["arms"] if arm["against"]]
    assert {arm["effect"] > 0 for arm in compared} == {True, False}  # losses rise and accuracies fall
    for arm in compared:
        row = rows[arm["name"]]
        assert row["effect"] == pytest.approx(-abs(arm["effect"]) / noise[arm["against"]])  # every effect is worse
        assert row["low"] < row["effect"] < row["high"]
    assert "standard deviations" in json.dumps(charts.forest_plot(results))


@pytest.mark.slow
def test_each_baseline_has_the_name_of_its_metric(study) -> None:
    results = study("tasks")
    terms = {row.arm: row.terms for row in verdict_rows(results)}
    assert (terms["baseline"], terms["baseline@sort"]) == ("by val/loss", "by val/accuracy")


@pytest.mark.slow
def test_six_tasks_fit_a_terminal_and_shortened_names_are_explained(study) -> None:
    results = study("tasks")
    text = table_text(results)
    assert max(map(len, text.splitlines())) <= COLUMNS
    header = next(line for line in text.splitlines() if line.startswith("score ")).split()[1:-1]
    assert len(header) == len({*header}) == 6
    words = " ".join(text.split())
    for name, task in zip(header, results["designs"]["tasks"]["rungs"], strict=True):
        assert name == task or f"{name} = {task}" in words
