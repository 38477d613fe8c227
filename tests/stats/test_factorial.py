"""Factorial designs match statsmodels' analysis of variance and published alias tables."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from statsmodels.stats.anova import AnovaRM

from taetpu.spec.fractional_factorial import build_fraction
from taetpu.stats.factorial import Factorial, analyse_factorial


def full(**levels: int) -> Factorial:
    cells = [dict(zip(levels, cell, strict=True)) for cell in product(*map(range, levels.values()))]
    return Factorial(levels, {str(tuple(cell.values())): cell for cell in cells})


def drawn(design: Factorial, seeds: int, rng: np.random.Generator, drop: float = 0.0) -> dict[str, dict[int, float]]:
    """Draw values with a main effect of every factor, a shared effect of each seed, and some missing cells."""
    shared = rng.normal(size=seeds)
    return {
        arm: {s: sum(cell.values()) + shared[s] + 0.3 * rng.normal() for s in range(seeds) if rng.random() >= drop}
        for arm, cell in design.cells.items()
    }


@pytest.mark.parametrize("levels", [{"a": 2, "b": 2}, {"a": 2, "b": 3}])
def test_terms_match_statsmodels_repeated_measures(levels: dict[str, int]) -> None:
    design = full(**levels)
    values = drawn(design, 4, np.random.default_rng(2))
    rows = [{**design.cells[arm], "seed": seed, "y": y} for arm, row in values.items() for seed, y in row.items()]
    table = AnovaRM(pd.DataFrame(rows), "y", "seed", within=list(levels)).fit().anova_table
    found = analyse_factorial(design, values)
    assert found["seeds"] == 4
    assert len(found["terms"]) == len(levels) + len(levels) * (len(levels) - 1) // 2
    for term in found["terms"]:
        row = table.loc[":".join(term["factors"])]
        assert (term["df"], term["p"]) == (row["Num DF"], pytest.approx(row["Pr > F"]))


def test_seeds_with_missing_cells_are_excluded() -> None:
    design = full(a=2, b=3)
    values = drawn(design, 5, np.random.default_rng(2))
    whole = {arm: {seed: y for seed, y in row.items() if seed not in (1, 3)} for arm, row in values.items()}
    del values["(0, 1)"][1], values["(1, 2)"][3]
    assert analyse_factorial(design, values) == analyse_factorial(design, whole)


@pytest.mark.parametrize(
    ("seeds", "studies"),
    [(5, 150), pytest.param(3, 600, marks=pytest.mark.nightly), pytest.param(8, 600, marks=pytest.mark.nightly)],
)
def test_noise_shared_by_cells_of_a_level_gives_no_false_effects(seeds: int, studies: int) -> None:
    """Trained runs with a level in common share initial weights and data, so their noise is correlated."""
    design, rng, wrong = full(a=2, b=2, c=2), np.random.default_rng(seeds), 0
    for _ in range(studies):
        common = rng.normal(size=(3, 2, seeds))
        values = {
            arm: {
                s: sum(common[i, level, s] for i, level in enumerate(cell.values())) + rng.normal() / 2
                for s in range(seeds)
            }
            for arm, cell in design.cells.items()
        }
        wrong += any(term["p_holm"] < 0.05 for term in analyse_factorial(design, values)["terms"])
    assert wrong / studies < 0.05 + 2.5 * np.sqrt(0.05 * 0.95 / studies)


def test_effects_of_two_factors_are_differences_of_means() -> None:
    design = full(a=2, b=2)
    values = drawn(design, 5, np.random.default_rng(0))
    mean = {tuple(cell.values()): np.mean(list(values[arm].values())) for arm, cell in design.cells.items()}
    a, b, both = analyse_factorial(design, values)["terms"]
    assert a["effect"] == pytest.approx((mean[1, 0] + mean[1, 1] - mean[0, 0] - mean[0, 1]) / 2)
    assert b["effect"] == pytest.approx((mean[0, 1] + mean[1, 1] - mean[0, 0] - mean[1, 0]) / 2)
    assert both["effect"] == pytest.approx(mean[1, 1] - mean[0, 1] - mean[1, 0] + mean[0, 0])
    for term in (a, b, both):
        low, high = term["ci95"]
        assert low < term["effect"] < high
        assert (term["p"] < 0.05) == (not low <= 0 <= high)
    assert a["share"] + b["share"] + both["share"] < 1
    assert [a["aliases"], b["aliases"], both["aliases"]] == [[], [], []]


def test_shares_add_up_to_the_variance_of_the_means() -> None:
    design = full(a=2, b=3)
    values = drawn(design, 3, np.random.default_rng(1))
    found = analyse_factorial(design, values)
    y = np.array([list(row.values()) for row in values.values()])
    of_means = 3 * ((y.mean(1) - y.mean()) ** 2).sum() / ((y - y.mean(0)) ** 2).sum()
    assert sum(term["share"] for term in found["terms"]) == pytest.approx(of_means)


@pytest.mark.parametrize(
    ("factors", "halvings", "resolution"),
    [(5, 2, 3), (7, 3, 4), (7, 4, 3), (5, 1, 5), (8, 4, 4), (3, 1, 3), (4, 1, 4), (6, 2, 4), (6, 1, 6)],
)
def test_resolutions_match_box_hunter_and_hunter(factors: int, halvings: int, resolution: int) -> None:
    """Source: Box, Hunter and Hunter (2005), Statistics for Experimenters, table 6.22."""
    found = build_fraction([f"f{i}" for i in range(factors)], halvings)
    assert found.resolution == resolution
    assert len(found.cells) == 2 ** (factors - halvings)
    assert not any(found.cells[0].values())
    assert len({tuple(cell.values()) for cell in found.cells}) == len(found.cells)
    for word in found.words:  # its product is constant over cells
        assert {sum(cell[name] for name in word) % 2 for cell in found.cells} == {0}
    for name in found.factors:
        assert sum(cell[name] for cell in found.cells) == len(found.cells) / 2


def test_aliases_of_a_half_fraction_of_four_factors() -> None:
    """With I = abcd, every pair is an alias of the pair of the other two factors, and no factor has an alias."""
    part = build_fraction("abcd", 1)
    design = Factorial(dict.fromkeys("abcd", 2), {str(i): cell for i, cell in enumerate(part.cells)})
    pairs = {("a", "b"): [("c", "d")], ("a", "c"): [("b", "d")], ("a", "d"): [("b", "c")]}
    assert design.aliases() == {("a",): [], ("b",): [], ("c",): [], ("d",): [], **pairs}


def test_factors_of_a_quarter_fraction_are_aliases_of_pairs() -> None:
    part = build_fraction("abcde", 2)
    design = Factorial(dict.fromkeys("abcde", 2), {str(i): cell for i, cell in enumerate(part.cells)})
    found = design.aliases()
    assert any(len(term) == 1 and any(len(other) == 2 for other in others) for term, others in found.items())
    for term, others in found.items():  # each alias is the term times a word
        assert all(frozenset(term) ^ frozenset(other) in part.words for other in others)
    assert sum(1 + len(others) for others in found.values()) == 5 + 10


def test_fraction_estimates_the_sum_of_aliased_effects() -> None:
    part = build_fraction("abcd", 1)
    design = Factorial(dict.fromkeys("abcd", 2), {str(i): cell for i, cell in enumerate(part.cells)})
    rng = np.random.default_rng(0)
    values = {
        arm: {
            s: cell["a"] + 2.0 * cell["a"] * cell["b"] + 3.0 * cell["c"] * cell["d"] + 1e-3 * rng.normal()
            for s in (0, 1)
        }
        for arm, cell in design.cells.items()
    }
    terms = {tuple(term["factors"]): term for term in analyse_factorial(design, values)["terms"]}
    assert terms["a", "b"]["effect"] == pytest.approx(2 + 3, abs=0.01)
    assert terms["a", "b"]["aliases"] == [["c", "d"]]
    assert terms["a",]["effect"] == pytest.approx(1 + 2 / 2, abs=0.01)


def test_arm_without_values_is_named_and_nothing_is_estimated() -> None:
    design = full(a=2, b=2)
    values = drawn(design, 3, np.random.default_rng(3))
    values["(1, 1)"] = {}
    found = analyse_factorial(design, values)
    assert found["missing"] == ["(1, 1)"]
    assert all(term["effect"] is term["p"] is term["ci95"] is None for term in found["terms"])


def test_no_noise_or_no_values_give_no_p_values() -> None:
    design = full(a=2, b=2)
    still = {arm: dict.fromkeys(range(3), float(cell["a"])) for arm, cell in design.cells.items()}
    for values in (still, {}, {arm: {0: 1.0 + i} for i, arm in enumerate(design.cells)}):
        found = analyse_factorial(design, values)
        assert all(term["p"] is None for term in found["terms"])
