"""Measured costs: what is compiled and timed, in which order, and what is stored where."""

import shutil
import subprocess
import sys

import pytest
from tests.small import TINY

import taetpu
from taetpu.core.errors import UserError
from taetpu.core.machine_load import BUSY, STAT, LoadMeter
from taetpu.stats.load import require_results
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.costs import (
    CostsFile,
    TurnTimer,
    machine_facts,
    machine_key,
    measure_memory,
    open_arms,
    take_turns,
)
from taetpu.train.step_time import step_timer

STUDY = (
    TINY
    + """\
seeds: 1
arms:
  wide: {model.dim: 16}
  slow: {train.optimizer.lr: 1e-4}
"""
)
ENCODER = """\
study: tiny
base:
  task: {kind: sort, form: encoder, seq_len: 8, eval_size: 8}
  model: {dim: 8, num_layers: 1, mixer: {kind: attention, num_heads: 2, causal: false}}
  train: {steps: 6, batch_size: 4, eval_every: 6, log_every: 6, sample: none}
seeds: 1
arms:
  wide: {model.dim: 16}
"""


def run(root, text):
    (root / "study.yaml").write_text(text)
    taetpu.run(root / "study.yaml", root=root)
    return StudyFolder(open_store(root), "tiny")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The root of a trained study."""
    root = tmp_path_factory.mktemp("costs")
    run(root, STUDY)
    return root


@pytest.fixture
def folder(trained, tmp_path):
    """A copy of the trained study."""
    shutil.copytree(trained / "tiny", tmp_path / "tiny")
    return StudyFolder(open_store(tmp_path), "tiny")


def arms_of(folder, *names):
    return {arm.name: arm for arm in open_arms(folder, require_results(folder), names)}


def test_rounds_alternate_and_record_their_order():
    calls = []

    def window(name):
        def run(seconds):
            calls.append((name, seconds))
            return float(len(calls))

        return run

    rounds = list(take_turns({name: window(name) for name in "ab"}, 3, 0.25, LoadMeter()))
    assert calls == [(name, 0.25) for name in "abbaab"]
    assert [each["order"] for each in rounds] == [["a", "b"], ["b", "a"], ["a", "b"]]
    assert [each["seconds"] for each in rounds] == [{"a": 1.0, "b": 2.0}, {"b": 3.0, "a": 4.0}, {"a": 5.0, "b": 6.0}]


@pytest.mark.slow
def test_memory_is_that_of_the_compilers_analysis(folder):
    arms = arms_of(folder)
    measure_memory(folder, list(arms.values()))
    (stored,) = folder.read_costs().values()
    for name, arm in arms.items():
        timer = step_timer(arm.work, arm.layout)
        rows = (timer.state, timer.numbers, timer.seeds, timer.rows, 0, timer.arrays)
        analysis = timer.program.advance.lower(*rows).compile().memory_analysis()
        parts = (analysis.argument_size_in_bytes, analysis.output_size_in_bytes, analysis.temp_size_in_bytes)
        least = sum(parts) - analysis.alias_size_in_bytes
        assert stored["compiled"][name] == {"run": arm.run.id, "bytes": least + analysis.generated_code_size_in_bytes}
    sizes = {name: entry["bytes"] for name, entry in stored["compiled"].items()}
    assert sizes["wide"] > sizes["baseline"] == sizes["slow"]


@pytest.mark.slow
def test_times_are_stored_with_their_rounds(folder):
    seen = []
    TurnTimer(rounds=2, seconds=0.01).measure(folder, list(arms_of(folder).values()), lambda *at: seen.append(at))
    assert seen[0] == (0, 8)
    assert seen[-1] == (8, 8)
    (stored,) = folder.read_costs().values()
    assert stored["machine"] == machine_facts()
    assert set(stored["timings"]) == {"wide", "slow"}
    wide, slow = stored["timings"]["wide"], stored["timings"]["slow"]
    for rounds in (wide["step"], wide["decode"]):
        first, second = rounds
        assert first["order"] == second["order"][::-1]
        assert all(seconds > 0 for each in rounds for seconds in each["seconds"].values())
    assert wide["against"] == "baseline"
    assert (slow["same_program"], slow["step"], slow["decode"]) == (True, [], [])
    assert stored["protocol"]["wide"] == {"seconds": 0.01, "layout": {"width": 1, "devices": 1, "data": 1, "model": 1},
                                          "prompt": 2, "tokens": 6}  # fmt: skip


@pytest.mark.slow
def test_a_model_that_does_not_generate_has_step_times_only(tmp_path):
    folder = run(tmp_path, ENCODER)
    TurnTimer(rounds=1, seconds=0.01).measure(folder, list(arms_of(folder).values()))
    (stored,) = folder.read_costs().values()
    timing = stored["timings"]["wide"]
    assert (len(timing["step"]), timing["decode"]) == (1, [])
    assert "causal" in timing["missing"]["decode"]


@pytest.mark.slow
@pytest.mark.skipif(not STAT.exists(), reason="needs /proc/stat")
def test_a_busy_machine_is_recorded(folder):
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    shares = []
    try:
        TurnTimer(rounds=1, seconds=0.3, on_busy=shares.append).measure(folder, list(arms_of(folder, "wide").values()))
    finally:
        child.kill()
        child.wait()
    (stored,) = folder.read_costs().values()
    timing = stored["timings"]["wide"]
    others = [timing["before"], *(each["others"] for each in (*timing["step"], *timing["decode"]))]
    assert max(others) >= BUSY
    assert shares == [share for share in others if share >= BUSY]


@pytest.mark.slow
def test_another_machines_costs_stay(folder):
    measure_memory(folder, list(arms_of(folder, "wide").values()))
    (key,) = folder.read_costs()
    assert key == machine_key(machine_facts())
    other = {**machine_facts(), "cpu": "another"}
    assert machine_key(other) != key
    theirs = {"date": "2026-01-01", "versions": {}, "compiled": {}, "machine": other}
    folder.write_costs(machine_key(other), theirs)
    CostsFile(folder).add(compiled={"wide": {"run": "0", "bytes": 1}})
    stored = folder.read_costs()
    assert stored[machine_key(other)] == theirs
    assert stored[key]["compiled"]["wide"]["bytes"] == 1
    assert set(stored[key]["compiled"]) == {"baseline", "wide"}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "hint"), [("wid", "wide"), ("slwo", "slow")])
def test_an_unknown_arm_is_refused(folder, name, hint):
    with pytest.raises(UserError, match=repr(name)) as refused:
        arms_of(folder, name)
    assert hint in refused.value.remedy


@pytest.mark.slow
def test_a_study_without_ended_runs_is_refused(folder):
    results = require_results(folder)
    for arm in results["arms"]:
        arm["runs"] = [{**run, "id": None} for run in arm["runs"]]
    with pytest.raises(UserError, match="'tiny'") as refused:
        open_arms(folder, results)
    assert "taetpu run" in refused.value.remedy
