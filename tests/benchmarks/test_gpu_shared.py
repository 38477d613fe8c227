"""`benchmarks.gpu_shared` at tiny sizes on a CPU, where packs never share a device."""

import pytest

from benchmarks import gpu_shared


@pytest.mark.nightly
def test_the_study_runs_with_each_number_of_packs(monkeypatch, capsys):
    words = ["--device", "cpu", "--small", "--rounds", "1", "--at-once", "1", "2"]
    monkeypatch.setattr("sys.argv", ["benchmarks.gpu_shared", *words])
    assert gpu_shared.main() == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in out[:2]] == ["1", "2"]
    assert out[2].endswith("none")


def test_other_values_are_reported(monkeypatch, capsys):
    monkeypatch.setattr(
        "sys.argv", ["benchmarks.gpu_shared", "--device", "cpu", "--rounds", "1", "--at-once", "1", "4"]
    )
    ran = {(1, 0): 0.5, (4, 0): 0.5, (1, 1): 0.5, (4, 1): 0.25}
    monkeypatch.setattr(gpu_shared, "run", lambda study, shared, number, device: (1.0, {"a/0": ran[shared, number]}))
    assert gpu_shared.main() == 1
    assert capsys.readouterr().out.splitlines()[-1].endswith("4 at once, run 1")
