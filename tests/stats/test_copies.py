"""Correlated noise between arms is detected and does not cause false verdicts."""

import numpy as np
import pytest

from taetpu.stats.linear_model import fit_model
from taetpu.stats.verdict import holm

STUDIES = 200


def drawn(rng: np.random.Generator, arms: int, seeds: int, copied: float) -> dict[str, dict[int, float]]:
    """Draw arms without effects in two families. Runs of a family have the share `copied` of their noise in common."""
    common, own = rng.normal(size=(2, seeds)), rng.normal(size=(arms, seeds))
    y = np.sqrt(copied) * common[np.arange(arms) * 2 // arms] + np.sqrt(1 - copied) * own + rng.normal(size=seeds)
    return {"baseline" if i == 0 else f"arm{i}": dict(enumerate(row)) for i, row in enumerate(y.tolist())}


@pytest.mark.slow
@pytest.mark.parametrize(("copied", "found"), [(0.0, (0.0, 0.07)), (0.99, (0.95, 1.0))])
def test_correlated_noise_is_detected_and_rarely_if_there_is_none(copied: float, found: tuple[float, float]) -> None:
    rng = np.random.default_rng(0)
    share = np.mean(
        [fit_model(drawn(rng, 6, 5, copied), noise="guard").copies for _ in range(STUDIES // (2 if copied else 1))]
    )
    assert found[0] <= share <= found[1]


@pytest.mark.slow
def test_correlated_noise_gives_no_more_false_verdicts_than_documented() -> None:
    """With pooled noise, 9 % of such studies would have a false verdict (`benchmarks.calibration`)."""
    rng, wrong = np.random.default_rng(1), 0
    for _ in range(STUDIES):
        effects = fit_model(drawn(rng, 6, 5, 0.97), noise="guard").effects
        wrong += min(filter(None, holm({arm: effect.p for arm, effect in effects.items()}).values())) < 0.05
    assert wrong / STUDIES < 0.06


def test_correlated_noise_adds_the_paired_estimate() -> None:
    values = drawn(np.random.default_rng(2), 6, 5, 0.999)
    found = fit_model(values, noise="guard")
    assert found.copies
    assert not found.noisy
    effect = found.effects["arm5"]  # of the other family
    pooled, paired = effect.estimates
    differences = np.array(list(values["arm5"].values())) - np.array(list(values["baseline"].values()))
    assert paired.value == pytest.approx(differences.mean()) == pytest.approx(pooled.value)
    assert paired.standard_error == pytest.approx(differences.std(ddof=1) / np.sqrt(5))
    assert effect.p == max(pooled.p, paired.p)


def test_seeds_missing_in_an_arm_are_excluded_from_the_test_for_correlated_noise() -> None:
    values = drawn(np.random.default_rng(2), 6, 6, 0.999)
    whole = {arm: {seed: y for seed, y in row.items() if seed != 4} for arm, row in values.items()}
    del values["arm2"][4]
    assert fit_model(values, noise="guard").copies == fit_model(whole, noise="guard").copies


def test_two_arms_or_two_seeds_show_no_correlated_noise() -> None:
    rng = np.random.default_rng(3)
    assert not fit_model(drawn(rng, 2, 8, 0.9), noise="guard").copies
    assert not fit_model(drawn(rng, 8, 2, 0.9), noise="guard").copies
