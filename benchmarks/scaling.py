"""Scaling of cost: of a step with width, depth, sequence length and pack width, and of a study with its arms.

The points of a step's panel take turns. Studies are timed once each, as `benchmarks.study` does: in a fresh process,
with nothing compiled before.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from benchmarks.contest import contest, machine, over_rounds, request, shown_machine, take_turns
from benchmarks.shapes import SHAPES, baseline, write_text
from benchmarks.study import run_study
from taetpu.core.jax_setup import cpu_cores
from taetpu.report.charts import THEMES
from taetpu.report.verdict_style import LIGHT

MIDDLE, SMALL = SHAPES[64], SHAPES[32]
SEEDS = 2  # of each study

# By panel: its axes and values.
PANELS = {
    "dim": ("dim", "ms a step", (32, 64, 128, 256, 512)),
    "layers": ("layers", "ms a step", (1, 2, 4, 8, 16)),
    "seq": ("sequence length", "ms a step", (16, 32, 64, 128, 256)),
    "runs": ("runs in a pack", "ms a step and run", (1, 2, 4, 8, 16, 32)),
    "arms": ("added arms", "s from start to report", (1, 2, 4, 8, 16)),
}

Row = dict[str, Any]
"""A point: `panel, kind, value, median, least, most`."""


# --- measuring -------------------------------------------------------------------------------------------------------


def asked(panel: str, value: int, text: Path) -> dict[str, Any]:
    """Return the contestant at a point: one run with its default layout, or a pack over as many cores as divide it."""
    if panel == "runs":
        devices = max(count for count in range(1, cpu_cores() + 1) if value % count == 0)
        return request("ours", SMALL, text, layout={"width": value, "devices": devices})
    return request("ours", replace(MIDDLE, **{panel: value}), text, runs=1)


def time_steps(panel: str, values: Sequence[int], text: Path, rounds: int, seconds: float) -> list[Row]:
    """Return the milliseconds per step and run at each value: median over rounds, and range."""
    with contest({str(value): asked(panel, value, text) for value in values}) as ready:
        windows = take_turns(ready, rounds, seconds)
    rows = []
    for value in values:
        runs = value if panel == "runs" else 1

        def each(one: Any, name: str = str(value), runs: int = runs) -> float:
            return 1e3 * one[name]["seconds"] / one[name]["steps"] / runs

        rows.append({"panel": panel, "kind": "a step", "value": value, **over_rounds(windows, each)})
    return rows


def time_studies(counts: Sequence[int], steps: int, folder: Path, text: Path) -> list[Row]:
    """Return the seconds of whole studies by number of arms, for arms that differ in numbers and in structure."""
    rows = []
    for kind, arms in (("numbers", numbers), ("structures", structures)):
        for count in counts:
            found = run_study(baseline(SMALL, text, steps), arms(count), SEEDS, folder / f"{kind}-{count}")
            took = dict.fromkeys(("median", "least", "most"), found["seconds"])
            rows.append({"panel": "arms", "kind": kind, "value": count, **took})
    return rows


def numbers(count: int) -> dict[str, dict[str, Any]]:
    """Return arms that differ from the baseline in a number and share its program."""
    return {f"lr-{i}": {"train.optimizer.lr": 1e-3 * 2 ** (i / 8)} for i in range(1, count + 1)}


def structures(count: int) -> dict[str, dict[str, Any]]:
    """Return arms with a separate program each: other components, alone and combined."""
    kinds = {
        "model.norm": ("rms",),
        "model.position": ("rope", "sinusoidal", "none"),
        "model.ffn": ("relu", "gelu-erf", "swiglu"),
    }
    chosen = product(*((None, *some) for some in kinds.values()))
    arms = [{path: kind for path, kind in zip(kinds, arm, strict=True) if kind} for arm in chosen]
    return {"-".join(arm.values()): arm for arm in arms[1 : count + 1]}


# --- showing ---------------------------------------------------------------------------------------------------------


def show(rows: Sequence[Row]) -> str:
    """Return a table per panel: medians, and the ratio of each to the one before."""
    lines = []
    for panel, (what, unit, _) in PANELS.items():
        for kind in dict.fromkeys(row["kind"] for row in rows if row["panel"] == panel):
            points = [row for row in rows if (row["panel"], row["kind"]) == (panel, kind)]
            title = f"{what} ({kind})" if panel == "arms" else what
            lines += ["", f"{title:24}{unit:>24}{'range':>20}{'grows':>9}"]
            for before, row in zip([None, *points], points, strict=False):
                span = f"{row['least']:.2f}-{row['most']:.2f}" if panel != "arms" else ""
                grows = f"{row['median'] / before['median']:.2f} x" if before else ""
                lines.append(f"{row['value']:<24}{row['median']:>24.2f}{span:>20}{grows:>9}".rstrip())
    return "\n".join(lines[1:])


def chart(rows: Sequence[Row]) -> dict[str, Any]:
    """Return a Vega-Lite spec of the panels; model sizes have log axes, where a power law is a straight line."""
    there = [panel for panel in PANELS if any(row["panel"] == panel for row in rows)]
    panels = [_panel(panel, [row for row in rows if row["panel"] == panel]) for panel in there]
    spec = alt.concat(*panels, columns=3, spacing=30).resolve_scale(color="independent").to_dict()
    return {**spec, "config": {**THEMES["light"], "background": "white"}}


def _panel(panel: str, rows: Sequence[Row]) -> alt.LayerChart | alt.FacetChart:
    what, unit, _ = PANELS[panel]
    doubled = alt.Scale(type="log", base=2, nice=False, padding=10)
    counted = alt.Scale(zero=True, padding=10, nice=False)
    x_scale, y_scale = {"runs": (doubled, counted), "arms": (counted, counted)}.get(panel, (doubled, doubled))
    values = sorted({row["value"] for row in rows})
    x = alt.X("value:Q", title=what, scale=x_scale, axis=alt.Axis(values=values, format="d", grid=False))
    y = alt.Y("median:Q", title=unit, scale=y_scale, axis=alt.Axis(tickCount=5, format=".2~f"))
    legend = alt.Legend(title=None, orient="top-left") if panel == "arms" else None
    kind = alt.Color("kind:N", scale=alt.Scale(range=[LIGHT["better"], LIGHT["worse"]]), legend=legend)
    table = alt.Chart(alt.Data(values=list(rows))).encode(x=x, color=kind)  # pyright: ignore[reportArgumentType]
    line, ranges = table.mark_line(point=True).encode(y=y), table.mark_rule(strokeWidth=3, opacity=0.4)
    return (line + ranges.encode(y="least:Q", y2="most:Q")).properties(width=230, height=190)


def draw(rows: Sequence[Row], file: Path) -> None:
    """Write the plot as SVG and PNG."""
    spec = chart(rows)
    file.with_suffix(".svg").write_text(vl_convert.vegalite_to_svg(spec))
    file.with_suffix(".png").write_bytes(vl_convert.vegalite_to_png(spec, scale=2))


def main() -> None:
    """Measure, print the table and draw the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--panels", nargs="+", choices=PANELS, default=list(PANELS))
    parser.add_argument("--points", type=int, help="of each panel, the first so many; all when not given")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each window")
    parser.add_argument("--steps", type=int, default=200, help="of each study's runs")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/scaling.svg"), help="the plot; a PNG beside it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    told = parser.parse_args()
    print(shown_machine() + "\n", flush=True)
    rows = list[Row]()
    with tempfile.TemporaryDirectory() as name:
        text = write_text(Path(name) / "text.txt")
        for panel in told.panels:
            values = PANELS[panel][2][: told.points]
            if panel == "arms":
                rows += time_studies(values, told.steps, Path(name), text)
            else:
                rows += time_steps(panel, values, text, told.rounds, told.seconds)
    print(show(rows))
    draw(rows, told.out)
    if told.json:
        told.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
