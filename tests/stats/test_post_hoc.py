"""Comparison of arms by their post-hoc ablation tables, on made-up tables."""

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.stats.conftest import made_study

from taetpu.core.errors import UserError
from taetpu.stats import post_hoc
from taetpu.stats.analyse import compute_results
from taetpu.stats.deviations import find_departures
from taetpu.stats.linear_model import fit_model
from taetpu.stats.plan import Plan, read_plan
from taetpu.stats.post_hoc import EFFECTIVE, LARGEST, measure_table
from taetpu.stats.results_table import Cell, Table
from taetpu.stats.verify import verify
from taetpu.store.digests import Damaged

SETTINGS = {"knockout": "heads", "how": "mean", "split": "val", "documents": 64, "seed": 0}
NAME = "heads-mean"
LAYERS = (0, 0, 0, 1, 1, 1)
MEASURES = ["layer 0", "layer 1", LARGEST, EFFECTIVE]


def table(effects):
    effects = [None if np.isnan(effect) else float(effect) for effect in effects]
    return {"settings": SETTINGS, "unit": "char", "loss": 1.0, "documents": 64, "effects": effects,
            "components": [str(i) for i in range(len(effects))], "layers": list(LAYERS)}  # fmt: skip


@pytest.fixture
def compare(tmp_path):
    """Return `compare(tables, planned=True, **plan)`: a study whose arms have tables by seed, and its comparison.

    A value of None is a run that diverged, "unfinished" one without a result, and "none" one without a table.
    """

    def made(tables, planned=True, **plan):
        values = {arm: {s: None if one is None else 1.0 + s for s, one in row.items() if one != "unfinished"}
                  for arm, row in tables.items()}  # fmt: skip
        planned = {"post_hoc": {NAME: SETTINGS}} if planned else {}
        folder = made_study(tmp_path, values, name=f"s{len([*tmp_path.iterdir()])}", **planned, **plan)
        folder.write_study({**folder.read_study(), "post_hoc": {NAME: SETTINGS}}, replace=True)
        for run in folder.runs():
            one = tables[run.arm][run.seed]
            if isinstance(one, dict):
                run.write_post_hoc(NAME, one)
        return folder, compute_results(folder)["post_hoc"][0]

    return made


def drawn(rng, seeds=5):
    return {seed: table(rng.gamma(2.0, 0.01, len(LAYERS))) for seed in range(seeds)}


def of(found, arm, measure):
    return next(one for one in found["arms"] if one["name"] == arm)["values"][measure]


# --- measures ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(-1, 1), min_size=6, max_size=6), st.randoms(use_true_random=False))
def test_measures_do_not_depend_on_the_order_of_parts_within_a_layer(effects, random):
    first, second = effects[:3], effects[3:]
    random.shuffle(first)
    random.shuffle(second)
    assert measure_table(first + second, LAYERS) == pytest.approx(measure_table(effects, LAYERS))


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=9), st.integers(1, 9), st.floats(1e-9, 1e9))
def test_the_effective_number_counts_equal_effects_at_any_size(negative, number, size):
    harmless = [-abs(effect) * size for effect in negative]
    effects = [size] * number + harmless
    found = measure_table(effects, [0] * len(effects))
    assert found[EFFECTIVE] == pytest.approx(number)
    assert found[LARGEST] == size
    assert found["layer 0"] == pytest.approx(sum(effects))


@given(st.lists(st.floats(0, 1), min_size=2, max_size=9).filter(any))
def test_the_effective_number_is_between_1_and_the_number_of_parts(effects):
    assert 1 - 1e-9 <= measure_table(effects, [0] * len(effects))[EFFECTIVE] <= len(effects) + 1e-9


def test_tables_of_few_parts_have_the_measures_that_mean_something():
    assert measure_table([0.5], [3]) == {"layer 3": 0.5}
    assert measure_table([0.5], [None]) == {LARGEST: 0.5}
    assert EFFECTIVE not in measure_table([-0.5, 0.0], [0, 1])
    assert measure_table([0.5, np.nan], [0, 1]) == {}


# --- comparisons ------------------------------------------------------------------------------------------------------


def test_an_arm_that_leans_on_one_head_has_a_lower_effective_number_and_a_larger_effect(compare):
    rng = np.random.default_rng(0)
    even = {seed: table(0.02 + rng.normal(0, 0.001, 6)) for seed in range(4)}
    one = {seed: table([0.001, 0.0, 0.07 + rng.normal(0, 0.001), 0.02, 0.02, 0.02]) for seed in range(4)}
    _, found = compare({"baseline": even, "lean": one})
    assert found["measures"] == MEASURES
    verdicts = {measure: of(found, "lean", measure)["verdict"] for measure in MEASURES}
    assert verdicts == {"layer 0": "higher", "layer 1": "inconclusive", LARGEST: "higher", EFFECTIVE: "lower"}
    assert all(of(found, "baseline", measure)["verdict"] is None for measure in MEASURES)


