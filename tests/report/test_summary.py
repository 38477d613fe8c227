"""Sentences of a report."""

import pytest

from taetpu.report import sections, summary


def results(verdicts: list[str | None], seeds: int = 5) -> dict:
    """Results of a study without designs, each arm with one of these verdicts."""
    runs = [{"seed": seed, "id": "x", "outcome": "finished", "value": 1.0} for seed in range(seeds)]
    common = {
        "runs": runs,
        "mean": 1.0,
        "sd": 0.1,
        "effect": None,
        "ci95": None,
        "p_holm": None,
        "change": "",
        "evidence": "It is so.",
        "effect_sd": None,
        "role": {},
        "diff": {},
        "planned": True,
    }
    common |= {"params": 1000, "flops": 1000, "diverged": 0, "more_seeds": None, "against": "baseline"}
    arms = [{"name": f"arm{i}", "verdict": verdict, **common} for i, verdict in enumerate(verdicts)]
    model = {"residual_sd": 0.0045, "noisy": [], "copies": False}
    return {
        "primary": "val/loss",
        "direction": "min",
        "seeds": list(range(seeds)),
        "complete": True,
        "final": None not in verdicts,
        "alpha": 0.05,
        "plan": {"looks": [seeds], "error_rate": 0.05},
        "label": None,
        "noise_floor": {"sd": 0.0123, "seeds": seeds, "resolves": 0.017},
        "model": model,
        "groups": [{"baseline": "baseline", "arms": [], **model}],
        "designs": {"limits": []},
        "tuning": None,
        "hardware": [{"device": "cpu", "machine": "x86_64", "runs": 5}],
        "reused": {"runs": 0, "audited": 0},
        "arms": [{"name": "baseline", "verdict": None, **common, "against": None}, *arms],
    }


@pytest.mark.parametrize(
    ("verdicts", "text"),
    [
        (["worse", "worse", "better", "inconclusive"],
         "2 of 4 changes made val/loss worse, 1 made it better, and 1 is inconclusive."),
        (["better"], "1 of 1 change made val/loss better."),
        (["worse", "inconclusive"], "1 of 2 changes made val/loss worse and 1 is inconclusive."),
        (["inconclusive"] * 3, "None of 3 changes differs significantly from the baseline in val/loss."),
        (["equivalent", "equivalent", "inconclusive"],
         "2 of 3 changes are equivalent to the baseline in val/loss and 1 is inconclusive."),
        (["better", "equivalent"], "1 of 2 changes made val/loss better and 1 is equivalent to the baseline."),
        ([None, None], "Interim: effects of 2 changes on val/loss so far; no verdicts yet."),
        ([], "Baseline only: val/loss is 1.0000."),
    ],
)  # fmt: skip
def test_headline(verdicts: list[str], text: str) -> None:
    assert summary.headline(results(verdicts)) == text


def test_headline_of_one_seed() -> None:
    assert summary.headline(results(["inconclusive"], seeds=1)).startswith("1 change on a single seed:")


def test_headline_where_every_change_diverged() -> None:
    found = results(["inconclusive", "worse"], seeds=3) | {"label": "screening"}
    for arm in found["arms"][1:]:
        arm |= {"diverged": 3, "runs": [{**run, "outcome": "diverged"} for run in arm["runs"]]}
    text = summary.headline(found)
    assert text.startswith("All 2 changes diverged on every seed")
    assert text.endswith("for 1 of them.")
    assert not [notice for notice in summary.notices(found) if notice.startswith("Screening")]
    found["arms"][2]["verdict"] = "inconclusive"
    assert "too few seeds" in summary.headline(found)
    found["arms"][0] |= found["arms"][1] | {"name": "baseline", "against": None}
    assert summary.headline(found) == "Every run diverged: there is nothing to compare."


def term(*factors: str, p: float = 0.5, effect: float | None = None) -> dict:
    return {"factors": list(factors), "aliases": [], "p_holm": p, "effect": effect}


def test_headline_of_a_factorial_counts_factors_and_not_cells() -> None:
    """One factor of three matters, so that four of seven cells are better."""
    found = results(["better"] * 4 + ["inconclusive"] * 3)
    for arm in found["arms"][1:]:
        arm["role"] = {"design": "factorial"}
    terms = [term("ffn", p=0.001, effect=-0.2), term("norm"), term("bias"), *(term("ffn", x) for x in ("norm", "bias"))]
    found["designs"]["factorial"] = {"scales": {"": {"terms": terms}}}
    text = summary.headline(found)
    assert text.startswith("1 of 3 factors")
    assert "(ffn better), and none of 2 interactions" in text
    terms[0]["p_holm"], terms[3]["p_holm"] = 0.5, 0.01
    found["arms"][-1]["role"] = {}
    text = summary.headline(found)
    assert text.startswith("None of 3 factors")
    assert "1 of 2 interactions are significant (ffn x norm)." in text
    assert "Other arms: None of 1 change" in text
    found["designs"]["factorial"]["scales"][""]["terms"] = [term("ffn"), term("norm"), term("ffn", "norm")]
    assert "and their interaction is not significant." in summary.headline(found)
    found["designs"]["factorial"]["scales"][""]["terms"] = terms
    for entry in terms:
        entry["p_holm"] = None  # no noise to judge by
    assert summary.headline(found).startswith("4 of 7 changes")


