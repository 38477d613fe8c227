"""Tables and JSON of `taetpu plan`."""

import re

import pytest
from tests.cli.screens import check_screen
from tests.small import TINY


def test_plan_json_agrees_with_its_table(taetpu, here, contents, trained):
    root, _ = trained
    before = contents(root)
    for place, done in ((root, "2/2"), (here / "none", "0/2")):
        plan = taetpu("plan", "s.yaml", "--root", place, "--json").json()
        table = taetpu("plan", "s.yaml", "--root", place).out
        assert [arm["name"] for arm in plan["arms"]] == ["baseline", "low-lr"]
        for arm in plan["arms"]:
            row = next(line for line in table.splitlines() if line.startswith(arm["name"]))
            assert f"{arm['params']:,}" in row
            assert f"{arm['flops_per_token']:,}" in row
            assert arm["change"] in " ".join(table.split())
            assert f"{arm['done']}/{arm['runs']}" == done
            assert done in row
        if done == "2/2":
            assert "nothing is left" in table
            assert (plan["packs"], plan["tokens"], plan["flops"]) == ([], 0, 0)
        else:
            assert sum(len(pack["runs"]) for pack in plan["packs"]) == 4
            assert plan["tokens"] == 4 * 20 * 4 * 16
            assert f"to train: {plan['tokens']:,} tokens" in table
    assert contents(root) == before
    assert not (here / "none").exists()


@pytest.mark.slow
def test_screen_of_a_plan(taetpu, here, monkeypatch):
    monkeypatch.setenv("TAETPU_CACHE", str(here / "cache"))  # no step was timed before
    done = taetpu("plan", "s.yaml", "--noise", "0.01", "--effect", "0.02")
    screen, _, time = done.out.partition("\ntime: ")
    check_screen("plan", screen)
    assert time.startswith("no estimate")


@pytest.mark.slow
def test_screen_of_a_difference(taetpu):
    check_screen("plan-diff", taetpu("plan", "s.yaml", "--set", "model.mixer.num_heads=4", "--diff", "low-lr").out)


@pytest.mark.slow
def test_plan_of_tuning_and_padding(taetpu, here):
    """The plan names the metric and the seeds by which tuning chooses, and why a pack is wider than its runs."""
    (here / "s.yaml").write_text(TINY + "seeds: 3\ntune: {train.optimizer.lr: [1e-3, 3e-3]}\n")
    text = " ".join(taetpu("plan", "s.yaml").out.split())
    assert "the mean val/loss over 2 separate seeds" in text
    assert "3 runs in width 4" in text
    assert text.count("rule of thumb") == 1
    plan = taetpu("plan", "s.yaml", "--json").json()
    assert (plan["tuning"]["metric"], len(plan["tuning"]["seeds"])) == ("val/loss", 2)
    assert [pack["padding"] for pack in plan["packs"]] == [1, 0]


@pytest.mark.slow
def test_difference_of_the_baseline(taetpu):
    done = taetpu("plan", "s.yaml", "--diff", "baseline", "--json").json()
    assert (done["config"], done["breaks"], done["same_data"]) == ({}, None, True)
    assert len(set(done["parameters"])) == len(set(done["program"])) == 1
    assert "no setting differs" in taetpu("plan", "s.yaml", "--diff", "baseline").out


@pytest.mark.slow
def test_singular_nouns(taetpu, here):
    (here / "s.yaml").write_text(TINY + "seeds: 1\n")
    assert "tiny: 1 arm x 1 seed, 6 steps" in taetpu("plan", "s.yaml").out


@pytest.mark.slow
def test_inits_far_from_the_fan_in_are_named(taetpu, here):
    """The gain 0.5 is sqrt(2) times below 1 / sqrt(8) and is not named; 0.02 is 18 times below it, 1.2 3.4 above."""
    arms = {"old": "gpt2-scaled", "large": "{kind: normal, std: 1.2}", "near": "{kind: fan-in, gain: 0.5}"}
    listed = "".join(f"  {name}: {{model.init: {init}}}\n" for name, init in arms.items())
    (here / "s.yaml").write_text(f"{TINY}seeds: 1\narms:\n{listed}")
    plan = taetpu("plan", "s.yaml", "--json").json()
    inits = {arm["name"]: arm["init"] for arm in plan["arms"]}
    assert inits["baseline"] is inits["near"] is None
    assert inits["old"]["ratio"] == pytest.approx(0.02 * 8**0.5, rel=0.1)
    assert inits["large"]["ratio"] == pytest.approx(1.2 * 8**0.5, rel=0.1)
    text = " ".join(taetpu("plan", "s.yaml").out.split())
    assert ("(old)" in text, "(large)" in text, "(near)" in text) == (True, True, False)


@pytest.mark.slow
def test_feed_of_the_host_is_named(taetpu, here):
    """A plan names a feed that differs from the default. Generated data has none."""
    (here / "words.txt").write_text("to be or not to be " * 40)
    for task, feeds in (
        ("{kind: text, source: words.txt, seq_len: 8}", {"host"}),
        ("{kind: copy, seq_len: 8}", {None}),
    ):
        text = re.sub("task: .*", f"task: {task}", TINY) + "seeds: 1\n"
        (here / "s.yaml").write_text(text.replace("sample: none", "sample: none, compute: {feed: host}"))
        packs = taetpu("plan", "s.yaml", "--json").json()["packs"]
        assert {pack.get("feed") for pack in packs} == feeds
        assert ("feed host" in taetpu("plan", "s.yaml").out) == (feeds == {"host"})