def test_effects_intervals_and_p_are_those_of_the_linear_model(compare):
    rng = np.random.default_rng(1)
    tables = {arm: drawn(rng) for arm in ("baseline", "a", "b")}
    _, found = compare(tables)
    for measure in MEASURES:
        values = {arm: {seed: measure_table(one["effects"], LAYERS)[measure] for seed, one in row.items()}
                  for arm, row in tables.items()}  # fmt: skip
        for arm, effect in fit_model(values, noise="guard").effects.items():
            one = of(found, arm, measure)
            assert (one["effect"], one["p"]) == (pytest.approx(effect.effect), pytest.approx(effect.p))
            assert one["ci95"] == pytest.approx(effect.interval)
            assert one["mean"] == pytest.approx(np.mean([*values[arm].values()]))


def test_all_comparisons_of_a_table_are_corrected_together_and_apart_from_the_arms(compare):
    rng = np.random.default_rng(2)
    folder, found = compare({arm: drawn(rng) for arm in ("baseline", "a", "b")})
    raw = {(arm, measure): of(found, arm, measure)["p"] for arm in "ab" for measure in MEASURES}
    assert found["compared"] == len(raw) == 8
    largest = 0.0
    for rank, key in enumerate(sorted(raw, key=raw.__getitem__)):
        largest = max(largest, min(1.0, raw[key] * (len(raw) - rank)))
        assert of(found, *key)["p_holm"] == pytest.approx(largest)
    without = folder.read_study()
    del without["post_hoc"]
    with_tables = compute_results(folder)
    folder.write_study(without, replace=True)
    assert compute_results(folder)["arms"] == with_tables["arms"]


@pytest.mark.slow
def test_a_study_without_a_difference_has_a_verdict_in_at_most_one_of_twenty_cases():
    """The effects are skewed, shared within a seed, and 3 arms are compared by 4 measures."""
    rng, studies, alarms = np.random.default_rng(3), 150, 0
    arms = ("baseline", "a", "b", "c")
    plan = Plan("val/loss", "min", arms, tuple(range(4)), (4,), post_hoc={NAME: SETTINGS})
    for _ in range(studies):
        shared = rng.gamma(4.0, 0.25, 4)
        effects = {arm: {seed: post_hoc.Effects(tuple(shared[seed] * rng.gamma(1.0, 0.01, 6) - 0.002), LAYERS, "u")
                         for seed in range(4)} for arm in arms}  # fmt: skip
        runs = Table({arm: [Cell(seed, "finished", 1.0) for seed in range(4)] for arm in arms})
        found = post_hoc.compare_arms(effects, runs, plan, dict.fromkeys(arms[1:], "baseline"), True)
        alarms += any(of(found, arm, measure)["verdict"] in ("higher", "lower")
                      for arm in arms[1:] for measure in MEASURES)  # fmt: skip
    assert alarms <= 0.05 * studies + 2 * np.sqrt(0.05 * 0.95 * studies)


# --- runs that are missing --------------------------------------------------------------------------------------------


def test_diverged_runs_are_counted_and_the_others_compared(compare):
    rng = np.random.default_rng(4)
    tables = {"baseline": drawn(rng), "a": {**drawn(rng), 1: None, 4: None}}
    _, found = compare(tables)
    arm = found["arms"][1]
    assert (arm["tables"], arm["finished"], arm["diverged"], arm["runs"]) == (3, 3, 2, 5)
    assert found["final"]
    assert arm["values"][LARGEST]["verdict"] is not None


@pytest.mark.parametrize("missing", ["unfinished", "none"])
def test_there_are_no_verdicts_until_all_runs_have_tables(compare, missing):
    rng = np.random.default_rng(5)
    tables = {"baseline": drawn(rng), "a": {**drawn(rng), 1: missing}}
    _, found = compare(tables)
    assert not found["final"]
    one = of(found, "a", LARGEST)
    assert one["effect"] is not None
    assert (one["p"], one["p_holm"], one["verdict"]) == (None, None, None)


def test_a_single_seed_has_an_effect_and_nothing_else(compare):
    rng = np.random.default_rng(6)
    _, found = compare({"baseline": drawn(rng, 1), "a": drawn(rng, 1)})
    one = of(found, "a", LARGEST)
    assert one["effect"] is not None
    assert (one["ci95"], one["p"], one["verdict"]) == (None, None, None)


def test_an_unplanned_number_of_seeds_has_no_verdicts(compare):
    rng = np.random.default_rng(7)
    _, found = compare({arm: drawn(rng, 4) for arm in ("baseline", "a")}, looks=(3, 6))
    assert of(found, "a", LARGEST)["ci95"] is not None
    assert of(found, "a", LARGEST)["verdict"] is None


