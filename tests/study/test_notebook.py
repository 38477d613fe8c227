"""HTML of studies and outcomes in notebooks, and charts from Python."""

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from tests.small import STUDY

import taetpu
from taetpu.core.errors import UserError
from taetpu.report import summary
from taetpu.report.notebook import notebook_html
from taetpu.report.verdict_style import COLOURS

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=alert(1)>&\"'"


def parsed(text: str) -> ET.Element:
    """Parse HTML as XML, which requires that everything is escaped and closed."""
    return ET.fromstring(f"<div>{text}</div>")


def cells(text: str, number: int = 0) -> list[list[str]]:
    """Return the rows of a table, the header first."""
    return [["".join(cell.itertext()) for cell in row] for row in list(parsed(text).iter("table"))[number].iter("tr")]


def check(text: str) -> None:
    """Check that HTML has no scripts, no external content and no text colours, except those of verdicts."""
    tags = {element.tag.rpartition("}")[2] for element in parsed(text).iter()}
    assert not tags & {"script", "link", "img", "iframe", "style", "object"}
    attributes = [(name, value) for element in parsed(text).iter() for name, value in element.attrib.items()]
    assert not [name for name, _ in attributes if name.startswith("on") or name in ("href", "src")]
    assert not re.search(r"(?<!-)color:|background", " ".join(value for name, value in attributes if name == "style"))
    fills = {element.get("fill") for element in parsed(text).iter() if element.tag.endswith("}text")}
    assert fills <= {"currentColor", *COLOURS.values()}


@pytest.fixture(scope="module")
def outcome(trained):
    return trained[0]


def test_study_shows_its_arms_and_their_changes(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(STUDY)
    study = taetpu.load_study(tmp_path / "s.yaml")
    baseline, arm = study.arms
    text = study.changed(arms=(baseline, replace(arm, name=HOSTILE)))._repr_html_()
    check(text)
    assert "<img" not in text
    assert cells(text) == [["arm", "change"], ["baseline", ""], [HOSTILE, arm.change]]
    assert "2 arms and 2 seeds, compared by val/loss" in text


def test_outcome_shows_the_numbers_of_its_results(outcome) -> None:
    text = outcome._repr_html_()
    check(text)
    stored = json.loads((Path(outcome.folder) / "results.json").read_text())
    assert stored["study"] in text
    assert summary.headline(stored) in text
    head, *rows = cells(text)
    assert head == ["arm", "change", "verdict", "mean", "effect", "95 % interval", "Holm p"]
    for shown, row, arm in zip(rows, summary.verdict_rows(stored), stored["arms"], strict=True):
        assert shown[:2] + shown[3:] == [row.arm, row.change, row.mean, row.effect, row.interval, row.p]
        assert shown[2].endswith(arm["verdict"] or "baseline")
        assert float(shown[3]) == pytest.approx(arm["mean"], abs=0.01)
    svg = next(element for element in parsed(text).iter() if element.tag.endswith("}svg"))
    assert "low-lr" in "".join(svg.itertext())
    assert outcome.report["html"] in text


def test_failures_are_shown(outcome) -> None:
    told = "run low-lr 0 came out otherwise"
    assert told in replace(outcome, refuted=[told])._repr_html_()


def test_html_in_names_is_escaped(outcome) -> None:
    results = json.loads(json.dumps(outcome.results).replace('"low-lr"', json.dumps(HOSTILE)))
    results["study"] = HOSTILE
    results["arms"][1]["change"] = HOSTILE
    text = notebook_html(results, {"html": HOSTILE}, [HOSTILE])
    check(text)
    assert "<img" not in text
    assert cells(text)[2][:2] == [HOSTILE, HOSTILE]


def test_charts_accept_folders_roots_and_outcomes(outcome) -> None:
    root = Path(outcome.folder).parent
    charts = [
        taetpu.plot(place, "val/loss", x="tokens")
        for place in (outcome, outcome.folder, str(root), root, [outcome], [root, outcome.folder])
    ]
    specs = [chart.to_dict() for chart in charts]
    assert all(spec == specs[0] for spec in specs)  # a study that is named twice is drawn once
    assert '"line": "baseline"' in json.dumps(specs[0])
    only = taetpu.plot(outcome, "val/loss", arms=["low-lr"]).to_dict()
    assert '"line": "baseline"' not in json.dumps(only)
    with pytest.raises(taetpu.UserError, match="no study"):
        taetpu.plot("nowhere", "val/loss")
    with pytest.raises(taetpu.UserError, match="no run has") as error:
        taetpu.plot(outcome, "val/los")
    assert "'val/los'" in str(error.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((None, "val/loss"), "None .*study"),
        (([], "val/loss"), "no studies"),
    ],
)
def test_invalid_charts_are_refused(given, said, outcome) -> None:
    first, *rest = given
    with pytest.raises(UserError, match=said):
        taetpu.plot(outcome if first == "here" else first, *rest)
