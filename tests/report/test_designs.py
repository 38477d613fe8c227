"""Reports of studies with designs, on made-up runs with known effects."""

import json
import re
from functools import cache
from pathlib import Path

import pytest
import vl_convert
from tests.report.designed import DESIGNS, designed
from tests.suites import by_default

from taetpu.report import charts, design_charts, frontier, summary
from taetpu.report.build import build_report
from taetpu.report.sections import build_sections
from taetpu.report.terminal_text import COLUMNS, table_text
from taetpu.stats.designs import LIMITS
from taetpu.stats.verify import verify

RATE = 0.003  # the learning rate at which every arm is best


def loss(run) -> float:
    """Return a loss for which positions matter less in larger models, and both parts together add an excess of 0.1."""
    model, rate = run.config.model, float(run.config.train.optimizer.lr)
    position, ffn = (getattr(model.layers[0], slot).kind == "none" for slot in ("position", "ffn"))
    return 2 + 1.2 * position / model.dim + 0.3 * ffn + 0.1 * (position and ffn) + 5 * abs(rate - RATE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a function that stores the study of a design once."""
    return cache(lambda design: designed(tmp_path_factory.mktemp(design), design, loss))


@pytest.fixture(scope="module")
def study(folder):
    return lambda design: folder(design).read_results()


def section(results, title):
    return next(part for part in build_sections(results, {}, {}) if part.title == title)


@pytest.mark.slow
@pytest.mark.parametrize("design", by_default(DESIGNS, "parts"))
def test_every_design_has_a_report_that_verifies(folder, design) -> None:
    every = folder(design)
    results, written = every.read_results(), build_report(every)
    assert verify(every) == []
    page, text = (Path(written[kind]).read_text() for kind in ("html", "markdown"))
    for part in build_sections(results, {}, {}):
        assert f">{part.title}</h2>" in page
        assert f"\n## {part.title}\n" in text
        assert all(len(row) == len(table.columns) for table in part.tables for row in table.rows)
    assert max(map(len, table_text(results).splitlines())) <= COLUMNS
    drawn = design_charts.draw_panels(results, {})
    for spec in drawn.values():
        svg = vl_convert.vegalite_to_svg({**spec, "width": 300, "config": charts.THEMES["light"]})
        assert "NaN" not in svg
    assert [name for part in build_sections(results, {}, {}) for _, name in part.charts] == list(drawn)


@pytest.mark.slow
def test_excess_of_all_parts_is_shown_at_every_scale(study) -> None:
    results = study("parts")
    table = section(results, "Parts removed one by one").tables[0]
    assert sorted(row[0] for row in table.rows) == ["without-all", "without-all@dim=32", "without-all@dim=8"]
    for row in table.rows:
        _, number, together, single, excess, _, p = row
        assert number == "2"
        assert abs(float(together) - float(single) - float(excess)) < 0.002
        assert abs(float(excess) - 0.1) < 0.03
        assert p == "<0.001"


def test_ladder_shows_scales_in_order_with_verdicts_and_fates(study) -> None:
    results = study("parts")
    part = section(results, "Effects by scale")
    sizes, fates, trends = part.tables
    assert [row[0] for row in sizes.rows] == ["dim=8", "dim=16", "dim=32"]
    assert list(fates.columns) == ["arm", "dim=8", "dim=16", "dim=32", "fate"]
    fate = {row[0]: row for row in fates.rows}
    assert fate["without-position"][-1] == "shrinks"
    assert fate["without-ffn"][-1] == "holds"
    arms = {arm["name"]: arm for arm in results["arms"]}
    small = arms["without-ffn@dim=8"]
    assert fate["without-ffn"][1] == f"{summary.format_effect(small, results)} worse"
    assert {row[5] for row in trends.rows} == {"128k params"}
    assert any(note.startswith("Holds:") and "Unclear:" in note for note in part.notes)
    assert any("not corrected" in note and "same seeds" in note for note in part.notes)
    assert summary.headline(results).startswith("At dim=32, the largest of 3 scales: 3 of 3 arms are worse")


def test_ladder_of_equal_models_is_ordered_by_flops(study) -> None:
    results = study("steps")
    part = section(results, "Effects by scale")
    sizes, fates, trends = part.tables
    assert [row[0] for row in sizes.rows] == ["steps=10", "steps=20", "steps=40"]
    assert list(fates.columns) == ["arm", "steps=10", "steps=20", "steps=40", "fate"]
    assert {row[5] for row in trends.rows} == {"983M FLOPs"}
    assert "training FLOPs" in part.lead
    assert summary.headline(results).startswith("At steps=40, the largest of 3 scales: ")
    chart = json.dumps(design_charts.draw_panels(results, {})["ladder no-ffn"])
    assert "training FLOPs of" in chart


def test_ladder_of_data_has_no_trend_and_no_largest_scale(study) -> None:
    results = study("data")
    part = section(results, "Effects by scale")
    sizes, fates = part.tables
    assert list(fates.columns) == ["arm", *(row[0] for row in sizes.rows), "fate"]
    assert [row[-1] for row in fates.rows] == ["holds"]
    assert "extrapolated" not in " ".join([part.lead, *part.notes, *results["designs"]["limits"]])
    assert summary.headline(results).startswith("1 arm at 2 scales: 2 of 2 are worse")
    points = [point["arm"] for points in frontier.frontiers(results, {}).values() for point in points]
    assert not any("seq_len" in arm for arm in points)
    assert "parameters of the" not in json.dumps(design_charts.draw_panels(results, {}))


def test_ladder_of_kinds_or_equal_models_extrapolates_nothing(study) -> None:
    for design, order in (
        ("kinds", ["position=rope,dim=16", "position=learned,dim=8"]),
        ("rates", ["lr=0.001", "lr=0.01"]),
    ):
        results = study(design)
        sizes, _ = section(results, "Effects by scale").tables
        assert [row[0] for row in sizes.rows] == order
        limit = LIMITS["ladder without a trend"]
        assert results["designs"]["limits"] == [limit]
        assert summary.headline(results).startswith("1 arm at 2 scales: ")
    assert LIMITS["ladder"] in study("steps")["designs"]["limits"]


def test_effects_are_named_with_their_aliases(study, wording) -> None:
    results = study("fraction")
    part = section(results, "Factors and interactions")
    assert [(row[0], row[-1]) for row in part.tables[0].rows] == [
        ("norm", "position x ffn"), ("position", "norm x ffn"), ("ffn", "norm x position"),
    ]  # fmt: skip
    assert part.notes[0].endswith(f": {' x '.join(('ffn', 'norm', 'position'))}.")
    wording(summary.headline(results))
    assert any("aliases" in limit for limit in section(results, "Limitations").notes)


@pytest.mark.slow
def test_tuned_and_matched_effects_are_shown_beside_shared_effects(study, wording) -> None:
    results = study("fair")
    arms = {arm["name"]: arm for arm in results["arms"]}

    def shown(name):
        return [summary.format_effect(arms[name], results), arms[name]["verdict"]]

    best, tried = section(results, "Tuning").tables
    assert {row[0]: row[2:4] for row in best.rows}["no-ffn"] == [
        " ".join(shown(name)) for name in ("no-ffn", "no-ffn@tuned")
    ]
    assert list(tried.columns) == ["val/loss (nats per token)", "lr=0.001", "lr=0.003", "lr=0.01"]
    assert all(row[2].endswith(" (best)") for row in tried.rows)
    (matched,) = section(results, "Matched arms").tables
    terms = "equal training FLOPs"
    assert {row[0]: row[1] for row in matched.rows} == dict.fromkeys(["no-ffn", "swiglu"], terms)
    assert {row[0]: row[3:] for row in matched.rows}["no-ffn"] == [*shown("no-ffn"), *shown("no-ffn@flops")]
    rows = {row.arm: row for row in summary.verdict_rows(results)}
    assert rows["no-ffn@flops"].evidence.startswith(f"At {terms}: ")
    assert rows["no-ffn@tuned"].evidence.startswith("At equal steps, both tuned: ")
    wording(summary.headline(results))


@pytest.mark.slow
def test_changed_tuning_record_fails_verification(folder) -> None:
    study = folder("fair").read_study()
    trials = study["tuning"]["arms"]["no-ffn"]["trials"]
    honest = trials["lr=0.01"]["by_seed"][0]
    trials["lr=0.01"]["by_seed"][0] = honest - 5
    folder("fair").write_study(study, replace=True)
    found = [problem for problem in verify(folder("fair")) if problem.startswith("study.yaml: ")]
    trials["lr=0.01"]["by_seed"][0] = honest
    folder("fair").write_study(study, replace=True)
    assert len(found) == 2
    assert found[0].startswith("study.yaml: tuning no-ffn ")
    assert " lr=0.01 " in found[0]
    assert f"[{honest}, " in found[0]
    assert re.search(r"best .* no-ffn is lr=0\.01, but lr=0\.003 ", found[1])
    assert verify(folder("fair")) == []


@pytest.mark.slow
def test_best_value_at_the_edge_gives_a_warning(study) -> None:
    results = study("fair")
    edge = {name: {**entry, "edge": ["train.optimizer.lr"]} for name, entry in results["tuning"]["arms"].items()}
    changed = {**results, "tuning": {**results["tuning"], "arms": edge}}
    warning = (
        "The best train.optimizer.lr of no-ffn is at the edge of the grid, so a wider grid may contain a better value."
    )
    assert warning in section(changed, "Tuning").notes
    assert warning in summary.notices(changed)
    assert summary.edge_warnings(results) == []
