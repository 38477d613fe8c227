"""`plan --pack` lists packs without measuring or compiling, and refuses invalid values."""

import re
import subprocess

import pytest

from taetpu.train.program import Program


@pytest.fixture(autouse=True)
def nothing_is_measured(here, monkeypatch):
    """No process starts and no program is built; nothing was measured before."""

    def refuse(*_, **__):
        raise AssertionError("something was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(Program, "__init__", refuse)
    monkeypatch.setenv("TAETPU_CACHE", str(here / "cache"))
    # Without the other flags of these tests, which a process would check.
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")


def packs(plan) -> list[tuple]:
    return [(p["width"], p["devices"], p["unroll"], p["chosen"], len(p["runs"])) for p in plan["packs"]]


@pytest.mark.slow
def test_plan_lists_packs_and_how_they_were_chosen(taetpu):
    plan = taetpu("plan", "s.yaml", "--json").json()
    assert packs(plan) == [(4, 2, 1, "rule of thumb", 4)]
    assert packs(taetpu("plan", "s.yaml", "--pack", "off", "--json").json()) == [(1, 2, 1, "asked for", 1)] * 4
    assert packs(taetpu("plan", "s.yaml", "--pack", "3", "--json").json()) == [(2, 2, 1, "asked for", 2)] * 2
    said = taetpu("plan", "s.yaml").out
    assert re.search(r"\n +1 +4 +4 +2 +baseline, low-lr *\n", said)
    assert said.count("rule of thumb") == 1


@pytest.mark.parametrize("command", ["run", "plan"])
def test_invalid_pack_option_is_refused(taetpu, here, command):
    code, out, err = taetpu(command, "s.yaml", "--pack", "wide")
    assert (code, out) == (2, "")
    assert "'wide'" in err
    assert "auto, off" in err
    assert not (here / "runs").exists()
