"""Headline, notices and rows of the verdict table."""

from typing import Any

import pytest

from taetpu.report import outcome_text, summary
from taetpu.report.overview import reading_guide


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
        "plan": {"primary": "val/loss", "looks": [seeds], "error_rate": 0.05},
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
    "verdicts",
    [
        ["worse", "worse", "better", "inconclusive"],
        ["better"],
        ["inconclusive"] * 3,
        ["inconclusive"],
        ["equivalent", "equivalent", "inconclusive"],
        [None, None],
        [],
    ],
    ids=["mixed", "better", "inconclusive", "one inconclusive", "equivalent", "interim", "no arms"],
)
def test_headline_counts_verdicts(verdicts: list[str], wording) -> None:
    wording(summary.headline(results(verdicts)))


def test_headline_of_one_seed_says_that_there_are_no_verdicts() -> None:
    headline = summary.headline(results(["inconclusive"], seeds=1))
    assert "single seed" in headline
    assert headline.startswith("1 arm ")


def test_headline_says_that_every_run_diverged() -> None:
    found = results(["inconclusive", "worse"], seeds=3)
    for arm in found["arms"][1:]:
        arm["diverged"] = 3
    assert summary.headline(found) == "Every run of 2 arms diverged."
    found["arms"][1]["diverged"] = 2
    assert "every seed: arm1." in summary.headline(found)


def term(*factors: str, p: float = 0.5, effect: float | None = None) -> dict:
    return {"factors": list(factors), "aliases": [], "p_holm": p, "effect": effect}


def test_headline_of_a_factorial_counts_factors() -> None:
    """Four of seven cells are better because one of three factors has an effect."""
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
    assert "Other arms: arm6 does not differ" in text
    found["designs"]["factorial"]["scales"][""]["terms"] = [term("ffn"), term("norm"), term("ffn", "norm")]
    assert "is not significant." in summary.headline(found)
    found["designs"]["factorial"]["scales"][""]["terms"] = terms
    for entry in terms:
        entry["p_holm"] = None  # no noise to judge by
    assert summary.headline(found).startswith("4 of 7 arms")


def test_single_seed_has_its_own_label() -> None:
    found = results([None], seeds=1)
    assert [row.verdict for row in summary.verdict_rows(found)] == ["baseline", "single seed"]
    assert [row.verdict for row in summary.verdict_rows(results([None], seeds=2))] == ["baseline", "interim"]


def test_terms_name_all_matches_and_unequal_times() -> None:
    found = results(["worse"])
    of = {"of": "arm0", "train.steps": 30}
    found["arms"][1]["role"] = {"match": {**of, "by": "flops"}, "also": [{**of, "by": "time"}]}

    def terms(seconds: float) -> str:
        costs = {"baseline": {"train_seconds": 10.0}, "arm0": {"train_seconds": seconds}}
        return summary.verdict_rows(found, costs)[1].terms

    equal = "at equal training FLOPs and training time"
    assert summary.verdict_rows(found)[1].terms == terms(10.9) == terms(9.1) == equal
    assert terms(13.0).startswith(f"{equal}, ")
    assert "30% longer" in terms(13.0)
    assert terms(5.0).startswith(f"{equal}, ")
    assert "50% less" in terms(5.0)
    found["arms"][1]["role"] = {"match": {**of, "by": "flops"}}
    assert terms(13.0) == equal.removesuffix(" and training time")


def test_headline_without_a_finished_baseline(wording) -> None:
    found = results(["inconclusive"])
    lost = [{**run, "outcome": "diverged", "value": None} for run in found["arms"][0]["runs"]]
    found["arms"][0] |= {"runs": lost, "diverged": 5, "mean": None}
    wording(summary.headline(found))
    found["arms"][0] |= {"runs": [{**run, "outcome": "unfinished"} for run in lost], "diverged": 0, "mean": None}
    wording(summary.headline(found))


def test_notices_name_missing_runs_divergence_and_noise() -> None:
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
    assert ": baseline. " in text
    assert summary.notices(results(["worse"])) == []


def test_weighed_noise_is_described_otherwise_than_pooled_noise(wording) -> None:
    """In the notice, the noise floor and the guide; plans without the field have the guard."""
    for noise in ({}, {"noise": "moderated"}):
        told = results(["worse"])
        told["plan"] |= {"equivalence": None, **noise}
        told["groups"][0]["noisy"] = ["arm0"]
        wording("\n".join([*summary.notices(told), *reading_guide(told)[:2]]))


def test_notices_name_departures_from_the_plan() -> None:
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
    assert "the first run: arm1" in late
    assert "train.optimizer.lr of arm0" in edge
    assert "wider grid" in edge


def test_notices_name_mixed_hardware() -> None:
    found = results(["worse"])
    found["hardware"].append({"device": "TPU v5e", "machine": "x86_64", "runs": 1})
    (notice,) = summary.notices(found)
    assert notice.startswith("Mixed hardware: 5 runs on cpu, 1 run on TPU v5e.")


