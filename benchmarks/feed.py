"""Training speed with the feed `host`, as a share of the speed with the feed `resident`.

Both train the same runs in one process and take turns, and the first turn of a round alternates.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.shapes import SHAPES, Shape, write_text
from taetpu.core.jax_setup import prepare_jax

RUNS = (1, 40)  # runs to train, as in `benchmarks.throughput`
FEEDS = ("resident", "host")
TARGET = 0.97


def measure(shape: Shape, text: Path, runs: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Return the rates of both feeds at one shape, and the ratio of `host` to `resident` within a round."""
    from benchmarks.contest import over_rounds, rate
    from benchmarks.ours import Ours

    pair = {feed: Ours(shape, text, runs=runs, feed=feed) for feed in FEEDS}
    for ours in pair.values():
        ours.window(seconds)  # dispatches get their size
    windows = [
        {feed: pair[feed].window(seconds) for feed in (FEEDS if i % 2 else reversed(FEEDS))} for i in range(rounds)
    ]
    return {
        "about": pair["host"].about,
        "windows": windows,
        "tokens_per_second": {feed: over_rounds(windows, lambda one, f=feed: rate(one[f])) for feed in FEEDS},
        "ratio": over_rounds(windows, lambda one: rate(one["host"]) / rate(one["resident"])),
    }


def show(shape: Shape, found: dict[str, Any]) -> str:
    """Return a line with the way of training, the rates and the ratio."""
    speed, ratio = found["tokens_per_second"], found["ratio"]
    rates = ", ".join(f"{feed} {speed[feed]['median']:,.0f}" for feed in FEEDS)
    least, most = ratio["least"], ratio["most"]
    met = "met" if ratio["median"] >= TARGET else "missed"
    return (
        f"dim {shape.dim}, {found['about']['way']}: {rates} tokens/s; "
        f"{ratio['median']:.3f} ({least:.3f}-{most:.3f}), {TARGET} is {met}"
    )


def main() -> None:
    """Print a line for each shape and each way of training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", type=int, nargs="+", choices=SHAPES, default=[32, 64])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each window")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    asked = parser.parse_args()
    prepare_jax()  # before jax is imported
    from benchmarks.contest import machine, shown_machine

    print(f"{shown_machine()}\n{asked.rounds} rounds of {asked.seconds:g} s each; medians, and ranges over rounds")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        text = write_text(Path(folder) / "text.txt")
        for dim in asked.dims:
            for runs in RUNS:
                found.append(
                    {"shape": SHAPES[dim].data, **measure(SHAPES[dim], text, runs, asked.rounds, asked.seconds)}
                )
                print(show(SHAPES[dim], found[-1]), flush=True)
    if asked.json:
        asked.json.write_text(json.dumps({"machine": machine(), "measured": found}, indent=1))


if __name__ == "__main__":
    main()