def test_an_arm_without_the_parts_or_with_other_tokens_is_not_compared(compare):
    rng = np.random.default_rng(8)
    lacking = {seed: {"settings": SETTINGS, "absent": "this model has no heads"} for seed in range(5)}
    other = {seed: {**one, "unit": "bpe"} for seed, one in drawn(rng).items()}
    _, found = compare({"baseline": drawn(rng), "lacking": lacking, "other": other, "a": drawn(rng)})
    by_name = {arm["name"]: arm for arm in found["arms"]}
    assert by_name["lacking"]["absent"] == lacking[0]["absent"]
    assert "other tokens" in by_name["other"]["absent"]
    assert by_name["a"]["absent"] is None
    assert found["final"]
    assert found["compared"] == len(MEASURES)
    assert by_name["other"]["values"][LARGEST]["effect"] is None
    assert by_name["lacking"]["ranked"] == []


def test_a_table_with_an_infinite_effect_is_left_out(compare):
    rng = np.random.default_rng(9)
    tables = {"baseline": drawn(rng), "a": {**drawn(rng), 2: table([np.nan] * 6)}}
    _, found = compare(tables)
    kept = [max(one["effects"]) for seed, one in tables["a"].items() if seed != 2]
    assert of(found, "a", LARGEST)["mean"] == pytest.approx(np.mean(kept))


def test_ranked_effects_are_means_over_seeds_of_sorted_effects(compare):
    tables = {"baseline": {0: table([3, 1, 2, 0, 0, 5]), 1: table([1, 2, 9, 4, 6, 5])}}
    _, found = compare(tables)
    expected = [{"layer": 0, "effects": [6, 2, 1]}, {"layer": 1, "effects": [5.5, 2.5, 2]}]
    assert found["arms"][0]["ranked"] == expected


# --- integrity --------------------------------------------------------------------------------------------------------


def test_results_with_tables_are_verified(compare):
    rng = np.random.default_rng(10)
    folder, _ = compare({arm: drawn(rng) for arm in ("baseline", "a")})
    folder.write_results(compute_results(folder))
    before = verify(folder)
    run = next(run for run in folder.runs() if run.arm == "a")
    run.write_post_hoc(NAME, table([1.0] * 6))
    more = [problem for problem in verify(folder) if problem not in before]
    assert more
    assert all("post_hoc" in problem for problem in more)


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"effects": [1], "digest": "sha256:0"}'])
def test_a_damaged_table_is_refused_with_its_file_and_a_remedy(compare, data):
    rng = np.random.default_rng(11)
    folder, _ = compare({arm: drawn(rng) for arm in ("baseline", "a")})
    run = folder.runs()[0]
    run.store.write(run.post_hoc_key(NAME), data, replace=True)
    with pytest.raises(Damaged) as caught:
        compute_results(folder)
    assert str(caught.value.file).endswith(f"post_hoc/knockout-{NAME}.json")
    assert "delete the file" in caught.value.remedy
    assert run.find_damage() == []  # the run itself is intact


def test_tables_are_part_of_the_hash_of_a_plan_and_a_plan_without_tables_has_the_earlier_hash():
    own = {"primary": "val/loss", "direction": "min", "arms": ("baseline", "a"), "seeds": (0, 1), "looks": (2,)}
    plan = Plan(**own)
    earlier = {**own, "equivalence": None, "alpha": 0.05}
    assert plan.sha256 == hashlib.sha256(json.dumps(earlier, sort_keys=True).encode()).hexdigest()
    assert read_plan({"plan": plan.frozen()}, "") == plan
    asked = Plan(**own, post_hoc={NAME: SETTINGS})
    assert asked.sha256 != plan.sha256
    assert read_plan({"plan": asked.frozen()}, "") == asked
    with pytest.raises(UserError, match="from the plan"):
        read_plan({"plan": {**asked.frozen(), "post_hoc": {NAME: {**SETTINGS, "seed": 1}}}}, "")


def test_a_table_that_was_added_later_is_marked_and_a_planned_one_that_is_missing_is_a_departure(compare):
    rng = np.random.default_rng(12)
    tables = {arm: drawn(rng) for arm in ("baseline", "a")}
    folder, found = compare(tables, planned=False)
    assert found["planned"] is False
    study = folder.read_study()
    assert find_departures(study, read_plan(study, "")) == []
    folder, found = compare(tables)
    assert found["planned"] is True
    study = folder.read_study()
    plan = read_plan(study, "")
    assert find_departures(study, plan) == []
    del study["post_hoc"]
    (departure,) = find_departures(study, plan)
    assert NAME in departure
