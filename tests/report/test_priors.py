"""What others found: entries that mean something here, single changes in both directions, the same words everywhere."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import vl_convert

from taetpu.core.registry import BUILTIN_MODULES, kinds
from taetpu.report import charts
from taetpu.report.build import build_report
from taetpu.report.priors import MORE_THAN_ONE, NO_PRIORS, find_priors, priors_section, read_priors
from taetpu.spec.schema import RunConfig

BASE = {
    "model": {
        "mixer": {"kind": "attention", "num_heads": 4, "num_kv_heads": None, "causal": True},
        "position": {"kind": "rope"},
        "norm": {"kind": "rms", "placement": "pre"},
        "ffn": {"kind": "swiglu"},
        "embedding": {"kind": "tied"},
        "layers": {},
    }
}
ENTRIES = read_priors()["entries"]


def known(diff: dict[str, Any], base: dict[str, Any] = BASE, against: dict[str, Any] | None = None):
    """What is said of an arm with these changes."""
    arms = [
        {"name": "baseline", "against": None, "diff": against or {}},
        {"name": "arm", "against": "baseline", "diff": {**(against or {}), **diff}},
    ]
    return find_priors({"arms": arms}, base).get("arm")


def based(**slots: Any) -> dict[str, Any]:
    return {"model": {**BASE["model"], **slots}}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry['setting']} {entry['to']}")
def test_each_entry_is_of_kinds_that_there_are_and_has_a_source_with_a_year(entry) -> None:
    slot = entry["setting"].removeprefix("model.")
    for value in (*entry["from"], *entry["to"]):
        if slot in BUILTIN_MODULES:
            assert value in kinds(slot)
        else:
            slot_of, _, field = slot.partition(".")
            classes = kinds(slot_of).values()
            assert any(field in cls.model_fields for cls in classes)
            assert value in ("none", MORE_THAN_ONE) or not isinstance(value, str) or slot == "norm.placement"
    assert entry["found"] in ("better", "worse", "no clear difference", "mixed")
    assert entry["what"].endswith(".")
    assert not re.search(r"\d", entry["what"])
    assert entry["sources"]
    for source in entry["sources"]:
        assert re.search(r" (19|20)\d\d$", source["by"])
        assert re.fullmatch(r"\d{4}\.\d{5}", source["arxiv"]) if "arxiv" in source else source["at"]
    assert set(entry) <= {"setting", "from", "to", "where", "found", "what", "sources"}


def test_the_collection_is_dated_and_no_pair_stands_in_it_twice() -> None:
    assert re.search(r"20\d\d", read_priors()["collected"])
    pairs = [(e["setting"], frozenset((str(a), str(b)))) for e in ENTRIES for a in e["from"] for b in e["to"]]
    assert len(pairs) == len(set(pairs))


@pytest.mark.parametrize(
    ("slot", "old", "new", "found"),
    [
        ("norm", "layer", "rms", "mixed"),
        ("ffn", "gelu-erf", "swiglu", "better"),
        ("ffn", "swiglu", "relu", "worse"),
        ("ffn", "none", "relu", "better"),
        ("mixer", "attention", "none", "worse"),
        ("position", "learned", "none", "no clear difference"),
        ("position", "none", "rope", "mixed"),
        ("embedding", "untied", "tied", "mixed"),
    ],
)
def test_both_directions_are_matched(slot: str, old: str, new: str, found: str) -> None:
    """However the change is written."""
    path, base = f"model.{slot}", based(**{slot: {"kind": old}})
    written = [{path: new}, {path: {"kind": new}}, {f"{path}.kind": new}, *([{path: None}] if new == "none" else [])]
    said = [known(diff, base) for diff in written]
    assert [prior and prior.found for prior in said] == [found] * len(written)
    assert said[0].change == f"{path}: {old} -> {new}"
    back = known({path: old}, based(**{slot: {"kind": new}}))
    assert back.found == {"better": "worse", "worse": "better"}.get(found, found)
    assert (back.what, back.sources) == (said[0].what, said[0].sources)


def test_values_are_matched_as_kinds_are() -> None:
    few = "model.mixer.num_kv_heads"
    assert known({few: 1}).found == "worse"
    assert known({few: 2}).found == "no clear difference"
    assert known({few: None}, based(mixer={"kind": "attention", "num_kv_heads": 1})).found == "better"
    assert known({"model.norm.placement": "post"}).found == "mixed"


def test_what_is_not_that_one_change_gets_none() -> None:
    assert known({}) is None
    assert known({"model.ffn": "relu", "train.steps": 10}) is None
    assert known({"model.ffn": {"kind": "relu", "mult": 8}}) is None
    assert known({"model.layers.0.ffn": "none"}) is None
    assert known({"model.position": "learned"}) is None
    assert known({"model.ffn": "none"}, based(layers={"0": {"ffn": "relu"}})) is None
    assert known({"model.norm": "layer"}, based(norm={"kind": "rms", "placement": "post"})) is None
    assert known({"model.position": "none"}, based(mixer={"kind": "attention", "causal": False})) is None
    assert known({"model.position": "none"}, {}) is None


def test_a_change_is_one_from_what_the_arm_is_compared_with() -> None:
    """An arm on a rung of a ladder changes what the rung changes, too; so does its baseline."""
    rung = {"model.dim": 16}
    prior = known({"model.ffn": "none"}, against=rung)
    assert (prior.found, prior.change) == ("worse", "model.ffn: swiglu -> none")
    assert known({"model.ffn": "none"}, against={"model.ffn": "relu"}).change == "model.ffn: relu -> none"


def test_the_baseline_is_looked_up_as_it_is_frozen() -> None:
    """The paths of `where` are those of a study's config."""
    fields = RunConfig.model_fields["model"].annotation.model_fields
    for entry in ENTRIES:
        for path in (entry["setting"], *entry.get("where", {})):
            top, _, field = path.removeprefix("model.").partition(".")
            assert top in fields
            assert not field or any(field in cls.model_fields for cls in kinds(top).values())


