"""Arms that differ only in numbers compile one train step, and a later process compiles nothing."""

import json
import os
import subprocess
import sys

import pytest

STUDY = """
study: compiled
base:
  task: {kind: copy, seq_len: 16, symbols: 5, min_length: 2, max_length: 6, eval_size: 32}
  model: {dim: 16, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 12, batch_size: 4, sample: none}
seeds: 1
arms:
  lr: {train.optimizer.lr: 1e-4}
  warm: {train.schedule.warmup: 3}
  decay: {train.optimizer.weight_decay: 0.0}
  one-head-dropped: {model.mixer.drop_heads: [0]}
"""

# Counts the compiled versions of the train step, and the hits and misses of the compile cache, with JAX's monitoring.
COUNT = """
import json, sys
from collections import Counter
from taetpu.core.jax_setup import prepare_jax
prepare_jax()
import jax
import taetpu
from taetpu.train import program
events = Counter()
jax.monitoring.register_event_listener(lambda name, **_: events.update([name]))
programs = []
made = program.Program.__init__
def counted(self, *args, **kwargs):
    programs.append(self)
    made(self, *args, **kwargs)
program.Program.__init__ = counted
taetpu.run("study.yaml", root=sys.argv[1])
steps = [p.advance._cache_size() for p in programs]
print(json.dumps({"steps": steps, "missed": events["/jax/compilation_cache/cache_misses"],
                  "found": events["/jax/compilation_cache/cache_hits"]}))
"""


@pytest.mark.slow
def test_arms_that_differ_in_numbers_compile_once_and_later_processes_compile_nothing(tmp_path):
    (tmp_path / "study.yaml").write_text(STUDY)
    environ = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION_CACHE")}
    environ["TAETPU_CACHE"] = str(tmp_path / "cache")

    def start(root):
        run = [sys.executable, "-c", COUNT, root]
        done = subprocess.run(run, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    first, second = start("one"), start("two")
    assert first["steps"] == [1]  # one program, compiled once
    assert first["missed"] > 0
    assert second["steps"] == [1]
    assert second["missed"] == 0
    assert second["found"] == first["missed"] + first["found"]
