"""`benchmarks.lens`: both sides measure the same losses, and ratios are computed within rounds."""

import json
import subprocess
import sys

import pytest
from benchmarks.lens import OURS, TARGETS, THEIRS, compare, show


def test_a_temporary_slowdown_does_not_change_the_ratio():
    rounds = [{OURS: {"calls": 2, "seconds": 2 * slow, "memory": slow}, THEIRS: {"calls": 1, "seconds": 3 * slow,
               "memory": 2.0}} for slow in (1.0, 4.0, 2.0)]  # fmt: skip
    found = compare(rounds)
    assert found["ratio"] == pytest.approx({"median": 3.0, "least": 3.0, "most": 3.0})
    assert found["seconds"][OURS] == {"median": 2.0, "least": 1.0, "most": 4.0}
    assert found["memory"] == {OURS: 4.0, THEIRS: 2.0}


@pytest.mark.slow
def test_the_real_contestants_measure_the_same_losses(tmp_path, one_core):
    file = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks.lens", "--small", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(file.read_text())
    assert [one["at"] for one in found["targets"]] == [*TARGETS]
    for one in found["targets"]:
        assert one["largest_difference"] < 1e-5
        assert one["heads"] == 2
        assert show(one) in done.stdout
