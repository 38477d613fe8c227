"""`taetpu costs`: it prints, stores and draws costs of a trained study, and refuses what it cannot measure."""

import shutil

import pytest
from tests.small import TINY
from tests.tpu.conftest import NEEDS_LIBTPU

WIDE = TINY.replace("study: tiny", "study: wide") + "arms:\n  wide: {model.dim: 16}\n"


@pytest.fixture
def study(here, trained):
    shutil.copytree(trained[0], here / "root")
    return here / "root/small"


def test_costs_are_measured_stored_and_shown_by_the_report(taetpu, study):
    before = (study / "results.json").read_bytes()
    done = taetpu("costs", study, "--time", "--rounds", 1, "--seconds", 0.01)
    assert done.code == 0, done.err
    assert "low-lr" in done.out
    (file,) = (study / "costs").iterdir()
    data = taetpu("costs", study, "--json").json()
    assert list(data["measured"]) == [file.stem]
    assert data["arms"]["baseline"]["memory"] == data["measured"][file.stem]["compiled"]["baseline"]["bytes"]
    assert max(map(len, done.out.splitlines())) <= 80
    assert taetpu("report", study).out.splitlines()[-1] == f"report: {study}/report/index.html"
    assert "low-lr" in (study / "report/report.md").read_text()
    assert (study / "results.json").read_bytes() == before
    assert taetpu("report", study, "--verify").code == 0


@pytest.mark.slow
def test_a_frontier_is_printed_and_drawn(taetpu, here):
    (here / "wide.yaml").write_text(WIDE)
    assert taetpu("run", "wide.yaml", "--root", here / "root").code == 0
    study = here / "root/wide"
    done = taetpu("costs", study, "--frontier", "params,val/loss", "-o", here / "front.svg")
    assert done.code == 0, done.err
    assert {line.split()[0] for line in done.out.splitlines()[2:4]} == {"baseline", "wide"}
    assert "<svg" in (here / "front.svg").read_text()
    points = taetpu("costs", study, "--frontier", "params,val/loss", "--json").json()
    assert any(point["front"] for point in points)


@pytest.mark.parametrize(
    ("words", "path", "hint"),
    [
        (["--frontier", "paramz,val/loss"], "--frontier", "val/loss"),
        (["--rounds", "2"], "--rounds", "--time"),
        (["--seconds", "0.1"], "--seconds", "--time"),
        (["-o", "a.svg"], "--out", "--frontier"),
        (["--arm", "low-rl"], "--arm", "low-lr"),
        (["--tpu", "v99-1"], "--tpu", "v6e-1"),
    ],
)
def test_mistakes_are_explained(taetpu, study, words, path, hint):
    done = taetpu("costs", study, *words)
    assert done.code == 2
    assert path in done.err
    assert hint in done.err
    assert "Traceback" not in done.err


def test_a_study_without_runs_is_refused(taetpu, here, study):
    shutil.rmtree(study / "runs")
    (study / "results.json").unlink()
    done = taetpu("costs", study)
    assert done.code == 2
    assert "'small'" in done.err
    assert "taetpu run" in done.err


@NEEDS_LIBTPU
@pytest.mark.slow
def test_the_compilers_cycles_for_a_tpu_are_stored(taetpu, study):
    done = taetpu("costs", study, "--tpu", "v5e-1")
    assert done.code == 0, done.err
    (file,) = (study / "costs").glob("tpu-*.json")
    measured = taetpu("costs", study, "--json").json()
    entries = measured["measured"][file.stem]["compiled"]
    assert set(entries) == {"baseline", "low-lr"}
    assert entries["low-lr"]["cycles"] == entries["baseline"]["cycles"] > 0
    assert measured["arms"]["low-lr"]["cycles"] == entries["low-lr"]["cycles"]
