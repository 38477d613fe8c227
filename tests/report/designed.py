"""Studies loaded from study files, with made-up runs instead of training."""

import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from taetpu.spec.loading import load_study
from taetpu.spec.resolved_study import RunSpec
from taetpu.stats.analyse import analyse
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.arm_stages import ArmStages
from taetpu.study.freeze import freeze
from taetpu.study.pack_store import resolve_runs
from taetpu.study.tuning import choose_values
from taetpu.train.pack_plan import Run

HEAD = """\
study: designed
base:
  task: {kind: copy, seq_len: 16, symbols: 5, min_length: 2, max_length: 6, eval_size: 32}
  model: {dim: 16, num_layers: 1, mixer: {kind: attention, num_heads: 2}, ffn: {kind: relu}}
  train: {steps: 20, batch_size: 4}
measure: {equivalence: 0.02}
seeds: 5
"""
DESIGNS = {
    "parts": """\
leave_one_out: {position: {model.position: none}, ffn: {model.ffn: none}}
ladder: {model.dim: [8, 16, 32]}
""",
    "steps": """\
arms: {no-ffn: {model.ffn: none}, no-position: {model.position: none}}
ladder: {train.steps: [20, 40, 10]}
""",
    "data": """\
arms: {no-ffn: {model.ffn: none}}
ladder: {task.seq_len: [24, 16]}
""",
    "kinds": """\
arms: {no-ffn: {model.ffn: none}}
ladder: {model.position: [rope, learned], model.dim: [16, 8]}
""",
    "rates": """\
arms: {no-ffn: {model.ffn: none}}
ladder: {train.optimizer.lr: [1e-3, 1e-2]}
""",
    "fraction": """\
factorial: {model.norm: [rms, layer], model.position: [rope, none], model.ffn: [relu, none], fraction: 1/2}
""",
    "fair": """\
match: flops
tune: {train.optimizer.lr: [1e-3, 3e-3, 1e-2]}
arms: {no-ffn: {model.ffn: none}, swiglu: {model.ffn: swiglu}}
""",
    "across": """\
arms: {no-position: {model.position: none}, no-ffn: {model.ffn: none}}
across: {model.init: [scaled-fan-in, fan-in], train.optimizer.lr: [1e-3, 3e-3]}
""",
    "tasks": """\
arms: {no-ffn: {model.ffn: none}, no-position: {model.position: none}}
tasks:
  a-copy-of-symbols: {}
  a-copy-of-many-symbols: {task.symbols: 9, measure: {primary: val/accuracy}}
  a-long-copy-of-symbols: {task.seq_len: 24, measure: {primary: val/accuracy}}
  a-reversed-copy: {task.kind: reverse}
  sort: {task: {kind: sort, seq_len: 16, symbols: 8, eval_size: 32}, measure: {primary: val/accuracy}}
  a-short-copy-of-symbols: {task.max_length: 4}
""",
}


def designed(root: Path, design: str, loss: Callable[[RunSpec], float]) -> StudyFolder:
    """Store and analyse a study with one of the `DESIGNS`, whose runs end with `loss` and a little noise."""
    root.mkdir(exist_ok=True)
    (root / "study.yaml").write_text(HEAD + DESIGNS[design])
    study = load_study(root / "study.yaml")
    folder = StudyFolder(open_store(root), study.name)
    stages = ArmStages.of(study)
    untuned = stages.matched
    freeze(untuned, folder)
    _fill(resolve_runs(untuned, folder), loss)
    found, whole = {}, untuned
    if stages.trials is not None:
        trial_runs = resolve_runs(stages.trials, folder)
        _fill(trial_runs, loss)
        best = found["tuning"] = choose_values(untuned, [(run.arm, run.folder) for run in trial_runs])
        whole = stages.tuned(best)
    _fill(resolve_runs(whole, folder), loss)
    freeze(whole, folder, **found)
    analyse(folder)
    return folder


def _fill(runs: list[Run], loss: Callable[[RunSpec], float]) -> None:
    for spec in runs:
        if spec.done:
            continue
        run = spec.folder
        run.start(spec.record())
        steps = spec.config.train.steps or 20
        noise = np.random.default_rng([zlib.crc32(spec.arm.encode()), spec.seed]).normal(0, 0.01)
        end = loss(spec) + noise + 0.02 * (spec.seed % 5)
        curve = ([steps // 2, steps], [2 * end, end])
        measured = {"val/loss": curve, "val/accuracy": ([steps], [1 / (1 + end)])}
        run.append(0, steps, measured, {"step_seconds": ([steps], [0.003])})
        params = 1000 * spec.config.model.dim
        metrics = {"val/loss": end, "val/accuracy": 1 / (1 + end)}
        result = {"outcome": "finished", "diverged_at": None, "steps": steps, "metrics": metrics}
        memory = {"training": 16 * params, "kv_cache": 2048}
        tokens = 64 * steps
        run.finish({**result, "params": params, "tokens": tokens, "flops": 6 * params * tokens, "memory": memory})
