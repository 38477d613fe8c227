"""`benchmarks.study`: its programs, its extrapolation, and its error for a failing study."""

import json
import subprocess
import sys

import pytest
from benchmarks.scaling import numbers, structures
from benchmarks.shapes import SHAPES, baseline
from benchmarks.study import ARMS, run_study, show

from taetpu.spec.loading import load_study
from taetpu.store.documents import to_yaml
from taetpu.train.layout import group_runs

FOUND = {
    "shape": SHAPES[64].data,
    "steps": 2000,
    "arms": 8,
    "seeds": 5,
    "about": {"gpt2": {"settings": "sdpa", "adamw": "fused"}},
    "ours": {
        "seconds": 200.0,
        "parts": {"trained": 290.0, "compiled": 60.04},
        "packs": 5,
        "results": {"arms": [{"name": "baseline", "mean": 1.9}]},
    },
    "peers": {"gpt2": [{"seconds": 9.0, "val": [3.0, 2.0]}, {"seconds": 11.0, "val": [3.0, 2.1]}]},
}


@pytest.mark.parametrize(
    ("arms", "structures"), [(ARMS, 5), (numbers(16), 1), (structures(16), 17)], ids=["study", "numbers", "structures"]
)
def test_arms_share_the_expected_number_of_programs(arms, structures, text, tmp_path):
    file = tmp_path / "s.yaml"
    file.write_bytes(to_yaml({"study": "s", "base": baseline(SHAPES[32], text, 10), "seeds": 2, "arms": arms}))
    runs = load_study(file, []).runs()
    assert len(runs) == 2 * (len(arms) + 1)
    assert len(group_runs(runs)) == structures


def test_the_summary_states_what_was_extrapolated():
    told = show(FOUND)
    assert "taetpu run, timed whole: 200.0 s" in told
    assert "trained 290.0 s, compiled 60.0 s" in told
    assert "gpt2, 2 of 40 runs timed: 9.0, 11.0 s" in told
    assert "to 40 runs" in told
    assert "mean: 400.0 s\n" in told
    assert "2.00 times" in told
    assert max(map(len, told.splitlines())) <= 80


@pytest.mark.slow
def test_a_failing_study_raises(text, tmp_path):
    with pytest.raises(RuntimeError, match=r"ended with code 2:\n(.|\n)*no-such-kind"):
        run_study(baseline(SHAPES[32], text, 10), {"x": {"model.ffn": "no-such-kind"}}, 1, tmp_path / "study")


@pytest.mark.nightly
def test_a_tiny_study_and_a_peer_are_timed(tmp_path, one_core):
    file = tmp_path / "found.json"
    command = ["--dim", "32", "--steps", "20", "--arms", "2", "--seeds", "2", "--peer-runs", "1", "--json", str(file)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.study", *command], capture_output=True, text=True, check=True
    )
    found = json.loads(file.read_text())
    assert show(found) in done.stdout
    assert [len(arm["runs"]) for arm in found["ours"]["results"]["arms"]] == [2, 2]
    assert found["ours"]["packs"] >= 1
    assert 0 < found["ours"]["parts"]["trained"] < sum(found["ours"]["parts"].values())
    (run,) = found["peers"]["gpt2"]
    assert (len(run["losses"]), len(run["val"])) == (2, 10)
    assert run["seconds"] > 0.5  # a process's start is in it: no Python imports PyTorch in less
    # The same training on both sides: the losses of the two differ by less than what these steps have learned.
    ours = found["ours"]["results"]["arms"][0]["mean"]
    assert abs(ours - run["val"][-1]) < run["val"][0] - run["val"][-1]