def test_a_single_seed_is_called_so_and_not_inconclusive() -> None:
    found = results([None], seeds=1)
    assert [row.verdict for row in summary.verdict_rows(found)] == ["baseline", "single seed"]
    assert [row.verdict for row in summary.verdict_rows(results([None], seeds=2))] == ["baseline", "interim"]


def test_an_arm_that_is_matched_by_two_says_both_and_where_time_is_not_equal() -> None:
    found = results(["worse"])
    of = {"of": "arm0", "train.steps": 30}
    found["arms"][1]["role"] = {"match": {**of, "by": "flops"}, "also": [{**of, "by": "time"}]}

    def terms(seconds: float) -> str:
        costs = {"baseline": {"train_seconds": 10.0}, "arm0": {"train_seconds": seconds}}
        return summary.verdict_rows(found, costs)[1].terms

    equal = "at equal training FLOPs and training time"
    assert summary.verdict_rows(found)[1].terms == terms(10.9) == terms(9.1) == equal
    assert terms(13.0) == f"{equal}, as timed before training (training took 30% longer)"
    assert terms(5.0) == f"{equal}, as timed before training (training took 50% less)"
    found["arms"][1]["role"] = {"match": {**of, "by": "flops"}}
    assert terms(13.0) == "at equal training FLOPs"


def test_headline_without_a_baseline_to_compare_with() -> None:
    found = results(["inconclusive"])
    lost = [{**run, "outcome": "diverged", "value": None} for run in found["arms"][0]["runs"]]
    found["arms"][0] |= {"runs": lost, "diverged": 5, "mean": None}
    assert summary.headline(found).startswith("The baseline diverged on every seed:")
    found["arms"][0] |= {"runs": [{**run, "outcome": "unfinished"} for run in lost], "diverged": 0}
    assert summary.headline(found).startswith("The baseline has no finished run yet:")


def test_notices() -> None:
    found = results(["worse"], seeds=3)
    found |= {"complete": False, "label": "screening"}
    found["arms"][1] |= {"diverged": 1}
    runs = [dict(run) for run in found["arms"][1]["runs"]]
    runs[0]["outcome"], runs[1]["outcome"] = "diverged", "unfinished"
    found["arms"][1]["runs"] = runs
    found["model"]["noisy"].append("baseline")
    text = "\n".join(summary.notices(found))
    assert "Not final: 1 of 6 runs" in text
    assert "Screening: 3 seeds" in text
    assert "Diverged runs: arm0 1 of 3." in text
    assert "tested more cautiously: baseline." in text
    assert summary.notices(results(["worse"])) == []


def test_how_runs_were_packed() -> None:
    found = results(["worse"])
    assert summary.describe_packing(found) == []  # of a study that was analysed by an earlier version
    alone = {"width": 1, "devices": 1, "unroll": 1, "chosen": "asked for", "runs": 1}
    wide = {"width": 8, "devices": 2, "unroll": 4, "chosen": "measured", "runs": 24}
    halved = {"width": 3, "devices": 1, "unroll": 1, "chosen": "rule of thumb", "halved_from": 6, "runs": 5}
    assert summary.describe_packing(found | {"packs": [wide, alone, halved]}) == [
        "24 runs in packs of 8 on 2 devices, 4 layers unrolled (measured)",
        "1 run alone (asked for)",
        "5 runs in packs of 3, padded with copies (rule of thumb)",
    ]
    assert summary.notices(found | {"packs": [wide, alone]}) == []
    (memory,) = summary.notices(found | {"packs": [wide, halved]})
    assert memory.startswith("Out of memory: 5 runs")
    assert "packs of 3 instead of 6" in memory


def test_notices_of_the_plan() -> None:
    found = results(["worse", None], seeds=4)
    found["plan"] = {"looks": [3, 5], "error_rate": 0.0812}
    found["arms"][2]["planned"] = False
    found["tuning"] = {"arms": {"arm0": {"edge": ["train.optimizer.lr"]}, "arm1": {"edge": []}}}
    final, seeds, late, edge = summary.notices(found)
    assert final.startswith("Not final")
    assert "3, 5 seeds" in final
    assert "has 4" in final
    assert "8%" in seeds
    assert "5%" in seeds
    assert "after the first run: arm1" in late
    assert "train.optimizer.lr of arm0" in edge
    assert "wider grid" in edge


def test_unlike_hardware_is_named() -> None:
    found = results(["worse"])
    found["hardware"].append({"device": "TPU v5e", "machine": "x86_64", "runs": 1})
    (notice,) = summary.notices(found)
    assert notice.startswith("Mixed hardware: 5 runs on cpu, 1 run on TPU v5e.")


