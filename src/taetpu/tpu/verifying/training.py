"""Train a tiny model for 50 steps and compare its losses with those stored in the package.

`python -m taetpu.tpu.verifying.training` computes the stored losses on a CPU and prints `losses.json`.
"""

import json
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from taetpu.core.config_parsing import load_config
from taetpu.core.static_dynamic import promoted_fields, split
from taetpu.spec.study_config import RunConfig
from taetpu.tpu.verifying.checks import Finding
from taetpu.train.layout import Layout, auto_precision
from taetpu.train.program import Program, stack_numbers

STEPS = 50
SEED = 0
RUN: dict[str, Any] = {
    "task": {"kind": "copy", "seq_len": 16, "symbols": 4, "min_length": 2, "max_length": 6, "eval_size": 8},
    "model": {
        "dim": 32,
        "num_layers": 2,
        "mixer": {"kind": "attention", "num_heads": 2},
        "position": "rope",
        "init": "gpt2-scaled",  # as when the losses were stored
    },
    "train": {"steps": STEPS, "batch_size": 32, "optimizer": {"kind": "adamw", "lr": 3e-3}, "sample": None},
}
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.01}
"""Maximum difference between a loss and the stored loss, by matmul precision. Processors differ in the order of float32
sums, and compilers differ in the places at which they round to bfloat16. Over these 50 steps, the loss falls by 0.7,
and the losses at the two precisions differ by less than 0.001."""


def load_expected() -> dict[str, list[float]]:
    """Return the stored loss of each step, computed on a CPU, by precision."""
    return json.loads(files("taetpu.tpu.verifying").joinpath("losses.json").read_text())


def train(precision: str) -> np.ndarray:
    """Train one run on the first device and return the loss of each step, `(STEPS,)`."""
    config = load_config(RunConfig, RUN).resolve()
    with tempfile.TemporaryDirectory() as folder:
        source = config.task.prepare(Path(folder))
    structure, numbers = split(config, frozenset(promoted_fields(config)))
    program = Program(structure, source, Layout(1), steps=STEPS, precision=precision, chunk=STEPS)
    placed, seeds = program.place(stack_numbers([numbers])), program.place(np.array([SEED], np.int32))
    rows = source.rows(SEED, 0, STEPS, config.train.batch_size)[None]
    state = program.init(placed, seeds)
    _, metrics = program.advance(state, placed, seeds, rows, np.int32(STEPS), program.arrays)
    return np.asarray(metrics["train/loss"], np.float64)[0]


def training() -> Finding:
    """Train at the machine's default precision and compare every loss with the stored loss."""
    precision = auto_precision()
    return compare_losses(train(precision), np.array(load_expected()[precision]), precision)


def compare_losses(losses: np.ndarray, expected: np.ndarray, precision: str) -> Finding:
    """Compare losses with expected losses, both of shape `(STEPS,)`; the check fails if a loss is NaN."""
    difference = np.nan_to_num(np.abs(losses - expected), nan=np.inf)
    worst = int(np.argmax(difference))
    values = {
        "precision": precision,
        "steps": STEPS,
        "first_loss": float(losses[0]),
        "last_loss": float(losses[-1]),
        "largest_difference": float(difference[worst]),
        "tolerance": TOLERANCE[precision],
    }
    if difference[worst] > TOLERANCE[precision]:
        figure = f"step {worst + 1} has loss {losses[worst]:.4f}, expected {expected[worst]:.4f} ({precision})"
        return Finding("FAILED", figure, values)
    figure = f"loss {losses[0]:.3f} to {losses[-1]:.3f} in {STEPS} steps, at most {difference[worst]:.0e} off"
    return Finding("ok", f"{figure} ({precision})", values)


def main() -> None:
    """Print the content of `losses.json`."""
    losses = {precision: [round(float(x), 6) for x in train(precision)] for precision in TOLERANCE}
    print(json.dumps(losses, indent=1))


if __name__ == "__main__":
    from taetpu.core.jax_setup import prepare_jax

    prepare_jax()
    main()
