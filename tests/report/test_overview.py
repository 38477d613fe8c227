"""Overview: training setup, ranked effects, cautions, limitations and reading guide."""

import pytest
from tests.report.conftest import stored_study

from taetpu.report import overview
from taetpu.report.inputs import read_inputs
from taetpu.report.sections import costs_section

ARMS = {
    "baseline": ({}, 0.0),
    "small": ({}, 0.06),
    "large": ({}, 0.9),
    "better": ({}, -0.3),
    "nothing": ({}, 0.001),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return stored_study(tmp_path_factory.mktemp("overview"), ARMS, seeds=5)


@pytest.fixture
def results(folder):
    return folder.read_results()


def test_arms_are_ranked_by_the_size_of_their_effects(results) -> None:
    worse, better, unknown = overview.rank_effects(results)
    assert worse.startswith("Worse: large (+0.")
    assert worse.index("large") < worse.index("small (+0.0")
    assert better.startswith("Better: better (-0.")
    assert unknown.startswith("Inconclusive: nothing (")
    assert "95 % interval " in unknown
    assert overview.rank_effects({**results, "final": False}) == []


def test_training_setup_and_cost_are_described(folder, results) -> None:
    text = " ".join(read_inputs(folder, results).trained)
    for fact in ("data text python-docs", "tokenizer char", "dim 64", "heads 4", "steps 40", "learning rate 0.003"):
        assert fact in text
    assert "Total: 25 runs, " in text
    assert text.endswith("on cpu.")


def test_arms_that_learned_no_more_than_a_rule_are_named(results) -> None:
    data = {"chance_loss": 4.2, "decoy_loss": 2.5, "decoy": "bigrams counted"}
    (rule,) = overview.learning_cautions(results, data)
    for part in ("large", "2.5", "bigrams counted"):
        assert part in rule
    (guess,) = overview.learning_cautions(results, {**data, "chance_loss": 2.5})
    assert guess.endswith("a uniform guess (loss 2.5): large.")
    assert overview.learning_cautions(results, {**data, "decoy_loss": 9.0}) == []
    assert overview.learning_cautions({**results, "primary": "val/accuracy"}, data) == []
    longer = {**data, "val@64": {**data, "decoy_loss": 9.0}}
    assert overview.learning_cautions({**results, "primary": "val@64/loss"}, longer) == []
    assert overview.learning_cautions({**results, "primary": "val@64/loss"}, data) == [rule]


def test_distance_from_the_lowest_possible_loss(results) -> None:
    data = {"chance_loss": 4.2, "bayes_loss": 1.0}
    (line,) = overview.describe_excess(results, data)
    means = {arm["name"]: arm["mean"] for arm in results["arms"]}
    for name, mean in means.items():
        assert f"{name} {mean - 1.0:+.4f}" in line
    assert line.index(min(means, key=means.__getitem__)) < line.index(max(means, key=means.__getitem__))
    assert overview.describe_excess(results, {**data, "bayes_loss": None}) == []
    assert overview.describe_excess(results, {**data, "bayes_loss": 0.0}) == []
    assert overview.describe_excess({**results, "primary": "val/accuracy"}, data) == []
    longer = {**data, "val@64": {**data, "bayes_loss": 0.5}}
    assert "is 0.5" in overview.describe_excess({**results, "primary": "val@64/loss"}, longer)[0]


def test_limitations_follow_from_the_study(results) -> None:
    text = " ".join(overview.study_limits(results))
    assert "with each other" in text
    assert "No arm was" in text
    assert "match: params" not in text
    results["arms"][2]["params"] = results["arms"][0]["params"] // 2
    assert any("large (-50%)" in line and "match: params" in line for line in overview.study_limits(results))


def test_reading_guide_explains_clipping_for_accuracies_only(results) -> None:
    accuracy = {**results, "plan": {**results["plan"], "primary": "val/accuracy"}}
    assert "the possible range" not in " ".join(overview.reading_guide(results))
    assert "the possible range" in " ".join(overview.reading_guide(accuracy))


def test_times_at_unequal_pack_widths_are_not_compared(results) -> None:
    alike = {arm["name"]: {"train_seconds": 2.0 + i, "width": 4.0} for i, arm in enumerate(results["arms"])}
    assert costs_section(results, alike).tables[0].rows[1][5] == "3 s (+50%)"
    section = costs_section(results, {**alike, "small": {"train_seconds": 3.0, "width": 8.0}})
    assert section.tables[0].rows[1][5] == "3 s"
    assert "not comparable" in section.lead
    assert not any("seconds" in caption for caption, _ in section.charts)