def test_on_which_terms_an_arm_is_compared() -> None:
    found = results(["worse"] * 4)
    assert [row.terms for row in summary.verdict_rows(found)] == [""] * 5
    _, plain, matched, tuned, other = found["arms"]
    matched["role"] = {"match": {"of": "arm0", "by": "flops", "train.steps": 30}}
    tuned["role"] = {"tuned": {"of": "arm0", "train.optimizer.lr": 0.1}, "match": {"of": "arm0", "by": "params"}}
    other["against"] = "baseline@dim=8"
    rows = summary.verdict_rows(found)
    assert [row.terms for row in rows] == [
        "", "at equal steps", "at equal training FLOPs", "at equal parameters, both tuned",
        "at equal steps, against baseline@dim=8",
    ]  # fmt: skip
    assert (rows[0].evidence, rows[2].evidence) == ("It is so.", "At equal training FLOPs: It is so.")
    assert summary.counted_arms(found) == [plain, other]


def test_a_ladder_is_summed_up_at_its_largest_scale() -> None:
    found = results(["worse", "inconclusive"])
    for arm, rung in zip(found["arms"][1:], ("dim=64", "dim=8"), strict=True):
        arm["role"] = {"ladder": {"rung": rung, "arm": "nope"}}
    found["designs"]["ladder"] = {"scales": {"dim=64": {"params": 900}, "dim=8": {"params": 20}}}
    assert summary.headline(found) == "At dim=64, the largest of 2 scales: 1 of 1 change made val/loss worse."


def test_what_was_reused_is_said() -> None:
    found = results(["worse"])
    assert summary.describe_reuse(found) == ""
    found["reused"] = {"runs": 1, "audited": 0}
    assert summary.describe_reuse(found) == "1 run was reused from other studies; none was trained again as a check."
    found["reused"] = {"runs": 12, "audited": 2}
    assert summary.describe_reuse(found).endswith("2 of them were trained again with identical results.")


def test_noise() -> None:
    text = summary.describe_noise(results([]))
    assert text.startswith("Across 5 seeds, the baseline's val/loss has a standard deviation of 0.012;")
    assert "0.0045; 5 seeds detect a true effect of 0.017 with 80 % power" in text


@pytest.mark.parametrize(
    ("seeds", "final", "analyses", "text"),
    [
        (3, True, [3], "once, at 3 seeds"),
        (6, True, [3, 6], "2 times, at 3 and 6 seeds"),
        (6, False, [3], "once, at 3 seeds"),
        (2, False, [], "No verdict was given on the test split yet"),
        (9, True, [3, 6, 9], "3 times, at 3, 6, and 9 seeds"),  # beyond what was planned
    ],
)
def test_analyses_on_the_test_split_are_counted(store_study, seeds, final, analyses, text) -> None:
    results = store_study().read_results()
    plan = {**results["plan"], "seeds": [0, 1, 2], "looks": [3, 6]}
    on_test = {**results, "primary": "test/loss", "plan": plan, "seeds": list(range(seeds)), "final": final}
    assert summary.test_split_analyses(on_test) == analyses
    assert text in summary.test_split_note(on_test)
    assert any(text in note for note in sections.plan_section(on_test).notes)
    assert any(text in notice for notice in summary.notices(on_test)) == (len(analyses) > 1)
    assert summary.test_split_analyses({**on_test, "primary": "val/loss"}) == []
    assert summary.test_split_note({**on_test, "primary": "val/loss"}) == ""  # nothing was measured on it


def test_tuning_by_the_test_split_is_told_of_studies_that_did_so(store_study) -> None:
    results = {**store_study().read_results(), "primary": "test/loss", "tuning": {"arms": {}}}
    assert any("Tuning selected by the test split" in notice for notice in summary.notices(results))
    now = {**results, "tuning": {"arms": {}, "metric": "val/loss"}}
    assert not any("Tuning selected by the test split" in notice for notice in summary.notices(now))


def test_arms_with_several_changes_are_counted_as_arms(store_study) -> None:
    single = {"baseline": ({}, 0.0), "a": ({"model.dim": 32}, 0.1)}
    assert summary.headline(store_study(single).read_results()).startswith("1 of 1 change made")


def test_arms_that_cross_settings_are_counted_as_arms(store_study) -> None:
    crossed = {"baseline": ({}, 0.0), "a": ({"model.dim": 32, "train.steps": 200}, 0.1)}
    assert summary.headline(store_study(crossed).read_results()).startswith("1 of 1 arm made")


def test_an_effect_has_the_decimals_of_the_means_at_least(store_study) -> None:
    for row in summary.verdict_rows(store_study().read_results())[1:]:
        if row.effect != "-":
            assert len(row.effect.partition(".")[2]) >= len(row.mean.partition(".")[2])