def test_terms_name_matches_tuning_and_other_baselines(wording) -> None:
    found = results(["worse"] * 4)
    assert [row.terms for row in summary.verdict_rows(found)] == [""] * 5
    _, plain, matched, tuned, other = found["arms"]
    matched["role"] = {"match": {"of": "arm0", "by": "flops", "train.steps": 30}}
    tuned["role"] = {"tuned": {"of": "arm0", "train.optimizer.lr": 0.1}, "match": {"of": "arm0", "by": "params"}}
    other["against"] = "baseline@dim=8"
    rows = summary.verdict_rows(found)
    wording("\n".join(f"{row.arm}: {row.terms}; {row.evidence}" for row in rows))
    assert summary.counted_arms(found) == [plain, other]


@pytest.mark.parametrize(
    ("sizes", "diff", "start", "counted"),
    [
        ({"params": (900, 20), "flops": (5, 5)}, {}, "At a, the largest of 2 scales: ", 1),
        ({"params": (20, 900), "flops": (9, 5)}, {}, "At b, the largest of 2 scales: ", 1),
        ({"params": (20, 20), "flops": (9, 5)}, {}, "At a, the largest of 2 scales: ", 1),
        ({"params": (20, 20), "flops": (5, 5)}, {}, "1 arm at 2 scales: 1 of 2 is worse than", 2),
        ({"params": (900, 20), "flops": (9, 5)}, {"task.symbols": 8}, "1 arm at 2 scales: 1 of 2 is worse than", 2),
    ],
)
def test_headline_of_a_ladder_counts_arms_at_the_largest_scale(sizes, diff, start, counted) -> None:
    """Scales are ordered by parameters, else by FLOPs. Without an order, or on other data, all scales are counted."""
    found = results([None, None, "worse", "inconclusive"])
    found["final"] = True
    for i, rung in enumerate("ab"):
        base, arm = found["arms"][1 + i], found["arms"][3 + i]
        base |= {"against": None, "diff": diff, **{name: pair[i] for name, pair in sizes.items()}}
        arm |= {"against": base["name"], "role": {"ladder": {"rung": rung, "arm": "nope"}}}
    scales = {rung: {"baseline": f"arm{i}"} for i, rung in enumerate("ab")}
    found["designs"]["ladder"] = {"rungs": ["a", "b"], "scales": scales}
    assert summary.headline(found).startswith(start)
    assert len(summary.counted_arms(found)) == counted


def test_reused_runs_are_counted(wording) -> None:
    found = results(["worse"])
    assert summary.describe_reuse(found) == ""
    found["reused"] = {"runs": 12, "audited": 2}
    wording(summary.describe_reuse(found))


def test_noise_is_described(wording) -> None:
    text = summary.describe_noise(results([]))
    wording(text)


@pytest.mark.parametrize(
    ("seeds", "final", "text"),
    [
        (3, True, None),
        (6, True, "at 3 and 6 seeds"),
        (6, False, None),
        (9, True, "at 3, 6, and 9 seeds"),  # beyond the plan
    ],
)
def test_repeated_verdicts_on_the_test_split_are_noticed(seeds: int, final: bool, text: str | None) -> None:
    found = results(["worse"], seeds=seeds) | {"primary": "test/loss", "final": final}
    found["plan"] = {"looks": [3, 6], "error_rate": 0.05, "seeds": [0, 1, 2]}
    told = [notice for notice in summary.notices(found) if "on the test split" in notice]
    assert [text in notice for notice in told] == ([] if text is None else [True])
    assert not [notice for notice in summary.notices(found | {"primary": "val/loss"}) if "test split" in notice]


def test_tuning_by_the_test_split_is_noticed() -> None:
    found = results(["worse"]) | {"primary": "test/loss", "tuning": {"arms": {}}}
    found["plan"]["seeds"] = found["seeds"]
    assert any("the test split" in notice for notice in summary.notices(found))
    found["tuning"]["metric"] = "val/loss"
    assert not any("the test split" in notice for notice in summary.notices(found))


def test_evidence_estimates_the_seeds_needed() -> None:
    found = results(["inconclusive"])
    found["arms"][1]["more_seeds"] = 3
    assert "about 3 more seeds" in summary.verdict_rows(found)[1].evidence


def test_an_arm_without_one_change_of_another_shows_what_it_lacks():
    diff = {"model.stem": "scale", "model.norm.eps": 1e-6, "model.norm.placement": "sandwich"}
    less = {"model.norm.eps": 1e-6}
    arms: list[Any] = [
        {"name": "baseline", "against": None, "change": "", "diff": {}},
        {"name": "with-all", "against": "baseline", "change": "all three", "diff": diff},
        {"name": "without", "against": "with-all", "change": "eps", "diff": less},
        {"name": "other", "against": "with-all", "change": "eps 2", "diff": {"model.norm.eps": 1e-5}},
    ]
    shown = [summary.shown_change(arm, {"arms": arms}) for arm in arms]  # pyright: ignore[reportArgumentType]
    assert shown == ["", "all three", "with-all without model.stem and model.norm.placement", "eps 2"]


@pytest.mark.parametrize(("plan", "places"), [({"reach": 1.2}, 4), ({"solved": 0.9}, 4), ({}, 0)])
def test_losses_have_decimal_places_where_arms_are_compared_by_steps(plan, places):
    assert outcome_text.value_places({"plan": plan}, 0) == places  # pyright: ignore[reportArgumentType]
