"""`taetpu gallery`: the list, a study that is run and checked, and exit codes."""

import pytest

from taetpu.study.gallery_index import read_gallery

TINY = ("--set", "task.eval_size=2", "--set", "model.dim=16")
UNTRAINED = ("--set", "train.steps=1", "--set", "train.schedule={kind: constant}", "--set", "model.num_layers=1")


def test_list_has_every_study_and_fits_80_columns(taetpu):
    code, out, err = taetpu("gallery")
    assert (code, err) == (0, "")
    assert {line.split()[0] for line in out.splitlines() if line[:1].strip()} >= {*read_gallery()}
    assert max(map(len, out.splitlines())) <= 80
    assert [row["name"] for row in taetpu("gallery", "--json").json()] == [*read_gallery()]


def test_unknown_study_and_study_that_did_not_run(taetpu):
    code, out, err = taetpu("gallery", "run", "grocking")
    assert (code, out) == (2, "")
    assert "'grocking'" in err
    assert "'grokking'" in err
    code, out, err = taetpu("gallery", "check", "grokking")
    assert (code, out) == (2, "")
    assert "gallery-grokking" in err


@pytest.mark.slow
def test_study_whose_claims_hold(taetpu):
    done = taetpu("gallery", "run", "rank-collapse", *TINY)
    assert done.code == 0, done.out + done.err
    assert done.out.count("\nholds  ") == 4
    again = taetpu("gallery", "check", "rank-collapse", "--json").json()
    assert [row["holds"] for row in again] == [True] * 4


@pytest.mark.slow
def test_study_whose_claims_do_not_hold(taetpu):
    done = taetpu("gallery", "run", "swiglu", *UNTRAINED)
    assert done.code == 3
    assert "\nFAILS  gelu is worse" in done.out
    assert taetpu("gallery", "check", "gallery-swiglu").code == 3
