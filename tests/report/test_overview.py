"""What a reader asks first, answered from the results."""

import pytest

from taetpu.report import overview
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
    worse, better, unknown = overview.rank_effects(results)
    assert worse.startswith("Worse: large (+0.")
    assert worse.index("large") < worse.index("small (+0.0")
    assert better.startswith("Better: better (-0.")
    assert unknown.startswith("Inconclusive: nothing (")
    assert "95 % interval " in unknown
    assert overview.rank_effects({**results, "final": False}) == []


def test_what_was_trained_and_what_it_cost(folder) -> None:
    results = folder.read_results()
    said = " ".join(overview.describe_training(results, folder, first_settings(folder, results["arms"][0])))
    for fact in ("data text python-docs", "tokenizer char", "dim 64", "heads 4", "steps 400", "learning rate 0.003"):
        assert fact in said
    assert "Total: 25 runs, " in said
    assert said.endswith("on cpu.")


def test_arms_that_learned_no_more_than_a_rule_are_told(folder) -> None:
    results = folder.read_results()
    data = {"chance_loss": 4.2, "decoy_loss": 2.5, "decoy": "bigrams counted"}
    (rule,) = overview.learning_cautions(results, data)
    for part in ("large", "2.5", "bigrams counted"):
        assert part in rule
    assert "no learning beyond" in rule
    (guess,) = overview.learning_cautions(results, {**data, "chance_loss": 2.5})
    assert "learned nothing" in guess
    assert "bigrams" not in guess
    assert overview.learning_cautions(results, {**data, "decoy_loss": 9.0}) == []
    assert overview.learning_cautions({**results, "primary": "val/accuracy"}, data) == []


def test_what_the_study_cannot_tell(folder) -> None:
    results = folder.read_results()
    said = overview.study_limits(results)
    assert any("not with each other" in line for line in said)
    assert any(line.startswith("No arm was tuned") for line in said)
    assert not any("match: params" in line for line in said)
    results["arms"][2]["params"] = results["arms"][0]["params"] // 2
    assert any("large (-50%)" in line and "match: params" in line for line in overview.study_limits(results))


def test_whose_training_settings_arms_have_follows_from_how_they_differ(store_study) -> None:
    lr, steps = "train.optimizer.lr", "train.steps"
    cases = {
        "all use the baseline's training settings": {"a": {}, "b": {"model.dim": 32}},
        "b has its own train.optimizer.lr, and all others": {"a": {}, "b": {lr: 1e-3}},
        "b, c have their own train.optimizer.lr, train.steps, and all others": {
            "a": {},
            "b": {lr: 1.0},
            "c": {steps: 9},
        },
        "each has its own train.optimizer.lr": {"a": {lr: 1e-3}, "b": {lr: 1e-2, "model.dim": 32}},
    }
    base = {"name": "baseline", "against": None, "diff": {}, "params": 1, "role": {}}
    for said, arms in cases.items():
        own = [{**base, "name": name, "against": "baseline", "diff": diff} for name, diff in arms.items()]
        results = {"arms": [base, *own], "designs": {"limits": []}, "tuning": None}
        assert [said in line for line in overview.study_limits(results) if "No arm was tuned" in line] == [True], said


def test_arms_on_other_batches_are_no_example_of_the_same_data(folder) -> None:
    results = folder.read_results()
    results["arms"][1]["diff"] = {"train.batch_size": 8}
    assert any("in the same order (small sees other batches)" in line for line in overview.reading_guide(results))


def test_an_accuracy_is_said_to_be_cut_and_a_loss_is_not(folder) -> None:
    results = folder.read_results()
    assert not any("clipped to the possible range" in line for line in overview.reading_guide(results))
    assert any(
        "clipped to the possible range" in line
        for line in overview.reading_guide({**results, "primary": "val/accuracy"})
    )


def test_times_of_packs_of_other_widths_are_not_compared(folder) -> None:
    from taetpu.report.sections import costs_section

    results = folder.read_results()
    alike = {arm["name"]: {"train_seconds": 2.0 + i, "width": 4.0} for i, arm in enumerate(results["arms"])}
    assert costs_section(results, alike).tables[0].rows[1][5] == "3 s (+50%)"
    apart = {**alike, "small": {"train_seconds": 3.0, "width": 8.0}}
    section = costs_section(results, apart)
    assert section.tables[0].rows[1][5] == "3 s"
    assert "Times are not comparable" in section.lead
    assert not any("seconds" in caption for caption, _ in section.charts)
