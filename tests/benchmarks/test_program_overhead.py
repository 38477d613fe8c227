"""`benchmarks.program_overhead`: a study and a loop run the same commands."""

import pytest
from benchmarks.program_overhead import format_table, measure, overhead


@pytest.mark.slow
def test_a_study_is_compared_with_a_loop_of_its_commands():
    (turn,) = measured = measure(runs=4, seconds=0.2, rounds=1)
    assert turn["loop"]["seconds"] > 0.8
    study = turn["study"]
    assert study["runs"] > 0.8
    assert study["seconds"] == pytest.approx(study["start"] + study["runs"] + study["end"])
    assert study["cpu"] > 0
    *_, row, last = format_table(measured).splitlines()
    assert f"{overhead(turn):.1%}" in row
    assert "missed" in last  # start-up and report take longer than 5 % of 0.8 s
