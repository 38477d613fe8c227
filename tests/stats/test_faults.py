"""Missing, short and damaged runs give no verdict or are refused."""

import time
from pathlib import Path

import numpy as np
import pytest
from tests.forged import unsealed

from taetpu.core.errors import UserError
from taetpu.report.charts import forest_plot
from taetpu.report.sections import build_sections
from taetpu.stats.analyse import analyse


def arm(results: dict, name: str) -> dict:
    return next(found for found in results["arms"] if found["name"] == name)


def nothing_decided(found: dict) -> None:
    for field in ("verdict", "p", "p_holm", "p_equivalent", "divergence_p", "more_seeds", "sensitivity"):
        assert found[field] is None


def test_missing_run_leaves_effects_without_verdicts(draw, table, store_study) -> None:
    values = table(3 + 0.1 * draw(np.random.default_rng(0), 3, 5) + np.array([[0.0], [0.0], [9.0]]))
    del values["arm1"][2]
    results = analyse(store_study(values, equivalence=100.0))
    assert (results["complete"], results["final"]) == (False, False)
    for name in ("arm1", "arm2"):
        nothing_decided(arm(results, name))
        assert arm(results, name)["ci95"] is not None
    assert arm(results, "arm2")["effect"] == pytest.approx(9, abs=0.5)
    assert " p " not in arm(results, "arm2")["evidence"]
    assert "matters" not in arm(results, "arm2")["evidence"]
    assert set(results["designs"]) == {"limits"}


@pytest.mark.parametrize(("looks", "final"), [((8,), False), ((5, 8), True), ((4,), True)])
def test_verdicts_are_given_at_planned_analyses_and_after_the_last(draw, table, store_study, looks, final) -> None:
    values = table(3 + 0.1 * draw(np.random.default_rng(0), 3, 5) + np.array([[0.0], [0.0], [9.0]]))
    results = analyse(store_study(values, looks=looks))
    assert results["complete"]
    assert results["final"] is final
    found = arm(results, "arm2")
    if final:
        assert found["verdict"] == "worse"
    else:
        nothing_decided(found)
    assert (results["plan"]["error_rate"] > 0.05) == (looks == (4,))


def test_interim_analysis_has_larger_corrected_p_values(draw, table, store_study) -> None:
    values = table(3 + 0.1 * draw(np.random.default_rng(0), 3, 5))
    planned, alone = (analyse(store_study(values, name=f"s{looks[-1]}", looks=looks)) for looks in ((5, 8), (5,)))
    assert arm(planned, "arm1")["p"] == arm(alone, "arm1")["p"]
    assert arm(planned, "arm1")["p_holm"] > arm(alone, "arm1")["p_holm"]


def test_run_that_ended_early_is_refused(store_study) -> None:
    values = {"baseline": {0: 1.0, 1: 1.1}, "a": {0: 2.0, 1: 2.1}}
    folder = store_study(values, result=lambda arm, seed: {"steps": 7} if (arm, seed) == ("a", 1) else {})
    with pytest.raises(UserError) as error:
        analyse(folder)
    assert "after 7 of its 10 steps" in str(error.value)
    assert "runs/a/1-00000001" in str(error.value)
    assert "the run's folder" in str(error.value)


def test_devices_are_counted(store_study) -> None:
    values = {"baseline": {0: 1.0, 1: 1.1}, "a": {0: 2.0, 1: 2.1}}

    def result(arm: str, seed: int) -> dict:
        return {"environment": {"device": "TPU v5e" if (arm, seed) == ("a", 1) else "cpu", "machine": "x86_64"}}

    assert analyse(store_study(values, result=result))["hardware"] == [
        {"device": "cpu", "machine": "x86_64", "runs": 3},
        {"device": "TPU v5e", "machine": "x86_64", "runs": 1},
    ]


EQUAL, VARIED = (1.0,) * 6, (1.0, 1.25, 0.5, 2.0, 4.0, 3.0)


@pytest.mark.parametrize(
    ("values", "shift", "seeds", "p", "p_equivalent", "verdict"),
    [
        (EQUAL, 0.0, 5, 1.0, 2**-5, "equivalent"),
        (EQUAL, 0.0, 4, 1.0, 2**-4, "inconclusive"),
        (VARIED, 0.0, 5, 1.0, 2**-5, "equivalent"),
        (EQUAL, -0.5, 5, 2 * 4**-5, 0.5, "better"),
        (EQUAL, 0.5, 3, 2 * 4**-3, 0.5, "worse"),
        (EQUAL, 0.5, 2, 2 * 4**-2, 0.5, "inconclusive"),
        (EQUAL, 0.01, 5, 2 * 4**-5, 2**-5, "equivalent"),
        (VARIED, -0.5, 6, 2 * 2**-6, 0.5, "better"),
        (VARIED, -0.5, 5, 2 * 2**-5, 0.5, "inconclusive"),
    ],
)
def test_runs_without_noise_are_judged_by_exact_tests(
    values, shift, seeds, p, p_equivalent, verdict, store_study
) -> None:
    """Two constant arms have Boschloo's p of `2 * 4**-seeds`, the sign test that of `2 * 2**-seeds`."""
    base = dict(enumerate(values[:seeds]))
    rows = {"baseline": base, "a": {seed: value + shift for seed, value in base.items()}}
    folder = store_study(rows, rules=2, equivalence=0.02)
    found = arm(analyse(folder), "a")
    assert (found["p"], found["p_equivalent"]) == (pytest.approx(p), pytest.approx(p_equivalent))
    assert (found["ci95"], found["verdict"]) == (None, verdict)
    earlier = arm(analyse(store_study(rows, name="earlier", equivalence=0.02)), "a")
    assert (earlier["p"], earlier["p_equivalent"], earlier["verdict"]) == (None, None, "inconclusive")