def test_the_report_says_it_in_every_format(store_study) -> None:
    folder = store_study()
    before = folder.read_results()
    written = build_report(folder)
    assert folder.read_results() == before
    page, text = (Path(written[kind]).read_text() for kind in ("html", "markdown"))
    found = find_priors(before, folder.read_study()["base"])
    assert set(found) == {"nope", "no-ffn", "no-mixer", "layernorm", "untied"}
    assert priors_section(before, found) is not None
    for prior in found.values():
        assert prior.by in page
        assert prior.by in text
        assert prior.what.replace("'", "&#39;") in page
        assert prior.what in text
    assert "## Published findings" in text
    assert "verdicts do not use them" in text
    arm = next(arm for arm in before["arms"] if arm["name"] == "no-ffn")
    line = next(line for line in text.splitlines() if line.startswith("| no-ffn |") and "Pires" in line)
    assert f"| worse | Pires et al. 2023; Dong et al. 2021 | {arm['verdict']}, " in line
    assert "Labels at the right" in page


def test_a_study_of_which_nothing_is_known_says_nothing(store_study) -> None:
    folder = store_study({"baseline": ({}, 0.0), "one-head": ({"model.mixer.num_heads": 1}, 0.02)})
    written = build_report(folder)
    for kind in ("html", "markdown"):
        text = Path(written[kind]).read_text()
        assert "Published findings" not in text
        assert "Labels at the right" not in text
    results = folder.read_results()
    assert charts.forest_plot(results, find_priors(results, folder.read_study()["base"])) == charts.forest_plot(
        results, NO_PRIORS
    )


@pytest.mark.parametrize(("direction", "sign"), [("min", "\u2192 worse"), ("max", "\u2190 worse")])
def test_the_forest_plot_points_where_the_effect_would_lie(store_study, direction: str, sign: str) -> None:
    folder = store_study()
    results = {**folder.read_results(), "direction": direction}
    spec = charts.forest_plot(results, find_priors(results, folder.read_study()["base"]))
    svg = vl_convert.vegalite_to_svg({**spec, "width": 600, "config": charts.THEMES["light"]})
    assert svg.count(sign) >= 2  # no-ffn and no-mixer
    assert "published" in svg
    assert "NaN" not in svg
    assert "Pires et al. 2023, One Wide Feedforward" in json.dumps(spec)  # where it is pointed at
