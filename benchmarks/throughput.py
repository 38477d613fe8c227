"""Training speed of one run and of a pack in tokens per second, compared with two PyTorch peers and the matmul rate.

All contestants take turns in one run, so that whatever else the machine does meets them alike.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.contest import Round, contest, machine, over_rounds, rate, request, shown_machine, take_turns
from benchmarks.shapes import SHAPES, Shape, write_text

RUNS = 40  # runs to train: 8 arms on 5 seeds, which determine the width of the pack
OURS = {"one run": {"runs": 1}, "packed": {"runs": RUNS}}
PEERS = ("gpt2", "gpt2-tuned", "x-transformers")


def measure(shape: Shape, text: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """Results at one shape: contestants, their rates, and ratios."""
    more = {**OURS, **{peer: {} for peer in PEERS}, "matmul": {}}
    with contest({name: request(name, shape, text, **asked) for name, asked in more.items()}) as ready:
        about = {name: child.about for name, child in ready.items()}
        bounds = {our: request("products", shape, text, layout=about[our]["layout"]) for our in OURS}
        with contest({products(our): asked for our, asked in bounds.items()}) as alone:
            windows = take_turns({**ready, **alone}, rounds, seconds)
    return {"shape": shape.data, "about": about, "windows": windows, **compare(windows, about)}


def products(our: str) -> str:
    """Return the name of the contestant that computes only the matmuls of another's steps."""
    return f"products of {our}"


def compare(windows: Sequence[Round], about: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Tokens a second of each, ratios of ours to each peer, and ours as shares of the matmul rate.

    Each value is the median over rounds of what was computed within a round, with its range. `bound` is the share that
    the products of a step reach when there is nothing else to do.
    """

    def share(one: Round, name: str) -> float:
        return about[name]["flops_per_token"] * rate(one[name]) / rate(one["matmul"], "flops")

    def bound(one: Round, name: str) -> float:
        return rate(one[products(name)], "flops") / rate(one["matmul"], "flops")

    return {
        "tokens_per_second": {n: over_rounds(windows, lambda one, n=n: rate(one[n])) for n in (*OURS, *PEERS)},
        "ratio": {
            our: {peer: over_rounds(windows, lambda one, a=our, b=peer: rate(one[a]) / rate(one[b])) for peer in PEERS}
            for our in OURS
        },
        "share": {our: over_rounds(windows, lambda one, a=our: share(one, a)) for our in OURS},
        "bound": {our: over_rounds(windows, lambda one, a=our: bound(one, a)) for our in OURS},
        "matmul_flops_per_second": over_rounds(windows, lambda one: rate(one["matmul"], "flops")),
    }


def show(found: Mapping[str, Any]) -> str:
    """Return the table of one shape, at most 80 columns wide."""
    shape, speed = Shape(**found["shape"]), found["tokens_per_second"]
    lines = [
        f"dim {shape.dim}, {shape.layers} layers, seq {shape.seq}, batch {shape.batch}",
        f"{'':14}{'tokens/s':>10}{'of matmul':>11}  {'one run is':21}{'packed is':21}".rstrip(),
    ]
    for name, tokens in speed.items():
        line = f"{name:14}{tokens['median']:>10,.0f}"
        if name in OURS:
            way = f"{found['about'][name]['way']}; its products alone: {found['bound'][name]['median']:.0%}"
            line += f"{found['share'][name]['median']:>11.0%}  {way}"
        else:
            line += " " * 13 + "".join(f"{_times(found['ratio'][our][name]):21}" for our in OURS)
        lines.append(line.rstrip())
    ways = {name: found["about"][name]["way"] for name in PEERS}
    return "\n".join([*lines, *(f"  {name}: {way}" for name, way in ways.items())])


def _times(ratio: Mapping[str, float]) -> str:
    return f"{ratio['median']:.2f} x ({ratio['least']:.2f}-{ratio['most']:.2f})"


def main() -> None:
    """Print the table of each shape once it is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", type=int, nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each window")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    asked = parser.parse_args()
    print(shown_machine())
    print(f"{asked.rounds} rounds of {asked.seconds:g} s each; medians, and ranges over rounds in brackets")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        text = write_text(Path(folder) / "text.txt")
        for dim in asked.dims:
            found.append(measure(SHAPES[dim], text, asked.rounds, asked.seconds))
            print("\n" + show(found[-1]), flush=True)
    if asked.json:
        asked.json.write_text(json.dumps({"machine": machine(), "shapes": found}, indent=1))


if __name__ == "__main__":
    main()