def test_noise_of_another_arm_replaces_the_exact_tests(store_study) -> None:
    rows = {"baseline": EQUAL, "a": [1.5] * 6, "b": VARIED}
    results = analyse(store_study({name: dict(enumerate(row)) for name, row in rows.items()}, rules=2))
    assert arm(results, "a")["ci95"] is not None


def test_study_without_noise_has_a_report(store_study) -> None:
    folder = store_study({"baseline": dict(enumerate(EQUAL)), "a": dict.fromkeys(range(6), 0.5)}, rules=2)
    results = analyse(folder)
    rows = [row for part in build_sections(results, {}, {}) for table in part.tables for row in table.rows]
    assert any(row[0] == "a" for row in rows)
    assert forest_plot(results)


def test_runs_without_noise_are_inconclusive_in_earlier_plans(store_study) -> None:
    results = analyse(store_study({"baseline": dict.fromkeys(range(3), 1.0), "a": dict.fromkeys(range(3), 1.5)}))
    found = arm(results, "a")
    assert (found["effect"], found["ci95"], found["p"], found["verdict"]) == (0.5, None, None, "inconclusive")
    assert "no noise at" in found["evidence"]
    assert results["noise_floor"]["resolves"] is None


def test_baseline_alone_is_analysed(store_study) -> None:
    results = analyse(store_study({"baseline": {0: 1.0, 1: 1.1}}))
    assert results["final"]
    assert [found["name"] for found in results["arms"]] == ["baseline"]
    assert results["noise_floor"]["sd"] == pytest.approx(0.1 / np.sqrt(2))


@pytest.mark.nightly  # 2,505 runs are written
def test_five_hundred_arms_are_analysed_in_ten_seconds(draw, table, store_study) -> None:
    y = 3 + 0.1 * draw(np.random.default_rng(0), 501, 5)
    y[7] += 2
    folder = store_study(table(y))
    began = time.process_time()
    results = analyse(folder)
    assert time.process_time() - began < 10
    assert [found["name"] for found in results["arms"] if found["verdict"] == "worse"] == ["arm7"]
    assert sum(found["verdict"] == "inconclusive" for found in results["arms"]) >= 495


def test_damaged_metrics_are_refused(store_study, monkeypatch) -> None:
    folder = store_study({"baseline": {0: 1.0, 1: 1.1}, "a": {0: 2.0, 1: 2.1}})
    for run in folder.runs():
        run.append(0, 10, {"val/loss": ([5, 10], [3.0, 2.0])})
    unsealed(Path(folder.where), monkeypatch)
    segment = Path(folder.run("a", 0, "00000000").where, "metrics", "0-10.json")
    segment.write_bytes(segment.read_bytes()[:-9])
    with pytest.raises(UserError, match="segment is damaged"):
        analyse(folder)


def test_equal_arms_have_equal_evidence(store_study) -> None:
    row = {0: 1.0, 1: 1.3, 2: 1.1}
    found = {"baseline": row, "a": {s: v + 0.3 + 0.01 * s for s, v in row.items()}}
    results = analyse(store_study({**found, "b": found["a"]}))
    assert arm(results, "a")["evidence"] == arm(results, "b")["evidence"]
    assert arm(results, "a")["verdict"] == arm(results, "b")["verdict"]


def test_effect_that_is_zero_up_to_rounding_is_described_as_zero(store_study) -> None:
    base = {0: 1.1, 1: 1.2, 2: 1.4}
    found = arm(analyse(store_study({"baseline": base, "a": base, "b": {0: 1.15, 1: 1.24, 2: 1.47}})), "a")
    assert found["evidence"].startswith("val/loss is exactly")
    assert found["verdict"] == "inconclusive"
    near = {seed: value + 1e-5 for seed, value in base.items()}
    other = store_study({"baseline": base, "a": near, "b": {0: 1.15, 1: 1.24, 2: 1.47}}, name="near")
    assert arm(analyse(other), "a")["evidence"].startswith("val/loss is within 0.0001 of")
