"""Packs are decided before the first step, kept ever after, and halved where memory does not suffice."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from tests.small import STUDY

from taetpu.study.progress import StudyProgress
from taetpu.train.callbacks import Callback


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TAETPU_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def text():
    """Without samples and metrics: a compile less for each."""
    return f"{STUDY.partition(', sample:')[0]}, sample: none}}\nseeds{STUDY.partition('seeds')[2]}"


@pytest.fixture
def said():
    """A progress display, and what it has said so far."""
    out = io.StringIO()
    return StudyProgress(Console(file=out, width=200)), out.getvalue


def plans(folder) -> list[dict]:
    return folder.read_plan()["packs"]


def curves(folder) -> dict:
    """Every number that training measured, by run."""
    return {(run.arm, run.seed): {k: (*s.step, *s.value) for k, s in run.metrics().items()} for run in folder.runs()}


@pytest.mark.slow
def test_a_plan_is_stored_before_the_first_step_and_kept(study, text, tmp_path, said):
    plans_at_start = []

    class Stop(Callback):
        def on_pack_begin(self, number, total, runs):
            plans_at_start.append((tmp_path / "root/small/plan.json").read_bytes())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study(text, callback=Stop())
    callback, heard = said
    outcome, folder = study(text, callback=callback, pack="off")
    assert (tmp_path / "root/small/plan.json").read_bytes() == plans_at_start[0]
    assert outcome.results["packs"] == [
        {"width": 4, "devices": 2, "unroll": 1, "precision": "float32", "chosen": "rule of thumb", "runs": 4}
    ]
    assert "packs of 4 on 2 devices (rule of thumb)" in heard()

    # Runs that are added now are packed as is asked for now.
    outcome, folder = study(text.replace("seeds: 2", "seeds: 3"), pack="off")
    assert [(p["width"], p["chosen"]) for p in plans(folder)] == [(4, "rule of thumb"), *[(1, "asked for")] * 2]
    report = (Path(folder.where) / "report/report.md").read_text()
    assert "4 runs in packs of 4 on 2 devices (rule of thumb); 2 runs" in report


@pytest.mark.slow
def test_a_pack_whose_process_was_killed_for_memory_begins_anew_as_two_of_half_the_width(
    study, text, interrupting, monkeypatch, tmp_path, said
):
    """Its runs end with the numbers of a study that was packed so from the start."""
    count = {"kills": 3}
    monkeypatch.setattr("taetpu.study.pack_store.oom_kills", lambda: ("this boot", count["kills"]))
    marks = {}

    class Killed(interrupting):
        def on_steps(self, step, loss):
            marks.update({file: file.read_bytes() for file in tmp_path.rglob("begun.json")})
            super().on_steps(step, loss)

    with pytest.raises(KeyboardInterrupt):
        study(text, callback=Killed("on_steps", 1), pack=4)
    ((file, mark),) = marks.items()
    assert not file.exists()  # an interrupted process takes its mark along; one that is killed cannot
    file.write_bytes(mark)

    # Killed by somebody else, it goes on as it is.
    with pytest.raises(KeyboardInterrupt):
        study(text, callback=interrupting("on_steps", 1))
    file.write_bytes(mark)
    count["kills"] += 1
    callback, heard = said
    outcome, folder = study(text, callback=callback)
    assert [(p["width"], p["devices"], len(p["runs"]), p["halved_from"]) for p in plans(folder)] == [(2, 2, 2, 4)] * 2
    assert "out of memory: the pack of 4 runs, and those like it, restart as 2 packs of 2" in heard()
    assert "pack 3 of 3: " in heard()
    assert outcome.failed == []
    assert outcome.results["packs"][0]["halved_from"] == 4
    told = "Out of memory: 4 runs were trained in packs of 2 instead of 4."
    assert told in (Path(folder.where) / "report/report.md").read_text()
    assert not list(tmp_path.rglob("begun.json"))

    _, planned = study(text, root="planned", pack=2)
    assert plans(planned)[0]["halved_from"] is None
    assert curves(folder) == curves(planned)


@pytest.mark.slow
def test_a_pack_that_was_evaluated_before_its_process_was_killed_is_left_as_it_is(
    study, text, interrupting, monkeypatch, tmp_path
):
    count = {"kills": 3}
    monkeypatch.setattr("taetpu.study.pack_store.oom_kills", lambda: ("this boot", count["kills"]))
    marks = {}

    class Killed(interrupting):
        def on_evaluate(self, step, run, values):
            marks.update({file: file.read_bytes() for file in tmp_path.rglob("begun.json")})
            super().on_evaluate(step, run, values)

    with pytest.raises(KeyboardInterrupt):
        study(text, callback=Killed("on_evaluate", 20), pack=4)
    ((file, mark),) = marks.items()
    file.write_bytes(mark)
    count["kills"] += 1
    _, folder = study(text)
    assert [p["width"] for p in plans(folder)] == [4]


LARGE = """
study: large
base:
  task: {kind: copy, seq_len: 64, symbols: 16000, min_length: 2, max_length: 6, eval_size: 32}
  model: {dim: 8, num_layers: 1, mixer: {kind: attention, num_heads: 1}}
  train: {steps: 2, batch_size: 64, checkpoint: end, sample: none}
seeds: 4
"""

# While more than two runs are trained, the process gets no more than 400 MB of address space beyond what it has; a step
# needs twice that. A compile that gets no memory may hang, so that the programs must be in the cache already.
LIMITED = """
import os, resource, sys
import taetpu
from rich.console import Console
from taetpu.study.progress import StudyProgress
class Limited(StudyProgress):
    def on_pack_begin(self, number, total, runs):
        super().on_pack_begin(number, total, runs)
        limit = resource.RLIM_INFINITY
        if len(runs) > 2 and sys.argv[3:]:
            import jax
            jax.devices()
            held = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            limit = held + (400 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
outcome = taetpu.run("study.yaml", root=sys.argv[1], pack=sys.argv[2], callback=Limited(Console(stderr=True, width=99)))
assert not outcome.failed, outcome.failed
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux says how much address space is taken")
def test_a_pack_that_gets_no_more_memory_is_halved_until_it_does(tmp_path):
    from taetpu.store.index import find_study

    (tmp_path / "study.yaml").write_text(LARGE)
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_COMPILATION_CACHE", "XLA_FLAGS"))}
    environ |= {"TAETPU_CACHE": str(tmp_path / "cache"), "XLA_FLAGS": "--xla_force_host_platform_device_count=1"}

    def start(*args):
        run = [sys.executable, "-c", "from taetpu.core.runtime import prepare_jax; prepare_jax()" + LIMITED, *args]
        done = subprocess.run(run, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return find_study(tmp_path / args[0]), done.stderr

    (whole, _), (planned, _) = start("whole", "4"), start("planned", "2")
    assert [p["width"] for p in plans(whole)] == [4]
    halved, said = start("halved", "4", "limited")
    told = "out of memory: the pack of 4 runs, and those like it, restart as 2 packs of 2 (RESOURCE_EXHAUSTED"
    assert told in said
    assert [(p["width"], p["halved_from"], len(p["runs"])) for p in plans(halved)] == [(2, 4, 2)] * 2
    assert len(curves(halved)) == 4
    assert curves(halved) == curves(planned)
    assert [(pack["halved_from"], pack["runs"]) for pack in halved.read_results()["packs"]] == [(4, 4)]
