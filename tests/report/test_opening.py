"""What a reader asks first, answered from the results."""

import pytest

from taetpu.report import opening
from taetpu.report.arms import first_settings


@pytest.fixture
def folder(store_study):
    arms = {
        "baseline": ({}, 0.0),
        "small": ({}, 0.06),
        "large": ({}, 0.9),
        "better": ({}, -0.3),
        "nothing": ({}, 0.001),
    }
    return store_study(arms, seeds=5)


def test_arms_are_named_with_their_effects_the_largest_first(folder) -> None:
    results = folder.read_results()
    worse, better, unknown = opening.ranking(results)
    assert worse.startswith("Worse: large (+0.")
    assert worse.index("large") < worse.index("small (+0.0")
    assert better.startswith("Better: better (-0.")
    assert unknown.startswith("Not told from the baseline: nothing (")
    assert "which may be anything from " in unknown
    assert opening.ranking({**results, "final": False}) == []


def test_what_was_trained_and_what_it_cost(folder) -> None:
    results = folder.read_results()
    said = " ".join(opening.trained(results, folder, first_settings(folder, results["arms"][0])))
    for fact in ("data text python-docs", "tokens by char", "dim 64", "heads 4", "steps 400", "learning rate 0.003"):
        assert fact in said
    assert "All of it: 25 runs, " in said
    assert said.endswith("on cpu.")


def test_arms_that_learned_no_more_than_a_rule_are_told(folder) -> None:
    results = folder.read_results()
    data = {"decoy_loss": 2.5, "decoy": "bigrams counted"}
    assert opening.cautions(results, data) == [
        "large ends at or above 2.5, which a rule without a model reaches (bigrams counted): trained so, it "
        "learned next to nothing."
    ]
    assert opening.cautions(results, {**data, "decoy_loss": 9.0}) == []
    assert opening.cautions({**results, "primary": "val/accuracy"}, data) == []


def test_what_the_study_cannot_tell(folder) -> None:
    results = folder.read_results()
    said = opening.limits(results)
    assert any("not with each other" in line for line in said)
    assert any(line.startswith("No arm was tuned") for line in said)
    assert not any("another size" in line for line in said)
    results["arms"][2]["params"] = results["arms"][0]["params"] // 2
    assert any("Parameters: large (-50%); of another size" in line for line in opening.limits(results))


def test_times_of_packs_of_other_widths_are_not_compared(folder) -> None:
    from taetpu.report.sections import costs

    results = folder.read_results()
    alike = {arm["name"]: {"train_seconds": 2.0 + i, "width": 4.0} for i, arm in enumerate(results["arms"])}
    assert costs(results, alike).tables[0].rows[1][5] == "3 s (+50%)"
    apart = {**alike, "small": {"train_seconds": 3.0, "width": 8.0}}
    section = costs(results, apart)
    assert section.tables[0].rows[1][5] == "3 s"
    assert "times cannot be compared" in section.lead
    assert not any("seconds" in caption for caption, _ in section.charts)
