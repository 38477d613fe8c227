"""Estimate packs and GPT-2 on TPU v5e from the compiler's cycles. Nothing is measured.

`python -m benchmarks.tpu`: cycles per token of one run of dim 128 and of a pack of 32, and of GPT-2 with 124 million
parameters by attention path. Needs libtpu; takes some minutes. A kernel has no cycles in the compiler's text; those of
splash attention come from `benchmarks.attention_cycles`, and leave out what it waits for.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax

from taetpu.core.chips import parse_slice
from taetpu.core.config_parsing import load_config
from taetpu.nn.compute_options import ComputeOptions
from taetpu.spec.study_config import ResolvedConfig, RunConfig
from taetpu.tpu.compile_client import Compiler, CompileRequest
from taetpu.train.layout import Layout

CHIP = "v5e-1"
LENGTH = {"min_length": 2, "max_length": 6, "eval_size": 8}
SMALL = {
    "task": {"kind": "copy", "seq_len": 128, "symbols": 100, **LENGTH},
    "model": {"dim": 128, "num_layers": 4, "mixer": {"kind": "attention", "num_heads": 4}},
    "train": {"steps": 100, "batch_size": 8},
}
GPT2 = {
    "task": {"kind": "copy", "seq_len": 1024, "symbols": 50253, **LENGTH},
    "model": {
        "dim": 768, "num_layers": 12, "mixer": {"kind": "attention", "num_heads": 12}, "position": "learned",
        "norm": "layer", "ffn": {"kind": "gelu-tanh", "hidden": 3072}, "embedding": "tied", "bias": True,
    },
    "train": {"steps": 100, "batch_size": 8},
}  # fmt: skip
CHUNK = 1024  # tokens per chunk of logits


def request(base: dict[str, Any], execution: ComputeOptions, width: int = 1) -> CompileRequest:
    config: ResolvedConfig = load_config(RunConfig, base).resolve()
    source = config.task.prepare(Path())
    return CompileRequest(
        config, source, frozenset(), "bfloat16", execution, Layout(width), parse_slice(CHIP), Path(), ()
    )


def tokens(one: CompileRequest) -> int:
    return one.layout.width * one.config.train.batch_size * one.source.seq_len


def splash_cycles() -> float:
    """Return the cycles of the attention kernels of one GPT-2 layer, forward and backward, for 8192 tokens."""
    command = [sys.executable, "-m", "benchmarks.attention_cycles", "1024", "12", "64", "splash"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"\(([\d.]+) in kernels", said)
    assert found, said
    return float(found[1]) * 1e6


def main() -> None:
    """Print the tables of benchmarks/README.md."""
    ways = {
        "one run, dim 128": request(SMALL, ComputeOptions()),
        "a pack of 32, dim 128": request(SMALL, ComputeOptions(), 32),
        "GPT-2 124M, plain": request(GPT2, ComputeOptions(remat="dots", loss_chunk=CHUNK)),
        "GPT-2 124M, splash": request(GPT2, ComputeOptions(remat="dots", loss_chunk=CHUNK, attention="splash")),
    }
    with Compiler(lambda done, of: print(f"{done} of {of}", end="\r", file=sys.stderr)) as compiler:
        answers = compiler.compile_all(list(ways.values()))
    clock = parse_slice(CHIP).generation.clock_hz or float("nan")
    print("| program | cycles a token | tokens/s at 1.5 GHz | GB |")
    print("|---|---|---|---|")
    for (name, one), facts in zip(ways.items(), answers, strict=True):
        if "cycles" not in facts:
            print(f"| {name} | {facts['error']} | | |")
            continue
        kernels = len(one.config.model.layers) * splash_cycles() if name.endswith("splash") else 0.0
        a_token = (facts["cycles"] + kernels) / tokens(one)
        print(f"| {name} | {a_token:,.0f} | {clock / a_token:,.0f} | {facts['memory']['needed'] / 1e9:.2f} |")


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")  # with libtpu and without a TPU, jax would search for one and log errors
    main()
