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
         "2 of 4 changes made val/loss worse, 1 made it better, and 1 could not be told from the baseline."),
        (["better"], "1 of 1 change made val/loss better."),
        (["worse", "inconclusive"], "1 of 2 changes made val/loss worse and 1 could not be told from the baseline."),
        (["inconclusive"] * 3, "None of 3 changes could be told from the baseline in val/loss."),
        (["equivalent", "equivalent", "inconclusive"],
         "2 of 3 changes made no difference to val/loss that matters and 1 could not be told from the baseline."),
        (["better", "equivalent"], "1 of 2 changes made val/loss better and 1 made no difference that matters."),
        ([None, None], "Interim: effects of 2 changes on val/loss so far, and no verdicts yet."),
        ([], "The baseline alone: val/loss is 1.0000."),
    ],
)  # fmt: skip
def test_headline(verdicts: list[str], text: str) -> None:
    assert summary.headline(results(verdicts)) == text


def test_headline_of_one_seed() -> None:
    text = "1 change on a single seed: effects without error bars, so no verdicts."
    assert summary.headline(results(["inconclusive"], seeds=1)) == text


def test_headline_where_every_change_diverged() -> None:
    found = results(["inconclusive", "worse"], seeds=3) | {"label": "screening"}
    for arm in found["arms"][1:]:
        arm |= {"diverged": 3, "runs": [{**run, "outcome": "diverged"} for run in arm["runs"]]}
    text = "All 2 changes diverged on every seed, which is clearly worse than the baseline for 1 of them."
    assert summary.headline(found) == text
    assert not [notice for notice in summary.notices(found) if notice.startswith("Screening")]
    found["arms"][2]["verdict"] = "inconclusive"
    assert summary.headline(found).endswith("on every seed, too few to call that worse than the baseline.")
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
    assert summary.headline(found) == (
        "1 of 3 factors made a clear difference to val/loss (ffn better), and none of 2 pairs clearly changed each "
        "other's effect."
    )
    terms[0]["p_holm"], terms[3]["p_holm"] = 0.5, 0.01
    found["arms"][-1]["role"] = {}
    assert summary.headline(found) == (
        "None of 3 factors made a clear difference to val/loss, and 1 of 2 pairs clearly changed each other's effect "
        "(ffn x norm). Besides: None of 1 change could be told from the baseline in val/loss."
    )
    found["designs"]["factorial"]["scales"][""]["terms"] = [term("ffn"), term("norm"), term("ffn", "norm")]
    assert ("None of 2 factors made a clear difference to val/loss, and their interaction could not be told from none."
            in summary.headline(found))  # fmt: skip
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

    def said(seconds: float) -> str:
        costs = {"baseline": {"train_seconds": 10.0}, "arm0": {"train_seconds": seconds}}
        return summary.verdict_rows(found, costs)[1].terms

    equal = "at equal training FLOPs and training time"
    assert summary.verdict_rows(found)[1].terms == said(10.9) == said(9.1) == equal
    assert said(13.0) == f"{equal}, as timed beforehand (training itself took 30% longer)"
    assert said(5.0) == f"{equal}, as timed beforehand (training itself took 50% less)"
    found["arms"][1]["role"] = {"match": {**of, "by": "flops"}}
    assert said(13.0) == "at equal training FLOPs"


def test_headline_without_a_baseline_to_compare_with() -> None:
    found = results(["inconclusive"])
    lost = [{**run, "outcome": "diverged", "value": None} for run in found["arms"][0]["runs"]]
    found["arms"][0] |= {"runs": lost, "diverged": 5, "mean": None}
    assert summary.headline(found) == "The baseline diverged on every seed: there is nothing to compare with."
    found["arms"][0] |= {"runs": [{**run, "outcome": "unfinished"} for run in lost], "diverged": 0}
    assert summary.headline(found) == "The baseline has no finished run yet: there is nothing to compare with."


def test_notices() -> None:
    found = results(["worse"], seeds=3)
    found |= {"complete": False, "label": "screening"}
    found["arms"][1] |= {"diverged": 1}
    runs = [dict(run) for run in found["arms"][1]["runs"]]
    runs[0]["outcome"], runs[1]["outcome"] = "diverged", "unfinished"
    found["arms"][1]["runs"] = runs
    found["model"]["noisy"].append("baseline")
    text = "\n".join(summary.notices(found))
    assert "Not final: 1 of 6 runs have not ended." in text
    assert "Screening: 3 seeds an arm" in text
    assert "Diverged runs: arm0 1 of 3." in text
    assert "judged more cautiously: baseline." in text
    assert summary.notices(results(["worse"])) == []


