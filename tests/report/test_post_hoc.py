"""The report's sections and pictures of post-hoc ablation tables."""

from pathlib import Path

import numpy as np
import pytest
from tests.browsers import DESK, PHONE, seen_through, violations
from tests.report.conftest import ARMS, stored_study

from taetpu.report.build import build_report
from taetpu.report.post_hoc import describe_verdicts, post_hoc_charts, post_hoc_sections
from taetpu.report.terminal_text import table_text
from taetpu.stats.analyse import analyse

HEADS = {"knockout": "heads", "how": "mean", "split": "val", "documents": 64, "seed": 0}
FFNS = {"knockout": "ffns", "how": "zero", "split": "test", "documents": 64, "seed": 0}
TABLES = {"heads-mean": HEADS, "ffns-zero-split=test": FFNS}
TITLES = ["Post-hoc ablation: heads (mean)", "Post-hoc ablation: ffns (zero, split=test)"]
NAMES = ("baseline", "no-mixer", "one-head", "no-norm")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A study with two tables. One arm has no heads, one has a single head in each layer, one has diverged runs."""
    study = stored_study(tmp_path_factory.mktemp("tables"), {name: ARMS[name] for name in NAMES}, seeds=4)
    study.write_study({**study.read_study(), "post_hoc": TABLES}, replace=True)
    rng = np.random.default_rng(0)
    for run in (run for run in study.runs() if (run.result() or {})["outcome"] == "finished"):
        for name, settings in TABLES.items():
            if run.arm == "no-mixer" and settings is HEADS:
                run.write_post_hoc(name, {"settings": settings, "absent": "this model has no heads: <none>"})
                continue
            heads = 1 if run.arm == "one-head" or settings is FFNS else 3
            effects = (0.02 + rng.normal(0, 0.002, 2 * heads) * (run.arm == "baseline")).tolist()
            table = {"settings": settings, "unit": "char", "loss": 1.0, "documents": 64, "effects": effects}
            run.write_post_hoc(name, {**table, "layers": [0] * heads + [1] * heads})
    analyse(study)
    return study


@pytest.fixture
def results(folder):
    found = folder.read_results()
    assert found is not None
    return found


def test_a_section_has_the_numbers_of_the_results(results):
    sections = post_hoc_sections(results)
    assert [section.title for section in sections] == TITLES
    for section, found in zip(sections, results["post_hoc"], strict=True):
        rows = {(row[0].removeprefix("sum of "), row[1]): row for row in section.tables[0].rows}
        arms = {arm["name"]: arm for arm in found["arms"]}
        assert rows.keys() == {(m, name) for m in found["measures"] for name, arm in arms.items() if arm["tables"]}
        for (measure, name), row in rows.items():
            one = arms[name]["values"][measure]
            assert row[2] == str(arms[name]["tables"])
            assert float(row[3]) == pytest.approx(one["mean"], abs=0.06 * max(1, abs(one["mean"])))
            if name == "baseline":
                assert row[4:] == ["-", "-", "-", "baseline"]
            else:
                assert float(row[4]) == pytest.approx(one["effect"], abs=0.06 * max(1, abs(one["effect"])))
                assert row[7] == one["verdict"]


def test_notes_name_what_is_not_compared(results):
    notes = " ".join(post_hoc_sections(results)[0].notes)
    for text in (
        "8 comparisons of this table are corrected together",
        "no-mixer is not compared: this model has no heads: <none>.",
        "no-norm: of 4 runs, 3 diverged.",
        "baseline 6, one-head 2, no-norm 6",
        "was added after the study was first run",
    ):
        assert text in notes
    assert "no-mixer" not in " ".join(post_hoc_sections(results)[1].notes)


def test_tables_without_verdicts_say_why(results):
    found = results["post_hoc"][0]
    arms = [
        {**arm, "values": {m: {**one, "verdict": None} for m, one in arm["values"].items()}} for arm in found["arms"]
    ]
    arms[2]["tables"] -= 1

    def verdicts(**changed):
        (section,) = post_hoc_sections({**results, "post_hoc": [{**found, "final": False, "arms": arms}], **changed})
        assert any("one-head: 1 of 4 finished runs" in note for note in section.notes)
        return {row[7] for row in section.tables[0].rows} - {"baseline"}

    assert verdicts() == {"incomplete"}
    assert verdicts(final=False) == {"interim"}
    assert verdicts(final=False, seeds=[0]) == {"single seed"}


def test_a_picture_has_the_mean_effects_of_all_arms_on_one_scale(results):
    charts = post_hoc_charts(results)
    assert list(charts) == TITLES
    found, spec = results["post_hoc"][0], charts[TITLES[0]]
    cells = spec["data"]["values"]
    drawn = {(cell["arm"], cell["layer"], cell["rank"]): cell["effect"] for cell in cells}
    assert drawn == {(arm["name"], row["layer"], rank + 1): effect for arm in found["arms"] for row in arm["ranked"]
                     for rank, effect in enumerate(row["effects"])}  # fmt: skip
    low, middle, high = spec["layer"][0]["encoding"]["color"]["scale"]["domain"]
    assert (low, middle) == (-high, 0)
    assert high == max(map(abs, drawn.values()))
    nothing = {**results, "post_hoc": [{**found, "arms": [{**arm, "ranked": []} for arm in found["arms"]]}]}
    assert post_hoc_charts(nothing) == {}
    assert post_hoc_sections(nothing)[0].charts == []


def test_a_study_without_tables_has_no_section(results):
    without = {name: value for name, value in results.items() if name != "post_hoc"}
    assert (post_hoc_sections(without), post_hoc_charts(without)) == ([], {})


def test_the_terminal_shows_the_verdicts(results):
    second = results["post_hoc"][1]
    text = " ".join(table_text(results).split())
    assert "heads (mean): sum of layer 0 of one-head lower, sum of layer 1 of one-head lower" in text
    assert "effective number" in text
    assert "number of one-head" in text
    undecided = {"final": True, "arms": [{**arm, "values": {m: {**one, "verdict": "inconclusive"}
                 for m, one in arm["values"].items()}} for arm in second["arms"]]}  # fmt: skip
    for changed, expected in (
        (undecided, "inconclusive for all arms."),
        ({**undecided, "compared": 0}, "nothing to compare."),
        ({**undecided, "final": False}, "no verdicts yet."),
    ):
        (line,) = describe_verdicts({**results, "post_hoc": [{**second, **changed}]})
        assert line == f"{TITLES[1]}: {expected}"
    (line,) = describe_verdicts({**results, "post_hoc": [{**second, **undecided}], "seeds": [0]})
    assert line.startswith(f"{TITLES[1]}: ")
    assert "single seed" in line


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(DESK, "light"), (PHONE, "dark")])
def test_the_page_shows_the_pictures(folder, opened, width, scheme):
    page = opened(Path(build_report(folder)["html"]).as_uri(), width, scheme)
    seen_through(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for title in TITLES:
        place = page.locator(f'[data-chart="{title}"] svg')
        assert place.locator("path").count() > 10
    assert violations(page) == []
