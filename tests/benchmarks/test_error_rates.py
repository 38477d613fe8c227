"""Simulations of goals, outcomes and repeated arms: a few studies have known answers."""

import numpy as np
import pytest

from benchmarks import goal_calibration, outcome_calibration, repeats_calibration


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize(("monotone", "searched"), [(True, False), (True, True), (False, True)])
def test_goals_with_clear_steps_are_answered(tasks, monotone, searched) -> None:
    scenario = goal_calibration.Scenario("clear", 1000.0, candidates=4, tasks=tasks)
    error, false, true, runs = goal_calibration.rates(scenario, 4, 4, monotone, searched)
    assert (error, false, true) == (0, 0, 1)
    assert runs < 4 or not searched or not monotone


def test_smallest_candidate_of_several_tasks_is_that_of_the_hardest() -> None:
    scenario = goal_calibration.Scenario("clear", 1000.0, candidates=6, tasks=3)
    for seed in range(5):
        y, true = scenario.draw(np.random.default_rng(seed), 3)
        meets = (y < 0).all((0, 2))
        assert y.shape == (3, 6, 3)
        assert list(meets) == [number >= true for number in range(6)]


@pytest.mark.parametrize("scenario", [outcome_calibration.TIMES[0], outcome_calibration.SHARES[0]])
def test_rates_of_outcomes_are_shares(scenario) -> None:
    rates = outcome_calibration.rates(scenario, 3, 3, 4)
    assert len(rates) == (5 if scenario in outcome_calibration.TIMES else 3)
    assert all(0 <= rate <= 1 for rate in rates)
    assert len(list(outcome_calibration.excess("x", 0.5, 100))) == 1
    assert list(outcome_calibration.excess("x", 0.05, 100)) == []


def test_a_clear_reversal_is_found_and_a_clear_effect_holds() -> None:
    scenario = repeats_calibration.SCENARIOS[0]
    settings = len(repeats_calibration.SETTINGS)
    same, turned = np.full(settings, -90.0), np.array([-90.0] * (settings - 1) + [90.0])
    assert repeats_calibration.shares(scenario, same, 4, 3)["holds"] == 1
    assert repeats_calibration.shares(scenario, turned, 4, 3)["reverses"] == 1
