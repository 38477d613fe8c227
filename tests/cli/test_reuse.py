"""`taetpu run --reuse`: what was refuted is said, and the study goes on without it."""

import shutil

import pytest
from tests.forged import forged

from taetpu.store.index import find_study


@pytest.mark.slow
def test_refuted_runs_exit_with_3_and_the_next_run_trains_them(taetpu, here, trained):
    shutil.copytree(trained[0], here / "theirs")
    for run in find_study(here / "theirs").runs():
        forged(run)
    done = taetpu("run", "s.yaml", "--root", "ours", "--reuse", "theirs", "--audit", "0.01")
    assert done.code == 3
    assert "1 of the reused runs are trained again, to prove them" in done.err
    assert "have other results when they are trained again:\n  " in done.err
    assert "without --reuse" in done.err.splitlines()[-1]
    assert "1/4" in taetpu("list", "--root", "ours").out
    assert taetpu("run", "s.yaml", "--root", "ours").code == 0
    assert taetpu("report", "ours/small", "--verify").code == 0


@pytest.mark.slow
def test_reused_runs_are_said_to_be_reused(taetpu, here, trained):
    done = taetpu("run", "s.yaml", "--root", "ours", "--reuse", trained[0], "--audit", "0")
    assert done.code == 0
    said = "4 runs of this study were trained elsewhere and taken over; none was trained again to prove them."
    assert said in " ".join(done.out.split())
    assert said in (here / "ours/small/report/index.html").read_text()
    assert said in (here / "ours/small/report/report.md").read_text()


def test_a_share_beyond_1_is_refused(taetpu):
    done = taetpu("run", "s.yaml", "--reuse", "root", "--audit", "5")
    assert done.code == 2
    assert "5.0 is no share of the reused runs" in done.err
