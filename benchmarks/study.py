"""A whole study, from the command to the report, compared with the same runs in PyTorch one after another.

`taetpu run` starts in a fresh process, with nothing compiled, measured or stored before. Each run of a peer is a fresh
process too. A few of them are timed, half before the study and half after it, and the others are reckoned to take as
long.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from benchmarks.contest import contest, machine, request, shown_machine
from benchmarks.shapes import SHAPES, Shape, baseline, write_text
from taetpu.core.jax_setup import cpu_cores
from taetpu.report.time_spent import total_parts
from taetpu.store.documents import to_yaml

NAME = "benchmark"
# Changes of a small GPT-2: numbers, which share a program, alternating with components, which do not.
ARMS: dict[str, dict[str, Any]] = {
    "low-lr": {"train.optimizer.lr": 3e-4},
    "rms": {"model.norm": "rms"},
    "high-lr": {"train.optimizer.lr": 3e-3},
    "rope": {"model.position": "rope"},
    "no-decay": {"train.optimizer.weight_decay": 0.0},
    "swiglu": {"model.ffn": "swiglu"},
    "heads": {"model.mixer.num_heads": 8},
}


def alone() -> dict[str, str]:
    """Return the environment without settings of jax and taetpu."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_", "TAETPU_"))}
    return {**kept, "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}


def timed(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, str]:
    """The seconds of a process from its start to its end, and what it printed.

    Raises:
        RuntimeError: it failed.
    """
    began = time.perf_counter()
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with code {done.returncode}:\n{done.stderr[-2000:]}")
    return seconds, done.stdout


def run_study(base: Mapping[str, Any], arms: Mapping[str, Any], seeds: int, folder: Path) -> dict[str, Any]:
    """Run `taetpu run` in an empty folder; return its seconds, what packs spent theirs on, and the results."""
    folder.mkdir()
    file, root = folder / "study.yaml", folder / "runs"
    file.write_bytes(to_yaml({"study": NAME, "base": base, "seeds": seeds, "arms": arms}))
    environment = {**alone(), "TAETPU_CACHE": str(folder / "cache")}
    seconds, _ = timed(["-m", "taetpu", "run", str(file), "--root", str(root)], environment)
    results = json.loads((root / NAME / "results.json").read_text())
    trained = sum(len(arm["runs"]) for arm in results["arms"])
    if trained != (len(arms) + 1) * seeds or not (root / NAME / "report" / "index.html").exists():
        raise RuntimeError(f"the study is not whole: {trained} runs")
    times = [json.loads(file.read_text()) for file in (root / NAME / "times").glob("*.json")]
    packs = sum("runs" in each for each in times)  # the others are waits between packs
    return {"seconds": seconds, "parts": total_parts(times), "packs": packs, "results": results}


def run_peer(chosen: Mapping[str, Any], seed: int, folder: Path) -> dict[str, Any]:
    """Run a peer in a separate process; return its seconds and losses."""
    request = {**chosen, "seed": seed, "threads": cpu_cores(), "model": str(folder / f"{chosen['peer']}-{seed}.pt")}
    seconds, said = timed(["-m", "benchmarks.peers", json.dumps(request)], alone())
    return {"seconds": seconds, **json.loads(said)}


def measure(shape: Shape, steps: int, arms: int, seeds: int, peers: Sequence[str], peer_runs: int) -> dict[str, Any]:
    """Time the study and the peers' runs in turns."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = write_text(folder / "text.txt")
        with contest({peer: request(peer, shape, text) for peer in peers}) as ready:
            about = {peer: {key: ready[peer].about[key] for key in ("settings", "adamw")} for peer in peers}
        same = {"shape": shape.data, "text": str(text), "steps": steps}
        chosen = {peer: {**same, "peer": peer, **about[peer]} for peer in peers}
        before = range(peer_runs // 2)
        theirs = {peer: [run_peer(chosen[peer], seed, folder) for seed in before] for peer in peers}
        ours = run_study(baseline(shape, text, steps), dict(list(ARMS.items())[: arms - 1]), seeds, folder / "ours")
        for peer in peers:
            theirs[peer] += [run_peer(chosen[peer], seed, folder) for seed in range(len(before), peer_runs)]
    sizes = {"shape": shape.data, "steps": steps, "arms": arms, "seeds": seeds}
    return {**sizes, "about": about, "ours": ours, "peers": theirs}


def show(found: Mapping[str, Any]) -> str:
    """Return the measured and extrapolated times and their ratios, at most 80 columns wide."""
    runs, ours = found["arms"] * found["seeds"], found["ours"]
    shape = Shape(**found["shape"])
    loss = next(arm["mean"] for arm in ours["results"]["arms"] if arm["name"] == "baseline")
    parts = ", ".join(f"{part} {seconds:.1f} s" for part, seconds in ours["parts"].items())
    lines = [
        f"dim {shape.dim}, {shape.layers} layers, seq {shape.seq}, batch {shape.batch}, {found['steps']} steps",
        f"{found['arms']} arms x {found['seeds']} seeds = {runs} runs",
        "",
        f"taetpu run, timed whole: {ours['seconds']:.1f} s",
        f"  the time of its {ours['packs']} packs, of which some may train side by side:",
        *(f"    {line}" for line in wrap(parts, 74)),
        f"  validation loss of the baseline: {loss:.3f}",
    ]
    for peer, done in found["peers"].items():
        seconds = [run["seconds"] for run in done]
        each, about = statistics.mean(seconds), found["about"][peer]
        losses = ", ".join(f"{run['val'][-1]:.3f}" for run in done)
        lines += [
            "",
            f"{peer}, {len(done)} of {runs} runs timed: {', '.join(f'{s:.1f}' for s in seconds)} s",
            f"  extrapolated to {runs} runs at their mean: {each * runs:.1f} s",
            f"  which is {each * runs / ours['seconds']:.2f} times what the study takes",
            f"  validation loss of its runs: {losses}",
            f"  {about['settings']} attention, {about['adamw']} AdamW",
        ]
    return "\n".join(lines)


def main() -> None:
    """Time one study and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, choices=SHAPES, default=64)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--arms", type=int, choices=range(1, len(ARMS) + 2), default=len(ARMS) + 1)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--peers", nargs="+", choices=("gpt2", "gpt2-tuned", "x-transformers"), default=["gpt2"])
    parser.add_argument("--peer-runs", type=int, default=3, help="of each peer that are timed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    asked = parser.parse_args()
    print(shown_machine() + "\n", flush=True)
    found = measure(SHAPES[asked.dim], asked.steps, asked.arms, asked.seeds, asked.peers, asked.peer_runs)
    print(show(found))
    if asked.json:
        asked.json.write_text(json.dumps({"machine": machine(), **found}, indent=1))


if __name__ == "__main__":
    main()
