"""Exponential means, schedule-free AdamW and Muon in a study: the evaluated model is stored, also after a stop."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.small import TINY
from tests.study.test_run import stored

import taetpu
from taetpu.nn.named_arrays import named_parameters

STUDY = (
    TINY.replace("eval_every: 6", "eval_every: 2, checkpoint: 2, optimizer: {kind: adamw, lr: 0.01}")
    + """\
seeds: 1
arms:
  slow: {train.optimizer.ema: 0.9}
  fast: {train.optimizer.ema: 0.5}
  free: {train.optimizer: {kind: schedule-free, lr: 0.01, ema: 0.5}, train.schedule: constant}
  muon: {train.optimizer: {kind: muon, groups: {vector: {lr: 0.5}, first: {match: "layers.0.*", weight_decay: 0.2}}}}
"""
)


@pytest.mark.slow
def test_resumed_study_stores_the_same_evaluated_models(study, interrupting):
    _, whole = study(STUDY, root="whole")
    with pytest.raises(KeyboardInterrupt):
        study(STUDY, callback=interrupting("on_steps", 4))
    _, folder = study(STUDY)
    files = stored(folder)
    assert files == stored(whole)

    runs = {name: Path(folder.where) / next(f for f in files if name in f and f.endswith("result.json")).removesuffix(
        "result.json") for name in ("baseline", "slow", "fast")}  # fmt: skip
    losses = {name: json.loads((run / "result.json").read_text())["metrics"] for name, run in runs.items()}
    assert len({found["train/loss"] for found in losses.values()}) == 1  # training is the same
    assert len({found["val/loss"] for found in losses.values()}) == 3
    models = [named_parameters(taetpu.open_run(run).model) for run in runs.values()]
    assert not any(np.array_equal(models[0][name], models[1][name]) for name in models[0] if "norm" not in name)
