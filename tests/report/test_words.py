"""Sentences of a report."""

import pytest

from taetpu.report import words


def results(verdicts: list[str], seeds: int = 5) -> dict:
    runs = [{"seed": seed, "id": "x", "outcome": "finished", "value": 1.0} for seed in range(seeds)]
    common = {
        "runs": runs,
        "mean": 1.0,
        "sd": 0.1,
        "effect": None,
        "ci95": None,
        "p_holm": None,
        "change": "",
        "evidence": "",
    }
    common |= {"params": 1000, "flops": 1000, "diverged": 0, "more_seeds": None}
    arms = [{"name": f"arm{i}", "verdict": verdict, **common} for i, verdict in enumerate(verdicts)]
    return {
        "primary": "val/loss",
        "seeds": list(range(seeds)),
        "complete": True,
        "label": None,
        "noise_floor": {"sd": 0.0123, "seeds": seeds},
        "model": {"residual_sd": 0.0045, "noisy": []},
        "arms": [{"name": "baseline", "verdict": None, **common}, *arms],
    }


@pytest.mark.parametrize(
    ("verdicts", "text"),
    [
        (["worse", "worse", "better", "inconclusive"],
         "2 of 4 changes made val/loss worse, 1 made it better, and 1 could not be told from the baseline."),
        (["better"], "1 of 1 change made val/loss better."),
        (["worse", "inconclusive"], "1 of 2 changes made val/loss worse and 1 could not be told from the baseline."),
        (["inconclusive"] * 3, "None of 3 changes could be told from the baseline in val/loss."),
        ([], "The baseline alone: val/loss is 1.0000."),
    ],
)  # fmt: skip
def test_headline(verdicts: list[str], text: str) -> None:
    assert words.headline(results(verdicts)) == text


def test_headline_of_one_seed() -> None:
    text = "1 change on a single seed: effects without error bars, so no verdicts."
    assert words.headline(results(["inconclusive"], seeds=1)) == text


def test_headline_without_a_baseline_to_compare_with() -> None:
    found = results(["inconclusive"])
    lost = [{**run, "outcome": "diverged", "value": None} for run in found["arms"][0]["runs"]]
    found["arms"][0] |= {"runs": lost, "diverged": 5, "mean": None}
    assert words.headline(found) == "The baseline diverged on every seed: there is nothing to compare with."
    found["arms"][0] |= {"runs": [{**run, "outcome": "unfinished"} for run in lost], "diverged": 0}
    assert words.headline(found) == "The baseline has no finished run yet: there is nothing to compare with."


def test_notices() -> None:
    found = results(["worse"], seeds=3)
    found |= {"complete": False, "label": "screening"}
    found["arms"][1] |= {"diverged": 1}
    runs = [dict(run) for run in found["arms"][1]["runs"]]
    runs[0]["outcome"], runs[1]["outcome"] = "diverged", "unfinished"
    found["arms"][1]["runs"] = runs
    found["model"]["noisy"] = ["baseline"]
    text = "\n".join(words.notices(found))
    assert "Not final: 1 of 6 runs have not ended." in text
    assert "Screening: 3 seeds an arm" in text
    assert "Diverged runs: arm0 1 of 3." in text
    assert "judged more cautiously: baseline." in text
    assert words.notices(results(["worse"])) == []


def test_how_runs_were_packed() -> None:
    found = results(["worse"])
    assert words.packing(found) == []  # of a study that was analysed by an earlier version
    alone = {"width": 1, "devices": 1, "unroll": 1, "chosen": "asked for", "runs": 1}
    wide = {"width": 8, "devices": 2, "unroll": 4, "chosen": "measured", "runs": 24}
    halved = {"width": 3, "devices": 1, "unroll": 1, "chosen": "rule of thumb", "halved_from": 6, "runs": 5}
    assert words.packing(found | {"packs": [wide, alone, halved]}) == [
        "24 runs in packs of 8 on 2 devices, 4 layers at once (measured)",
        "1 run alone (asked for)",
        "5 runs in packs of 3 (rule of thumb)",
    ]
    assert words.notices(found | {"packs": [wide, alone]}) == []
    assert words.notices(found | {"packs": [wide, halved]}) == [
        "Out of memory: 5 runs had to be trained in packs of 3 instead of 6."
    ]


def test_amounts_beside_the_baseline() -> None:
    found = results(["worse"])
    found["arms"][1]["params"] = 970
    assert [row.params for row in words.rows(found)] == ["1.00k", "970 (-3%)"]


def test_noise() -> None:
    text = words.noise(results([]))
    assert text.startswith("Over 5 seeds, the baseline's val/loss has a standard deviation of 0.012;")
    assert "0.0045 once each seed's own effect is taken out" in text