def test_how_runs_were_packed() -> None:
    found = results(["worse"])
    assert summary.describe_packing(found) == []  # of a study that was analysed by an earlier version
    alone = {"width": 1, "devices": 1, "unroll": 1, "chosen": "asked for", "runs": 1}
    wide = {"width": 8, "devices": 2, "unroll": 4, "chosen": "measured", "runs": 24}
    halved = {"width": 3, "devices": 1, "unroll": 1, "chosen": "rule of thumb", "halved_from": 6, "runs": 5}
    assert summary.describe_packing(found | {"packs": [wide, alone, halved]}) == [
        "24 runs in packs of 8 on 2 devices, 4 layers at once (measured)",
        "1 run alone (asked for)",
        "5 runs in packs of 3, filled up with repeats (rule of thumb)",
    ]
    assert summary.notices(found | {"packs": [wide, alone]}) == []
    assert summary.notices(found | {"packs": [wide, halved]}) == [
        "Out of memory: 5 runs had to be trained in packs of 3 instead of 6."
    ]


def test_notices_of_the_plan() -> None:
    found = results(["worse", None], seeds=4)
    found["plan"] = {"looks": [3, 5], "error_rate": 0.0812}
    found["arms"][2]["planned"] = False
    found["tuning"] = {"arms": {"arm0": {"edge": ["train.optimizer.lr"]}, "arm1": {"edge": []}}}
    assert summary.notices(found) == [
        "Not final: verdicts were planned at 3, 5 seeds an arm, and there are 4.",
        "Seeds were added beyond those planned: the chance of a false verdict is not 5% but up to 8%.",
        "Added to the study after its first run: arm1.",
        "The best train.optimizer.lr of arm0 lies at the edge of what was tried: a wider grid may find a better one.",
    ]


def test_unlike_hardware_is_named() -> None:
    found = results(["worse"])
    found["hardware"].append({"device": "TPU v5e", "machine": "x86_64", "runs": 1})
    assert summary.notices(found) == [
        "Mixed hardware: 5 runs on cpu, 1 run on TPU v5e. Devices round differently; small effects between them are "
        "not the arms'."
    ]


def test_on_which_terms_an_arm_is_compared() -> None:
    found = results(["worse"] * 4)
    assert [row.terms for row in summary.verdict_rows(found)] == [""] * 5
    _, plain, matched, tuned, other = found["arms"]
    matched["role"] = {"match": {"of": "arm0", "by": "flops", "train.steps": 30}}
    tuned["role"] = {"tuned": {"of": "arm0", "train.optimizer.lr": 0.1}, "match": {"of": "arm0", "by": "params"}}
    other["against"] = "baseline@dim=8"
    rows = summary.verdict_rows(found)
    assert [row.terms for row in rows] == [
        "", "at equal steps", "at equal training FLOPs", "at equal parameters, each at its best",
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
    assert summary.describe_reuse(found) == (
        "1 run of this study was trained elsewhere and taken over; none was trained again to prove them."
    )
    found["reused"] = {"runs": 12, "audited": 2}
    assert summary.describe_reuse(found).endswith("taken over; 2 of them were trained again and came out the same.")


def test_noise() -> None:
    text = summary.describe_noise(results([]))
    assert text.startswith("Over 5 seeds, the baseline's val/loss has a standard deviation of 0.012;")
    assert "0.0045 once each seed's own effect is taken out; with 5 seeds a true effect of 0.017 is found" in text


@pytest.mark.parametrize(
    ("seeds", "final", "looks", "said"),
    [
        (3, True, [3], "once, at 3 seeds"),
        (6, True, [3, 6], "2 times, at 3 and 6 seeds"),
        (6, False, [3], "once, at 3 seeds"),
        (2, False, [], "No verdict has been given on the test split yet"),
        (9, True, [3, 6, 9], "3 times, at 3, 6, and 9 seeds"),  # beyond what was planned
    ],
)
def test_how_often_the_test_split_was_looked_at(store_study, seeds, final, looks, said) -> None:
    results = store_study().read_results()
    plan = {**results["plan"], "seeds": [0, 1, 2], "looks": [3, 6]}
    told = {**results, "primary": "test/loss", "plan": plan, "seeds": list(range(seeds)), "final": final}
    assert summary.test_split_analyses(told) == looks
    assert said in summary.test_split_note(told)
    assert any(said in note for note in sections.plan_section(told).notes)
    assert any(said in notice for notice in summary.notices(told)) == (len(looks) > 1)
    assert summary.test_split_analyses({**told, "primary": "val/loss"}) == []
    assert summary.test_split_note({**told, "primary": "val/loss"}) == ""  # nothing was measured on it


def test_tuning_by_the_test_split_is_told_of_studies_that_did_so(store_study) -> None:
    results = {**store_study().read_results(), "primary": "test/loss", "tuning": {"arms": {}}}
    assert any("too good" in notice for notice in summary.notices(results))
    now = {**results, "tuning": {"arms": {}, "metric": "val/loss"}}
    assert not any("too good" in notice for notice in summary.notices(now))


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
