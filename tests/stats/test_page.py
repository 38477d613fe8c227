"""docs/statistics.md shows the numbers that the code computes."""

from pathlib import Path

import pytest

from taetpu.stats.analyse import analyse

PAGE = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text()


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_worked_example_shows_computed_numbers(store_study) -> None:
    lines = [
        cells(line) for line in PAGE.splitlines() if line.startswith(("| baseline |", "| nope |", "| layernorm |"))
    ]
    values = {name: {seed: float(value) for seed, value in enumerate(row[:5])} for name, *row in lines if len(row) == 6}
    results = analyse(store_study(values, equivalence=0.01, noise="moderated"))
    assert f"{results['noise_floor']['sd']:.3f}" in PAGE
    assert f"standard deviation of {results['model']['residual_sd']:.4f}" in PAGE
    assert f"{results['model']['df']:.1f} degrees of freedom" in " ".join(PAGE.split())
    told = {name: row for name, *row in lines if len(row) == 5}
    for arm in results["arms"]:
        assert f"{arm['mean']:.3f}" in PAGE
        if arm["against"] is None:
            continue
        size, interval, p, p_holm, verdict = told[arm["name"]]
        assert size == f"{arm['effect']:+.4f}"
        assert interval == f"{arm['ci95'][0]:+.4f} to {arm['ci95'][1]:+.4f}"
        assert (float(p), float(p_holm)) == (pytest.approx(arm["p"], rel=0.2), pytest.approx(arm["p_holm"], rel=0.2))
        assert verdict == arm["verdict"]
    layernorm = results["arms"][2]
    assert f"{layernorm['ci90'][0]:.4f} to {layernorm['ci90'][1]:+.4f}" in PAGE


def test_every_field_of_the_results_is_explained(store_study) -> None:
    results = analyse(store_study({"baseline": {0: 1.0, 1: 1.1}, "a": {0: 2.0, 1: 2.2}}))
    obvious = {"study", "primary", "direction", "arms"}
    of_arms = {"name", "against", "role", "diff", "change", "runs", "mean", "sd", "metrics"}
    fields = (set(results) - obvious) | (set(results["arms"][1]) - of_arms)
    assert [field for field in sorted(fields) if f"`{field}`" not in PAGE] == []
