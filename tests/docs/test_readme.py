"""The README is short and its parts work, and the table of docs/study-file.md names every kind of its slots."""

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from taetpu.core.registry import kinds
from taetpu.spec.loading import load_study
from taetpu.testing import check_component

ROOT = Path(__file__).parents[2]
README, PAGE = (ROOT / "README.md").read_text(), (ROOT / "docs/study-file.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
LONGEST = 9_000
"""Bytes of the README, which names what there is and links to the rest."""
WRITTEN = {
    "optimizer": r"`optimizer` \(([^)]*)\)",
    "schedule": r"`schedule` \(([^)]*)\)",
    "eval_metric": r"`eval_metrics` \(([^)]*)\)",
}


def builtin(slot):
    """Return the kinds of taetpu, without those of plug-ins that other tests have loaded."""
    return {kind for kind, cls in kinds(slot).items() if cls.__module__.startswith("taetpu.")}


@pytest.mark.parametrize("slot", WRITTEN)
def test_the_page_names_every_kind_and_no_other(slot):
    named = set(re.findall(r"`([\w-]+)`", re.search(WRITTEN[slot], PAGE)[1]))
    assert named - {"ema", "groups"} == builtin(slot)


def test_the_page_counts_the_synthetic_tasks():
    line = re.search(r"^\| `task` \|(.*)$", PAGE, re.MULTILINE)[1]
    read = {"text", "tokens", "classification", "regression", "token-classification", "pairs"}
    assert read <= set(re.findall(r"`([\w-]+)`", line))
    assert int(re.search(r"(\d+) synthetic kinds", line)[1]) == len(builtin("task") - read)


def block(language: str) -> str:
    (text,) = [text for name, text in BLOCKS if name == language]
    return text


def test_the_readme_is_short_and_its_links_and_pictures_exist():
    assert len(README.encode()) <= LONGEST
    places = [place for place in re.findall(r"\]\(([^)#]+)", README) if not place.startswith("https:")]
    assert len(places) > 25
    assert [place for place in places if not (ROOT / place).exists()] == []
    assert {place for place in places if place.endswith(".png")} >= {"docs/img/report.png", "docs/img/components.png"}
    assert len(block("yaml").splitlines()) <= 16
    assert len(block("python").splitlines()) <= 22


def test_the_study_of_the_readme_is_loaded():
    study = load_study(YAML(typ="safe").load(block("yaml")))
    assert {arm.name for arm in study.arms} == {
        "baseline", "nope", "layernorm", "one-head", "no-ffn-last", "heads=2", "heads=8",
    }  # fmt: skip


@pytest.mark.slow
def test_the_plugin_of_the_readme_passes_its_checks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("times.py").write_text(block("python"))
    report = check_component("scores", "times", plugin="times.py")
    assert {finding.outcome for finding in report.findings} <= {"passed", "note"}


def test_tables_of_tools_agree_with_the_page_that_says_what_they_rest_on():
    page = (ROOT / "docs/comparison.md").read_text()

    def rows(text, start):
        table = text[text.index(start) :].split("\n\n")[0].splitlines()
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table if not line.startswith("|---")]
        plain = [[re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", cell).strip("*") for cell in row] for row in cells]
        return {row[0]: dict(zip(plain[0][1:], row[1:], strict=True)) for row in plain[1:]}

    short, long = rows(README, "| | trains"), rows(page, "| | trains")
    rests = rows(page, "| tool | read")
    assert short.keys() == long.keys() == {"taetpu", *rests}
    for tool in short:
        for column in ("arms on shared seeds", "verdicts", "frozen plan"):
            assert short[tool][column] == long[tool][column], (tool, column)
