"""Losses, collectives and memory of runs on meshes of eight simulated devices.

`python -m tests.train.eight` prints JSON.
"""

import json
import os
import re
from collections import Counter
from pathlib import Path

MESHES = {
    "one": {"devices": 1},
    "all": {"devices": 8, "data": 2, "model": 2},
}
RUNS, STEPS = 2, 4
OPERATION = re.compile(r" (all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all)(?:-start)?\(")


def collectives(hlo: str) -> dict[str, int]:
    """Return the number of each collective operation in a compiled program."""
    return dict(Counter(OPERATION.findall(hlo)))


def trained(name: str) -> dict:
    """Return the losses on a mesh, the collectives of a step, and the share of parameters and moments per device."""
    import jax
    import numpy as np
    from tests.train.conftest import settings

    from taetpu.core.static_dynamic import split
    from taetpu.train.layout import Layout
    from taetpu.train.program import Program, stack_numbers

    mesh, width = MESHES[name], RUNS
    config = settings(
        model={"dim": 32, "mixer": {"kind": "attention", "num_heads": 8}, "ffn": {"kind": "relu"}},
        batch_size=16, accumulate=2, steps=STEPS, task={
            "kind": "copy", "seq_len": 16, "symbols": 6, "min_length": 2, "max_length": 6, "eval_size": 16},
    )  # fmt: skip
    source = config.task.prepare(Path())
    structure, numbers = split(config)
    program = Program(structure, source, Layout(width, **mesh), steps=STEPS, chunk=STEPS)
    stacked = program.place(stack_numbers([numbers] * width))
    seeds = program.place(np.arange(width, dtype=np.int32))
    state = program.init(stacked, seeds)
    rows = np.stack([source.rows(seed, 0, STEPS, 16) for seed in range(width)])
    state, metrics = program.advance(state, stacked, seeds, rows, np.int32(STEPS), program.arrays)
    sums = program.evaluate(state.model, program.evaluation_set("val"))
    leaves = [a for a in jax.tree.leaves((state.model, state.opt)) if a.ndim > 2]
    text = program.advance.lower(*program.shapes(numbers).advance).compile().as_text()
    return {
        "losses": np.asarray(metrics["train/loss"]).tolist(),
        "nll": np.asarray(sums["nll"]).sum((1, 2)).tolist(),
        "collectives": collectives(text),
        "share": sum(a.addressable_shards[0].data.nbytes for a in leaves) / sum(a.nbytes for a in leaves),
    }


if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    print(json.dumps({name: trained(name) for name in MESHES}))
