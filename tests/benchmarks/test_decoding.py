"""`benchmarks.decoding`: both sides generate the same tokens, and ratios are computed within rounds."""

import json
import subprocess
import sys

import numpy as np
import pytest
from benchmarks.decoding import BATCHES, OURS, SMALL, SMALL_STD, THEIRS, Ours, compare, draw_prompts, show, write_model


def round_of(slowness):
    """Both contestants as slow as the machine, taetpu at three times the rate of the other."""
    return {
        OURS: {"calls": 3, "seconds": slowness, "tokens": 192},
        THEIRS: {"calls": 1, "seconds": slowness, "tokens": 64},
    }


def test_a_temporary_slowdown_does_not_change_the_ratio():
    found = compare([round_of(1.0), round_of(4.0), round_of(2.0)])
    assert found["ratio"] == pytest.approx({"median": 3.0, "least": 3.0, "most": 3.0})
    assert found["tokens_per_second"][THEIRS] == {"median": 32.0, "least": 16.0, "most": 64.0}
    table = show({"batch": 8, "same_tokens": 0.5, **found}).splitlines()
    assert "batch 8: 50% " in table[0]
    assert table[1].split() == [OURS, "96.0", "tokens/s", "(48.0-192.0)"]
    assert table[3].split() == ["ratio", "3.00", "(3.00-3.00)"]


@pytest.mark.slow
def test_continuations_depend_on_the_prompt_and_vary(tmp_path):
    write_model(tmp_path, SMALL, SMALL_STD)
    tokens = Ours(str(tmp_path), np.array(draw_prompts(SMALL, 4), np.int32), SMALL["new"]).generate()
    assert tokens.shape == (4, SMALL["new"])
    assert len({tuple(row) for row in tokens.tolist()}) == 4
    assert min(len(set(row)) for row in tokens.tolist()) >= 5


@pytest.mark.slow
def test_the_real_contestants_generate_the_same_tokens(tmp_path, one_core):
    file = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks.decoding", "--small", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(file.read_text())
    assert [one["batch"] for one in found["batches"]] == [*BATCHES]
    for one in found["batches"]:
        assert one["same_tokens"] == 1.0
        assert one["about"][OURS] == one["about"][THEIRS]
        assert show(one) in done.stdout
        assert len(one["windows"]) == 2
        for window in one["windows"]:
            for timed in window.values():
                assert timed["tokens"] == timed["calls"] * one["batch"] * SMALL["new"]
                assert timed["seconds"] >= 0.1
