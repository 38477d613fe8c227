"""`--pack`: what `plan` foresees of packs without measuring or compiling, and what is no way to pack."""

import io
import re
import subprocess

import pytest
from rich.console import Console

from taetpu.spec.loading import load_study
from taetpu.study.progress import StudyProgress
from taetpu.train.calibrate import Shape, remember
from taetpu.train.pack import Program
from taetpu.train.plan import Group, Layout, Work


@pytest.fixture(autouse=True)
def nothing_is_measured(here, monkeypatch):
    """No process is started, no program of a pack is made; nothing was measured before."""

    def refuse(*_, **__):
        raise AssertionError("something was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(Program, "__init__", refuse)
    monkeypatch.setenv("TAETPU_CACHE", str(here / "cache"))


def packs(plan) -> list[tuple]:
    return [(p["width"], p["devices"], p["unroll"], p["chosen"], len(p["runs"])) for p in plan["packs"]]


def test_a_plan_says_how_runs_would_be_packed_and_how_that_was_chosen(taetpu):
    plan = taetpu("plan", "s.yaml", "--json").json()
    assert packs(plan) == [(4, 2, 1, "rule of thumb", 4)]
    assert packs(taetpu("plan", "s.yaml", "--pack", "off", "--json").json()) == [(1, 2, 1, "asked for", 1)] * 4
    assert packs(taetpu("plan", "s.yaml", "--pack", "3", "--json").json()) == [(2, 2, 1, "asked for", 2)] * 2
    assert packs(taetpu("plan", "s.yaml", "--pack", "measured", "--json").json()) == [(4, 2, 1, "measured at run", 4)]
    long = taetpu("plan", "s.yaml", "--set", "train.steps=2000000000", "--json").json()
    assert packs(long) == [(4, 2, 1, "measured at run", 4)]
    assert long["packs"][0]["seconds"] is None
    said = taetpu("plan", "s.yaml").out
    assert re.search(r"\n +1 +4 +4 +2 +rule of thumb +baseline, low-lr *\n", said)
    assert re.search(r"\ntime: \S+ \(train steps \S+, evaluation \S+, compiling\s+\S+\), from this\s+machine's", said)
    low, high = plan["time"]["total"]
    assert 0 < low < high
    assert f"evaluation: {plan['evaluation']['windows']} of 32 validation windows during training" in said


def test_a_plan_knows_what_was_measured_and_how_long_it_takes(taetpu, here):
    study = load_study(here / "s.yaml")
    runs = tuple(study.runs())
    work = Work(Group(frozenset(), runs), study.sources.of(runs[0].config), "float32")
    remember(Shape(work, study.folder, ()), {Layout(4, 2): 90.0, Layout(4): 60.0})
    plan = taetpu("plan", "s.yaml", "--json").json()
    assert packs(plan) == [(4, 1, 1, "measured", 4)]
    assert [pack["seconds"] for pack in plan["packs"]] == [20 * 60.0]
    said = taetpu("plan", "s.yaml").out
    assert re.search(r"\n +1 +4 +4 +1 +measured +baseline, low-lr *\n", said)
    assert "(train steps 14min-32min, " in said
    assert "from what such packs took on this machine" in " ".join(said.split())
    assert max(map(len, said.splitlines())) <= 80


def test_measuring_is_shown_in_80_columns_and_said_in_a_log():
    terminal = Console(width=80, height=24, force_terminal=True)
    shown = StudyProgress(terminal)
    for number, layout in enumerate([Layout(32, 16), Layout(128, 16, 4)], start=1):
        shown.calibrating(1000, layout, number)
    with terminal.capture() as captured:
        terminal.print(shown.render())
    line, *_ = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", captured.get()).splitlines()
    assert line.startswith("measuring 2 ")
    assert "packs of 128 on 16 devices" in line
    assert len(line.rstrip()) <= 80

    log = Console(width=80, file=io.StringIO())
    said = StudyProgress(log)
    said.calibrating(1000, Layout(32, 16), 1)
    said.calibrating(1000, Layout(64, 16), 2)
    said.calibrated(1000, Layout(64, 16))
    said.calibrated(3, None, "no")
    assert log.file.getvalue().splitlines() == [
        "measuring how to pack 1000 runs",
        "  fastest: packs of 64 on 16 devices",
        "how to pack 3 runs could not be measured, and is guessed: no",
    ]


@pytest.mark.parametrize("command", ["run", "plan"])
def test_no_way_to_pack_is_a_mistake_and_stores_nothing(taetpu, here, command):
    code, out, err = taetpu(command, "s.yaml", "--pack", "wide")
    assert (code, out) == (2, "")
    assert err.startswith("error: 'wide' is no way to pack runs\n")
    assert "auto, measured, off, or the most runs in a pack" in err
    assert not (here / "runs").exists()
