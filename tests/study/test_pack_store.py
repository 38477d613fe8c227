"""Packs are planned before the first step, keep their plan, and are halved if they run out of memory."""

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
from taetpu.train.trainer import PackTrainer


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TAETPU_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def text():
    """Return a study without samples and metrics, which compiles fewer programs."""
    return f"{STUDY.partition(', sample:')[0]}, sample: none}}\nseeds{STUDY.partition('seeds')[2]}"


@pytest.fixture
def said():
    """Return a progress display, and a function that returns its output."""
    out = io.StringIO()
    return StudyProgress(Console(file=out, width=200)), out.getvalue


def plans(folder) -> list[dict]:
    return folder.read_plan()["packs"]


def curves(folder) -> dict:
    """Return all metrics by run."""
    return {(run.arm, run.seed): {k: (*s.step, *s.value) for k, s in run.metrics().items()} for run in folder.runs()}


@pytest.mark.slow
def test_plan_is_stored_before_the_first_step_and_kept(study, text, tmp_path, said):
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
    assert "in packs of 4 (rule of thumb)" in heard()

    # Runs that are added now are packed as --pack requests now.
    outcome, folder = study(text.replace("seeds: 2", "seeds: 3"), pack="off")
    assert [(p["width"], p["chosen"]) for p in plans(folder)] == [(4, "rule of thumb"), *[(1, "asked for")] * 2]


@pytest.mark.slow
def test_pack_that_runs_out_of_memory_gives_the_results_of_narrower_packs(study, text, monkeypatch, said):
    advance = PackTrainer.run

    def run(trainer):
        if len(trainer.runs) > 2:
            raise MemoryError("no memory for this pack")
        return advance(trainer)

    callback, heard = said
    with monkeypatch.context() as limited:
        limited.setattr(PackTrainer, "run", run)
        outcome, folder = study(text, callback=callback, pack=4)
    assert outcome.failed == []
    assert [(p["width"], p["devices"], len(p["runs"]), p["halved_from"]) for p in plans(folder)] == [(2, 2, 2, 4)] * 2
    assert "out of memory: the pack of 4 runs restarts as 2 packs of 2" in heard()
    assert "pack 3 of 3: " in heard()
    assert outcome.results["packs"][0]["halved_from"] == 4
    _, planned = study(text, root="planned", pack=2)
    assert plans(planned)[0]["halved_from"] is None
    assert curves(folder) == curves(planned)


LARGE = """
study: large
base:
  task: {kind: copy, seq_len: 64, symbols: 16000, min_length: 2, max_length: 6, eval_size: 32}
  model: {dim: 8, num_layers: 1, mixer: {kind: attention, num_heads: 1}}
  train: {steps: 2, batch_size: 64, checkpoint: end, sample: none}
seeds: 4
"""

# While more than two runs train, the process can allocate at most 400 MB of additional address space. A step needs
# 800 MB. A compile without memory may hang, so the programs must already be in the compile cache.
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


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the address space is measured through /proc")
def test_pack_is_halved_if_the_system_gives_no_more_memory(tmp_path):
    from taetpu.store.addresses import find_study

    (tmp_path / "study.yaml").write_text(LARGE)
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_COMPILATION_CACHE", "XLA_FLAGS"))}
    environ |= {"TAETPU_CACHE": str(tmp_path / "cache"), "XLA_FLAGS": "--xla_force_host_platform_device_count=1"}

    def start(*args):
        run = [sys.executable, "-c", "from taetpu.core.jax_setup import prepare_jax; prepare_jax()" + LIMITED, *args]
        done = subprocess.run(run, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return find_study(tmp_path / args[0]), done.stderr

    (whole, _), (planned, _) = start("whole", "4"), start("planned", "2")
    assert [p["width"] for p in plans(whole)] == [4]
    halved, said = start("halved", "4", "limited")
    told = "out of memory: the pack of 4 runs restarts as 2 packs of 2 (RESOURCE_EXHAUSTED"
    assert told in said
    assert [(p["width"], p["halved_from"], len(p["runs"])) for p in plans(halved)] == [(2, 4, 2)] * 2
    assert len(curves(halved)) == 4
    assert curves(halved) == curves(planned)
    assert [(pack["halved_from"], pack["runs"]) for pack in halved.read_results()["packs"]] == [(4, 4)]
