"""`plan` and `run` on designs, tuning, matching and interim analyses, before training."""

import json
import re

import pytest
from tests.small import TINY

FAIR = """\
seeds: 2
arms:
  wide: {model.ffn.mult: 8}
  low-lr: {train.optimizer.lr: 1e-4}
match: [flops, params, time]
tune: {train.optimizer.b1: [0.5, 0.9], train.optimizer.lr: [1e-3, 1e-2]}
"""


@pytest.fixture
def fair(here):
    (here / "s.yaml").write_text(TINY + FAIR)


@pytest.mark.slow
def test_the_plan_lists_matched_arms_and_what_tuning_adds(taetpu, fair):
    plan = taetpu("plan", "s.yaml", "--json").json()
    arms = {arm["name"]: arm for arm in plan["arms"]}
    assert list(arms) == ["baseline", "wide", "low-lr", "wide@flops"]
    assert arms["wide@flops"]["change"].startswith("wide; train.steps: 6 -> ")
    assert plan["at_run"] == ["wide", "low-lr"]
    # baseline, wide and wide@flops try four combinations, low-lr two: each on two seeds, then its best on two.
    tuning = {"trials": 28, "done": 0, "tuned": 8, "metric": "val/loss", "seeds": [1000000, 1000001]}
    assert plan["tuning"] == tuning
    runs = [name for pack in plan["packs"] for name, _, _ in pack["runs"]]
    assert len(runs) == 2 * len(arms) + 28


@pytest.mark.slow
def test_plan_states_detectable_effects_and_their_cost(taetpu, fair):
    printed = taetpu("plan", "s.yaml", "--noise", "0.01", "--effect", "0.02")
    assert printed.code == 0
    out = " ".join(printed.out.split())
    assert "noise 0.01 (stated): " in out
    assert "an effect of 0.02 takes " in out
    assert "tuning: 28 runs" in out
    assert "; then 8 with " in out
    assert "matched by time" in out
    assert ": wide, low-lr" in out


@pytest.mark.slow
def test_two_seeds_detect_an_effect_far_above_the_noise(taetpu, fair):
    found = taetpu("plan", "s.yaml", "--noise", "1e-300", "--effect", "1e300", "--json").json()["resolution"]
    assert found["seeds"] == 2


REFUSED = [
    (("plan", "--noise", "0"), "`noise` .*above 0, got 0"),
    (("plan", "--effect", "-1", "--noise", "1"), "`effect` .*above 0, got -1"),
    (("plan", "--effect", "1"), "the number of seeds .*noise"),
    (("run", "--until-resolved"), "--until-resolved .*2 seeds"),
    (("plan", "--noise", "nan"), "invalid value .*'--noise': 'nan'"),
    (("run", "--reuse", "there", "--audit", "2"), "`audit` .*0 to 1, got 2.0"),
    (("run", "--audit", "0.5"), "--audit requires --reuse"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "problem"), REFUSED)
def test_invalid_statistics_options_are_refused(taetpu, here, contents, fair, asked, problem):
    before, (command, *options) = contents(here), asked
    code, out, err = taetpu(command, "s.yaml", *options)
    assert (code, out) == (2, "")
    assert re.match(f"error: {problem}", err)
    assert "  remedy: " in err
    assert contents(here) == before


@pytest.mark.slow
def test_worth_in_compute_is_printed_stored_and_verified(taetpu, here):
    text = TINY.replace("steps: 6,", "steps: 20, optimizer: {kind: adamw, lr: 3e-3},")
    rungs = "ladder: {train.steps: [20, 40, 80, 160]}\nmeasure: {primary: val/loss, worth: flops}\n"
    (here / "worth.yaml").write_text(f"{text}seeds: 3\narms: {{big: {{train.batch_size: 8}}}}\n{rungs}")
    done = taetpu("run", "worth.yaml", "--root", here / "root")
    assert done.code == 0, done.err
    folder = here / "root/tiny"
    worth = json.loads((folder / "results.json").read_text())["designs"]["ladder"]["worth"]
    law = worth["law"]
    assert worth["refused"] is None
    assert [each["compute"] / law["rungs"][0]["compute"] for each in law["rungs"]] == pytest.approx([1, 2, 4, 8])
    fitted = [each["fitted"] for each in law["rungs"]]
    assert fitted == sorted(fitted, reverse=True)
    arm = worth["arms"]["big"]
    assert {*arm["rungs"]} == {each["rung"] for each in law["rungs"]}
    for entry in (arm["all"], *arm["rungs"].values()):
        low, high = entry["ci95"] or (entry["multiplier"],) * 2
        assert 0 < low <= entry["multiplier"] <= high
    assert "Worth in compute" in done.out
    assert max(len(line) for line in done.out.splitlines() if str(here) not in line) <= 80
    assert taetpu("report", folder, "--verify").code == 0
    (folder / "results.json").write_text((folder / "results.json").read_text().replace(repr(law["floor"]), "0.5"))
    assert taetpu("report", folder, "--verify").code != 0
