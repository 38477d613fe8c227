"""Trackers of studies whose runs are a program."""

from tests.program_studies import write_study

from taetpu.study.programs.running import run_program_file


def test_finished_runs_that_a_tracker_lacks_are_sent_although_nothing_is_left_to_run(tmp_path):
    assert run_program_file(write_study(tmp_path), root=str(tmp_path / "root")).whole
    file = write_study(tmp_path, trackers={"tensorboard": {}})
    assert run_program_file(file, root=str(tmp_path / "root")).whole
    assert len(list(tmp_path.glob("root/tiny/trackers/tensorboard/*/*/events.*"))) == 4
