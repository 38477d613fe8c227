"""The tool that damages studies: `python -m tests.faults`."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.faults import Bench, DamageLog, Fault


def broken(*given: str) -> str:
    command = [sys.executable, "-m", "tests.faults", *given]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.slow
def test_fifty_faults():
    assert broken("--quick") == ""


@pytest.mark.slow
def test_a_lost_record_of_a_run_that_has_begun_is_reported(tmp_path: Path):
    with Bench(tmp_path) as bench:
        records = sorted(bench.source.glob("part/small/runs/low-lr/*/config.json"))
        assert len(records) == 2
        for place in records:
            assert bench.strike(Fault("remove", place.relative_to(bench.source)), random.Random(0)) == "repaired"


@pytest.mark.slow
def test_a_run_that_was_killed_between_its_evaluation_and_its_result_is_not_damaged(tmp_path: Path):
    with Bench(tmp_path) as bench:
        folder = bench.open(bench.source / "part")
        done = [run for run in folder.runs() if run.status() == "done"]
        left = [run for run in folder.runs() if run.status() != "done"]
        assert left
        for run in left:  # of any values, since it is written again
            run.write_evaluation(done[0].evaluation())
        reported = DamageLog()
        bench.train(folder, reported)
        assert reported.lines == []
        bench.check_whole(folder)


@pytest.mark.nightly
def test_a_thousand_faults():
    assert broken("--all", "--seed", "1") == ""
