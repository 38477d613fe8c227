"""`benchmarks.scaling`: a table and a plot of every panel."""

import json
import subprocess
import sys

import pytest
from benchmarks.scaling import PANELS, draw, show

PNG = b"\x89PNG\r\n\x1a\n"


def rows():
    """A step that takes as many milliseconds as its value, and studies of two kinds."""
    kinds = {panel: ("numbers", "structures") if panel == "arms" else ("a step",) for panel in PANELS}
    return [
        {"panel": panel, "kind": kind, "value": value, "median": value, "least": 0.9 * value, "most": 1.2 * value}
        for panel, (_, _, values) in PANELS.items()
        for kind in kinds[panel]
        for value in values
    ]


def test_every_panel_has_a_table_with_growth_factors():
    tables = show(rows()).split("\n\n")
    assert len(tables) == len(PANELS) + 1
    assert max(len(line) for table in tables for line in table.splitlines()) <= 80
    first = [line.split() for line in tables[0].splitlines()]
    assert first[1:3] == [["32", "32.00", "28.80-38.40"], ["64", "64.00", "57.60-76.80", "2.00", "x"]]
    assert tables[-1].startswith("added arms (structures)")


@pytest.mark.slow
def test_every_panel_is_drawn(tmp_path):
    draw(rows(), tmp_path / "plot.svg")
    svg = (tmp_path / "plot.svg").read_text()
    for what, unit, values in PANELS.values():
        assert f">{what}</text>" in svg
        assert f">{unit}</text>" in svg
        assert all(f">{value}</text>" in svg for value in values)
    assert (tmp_path / "plot.png").read_bytes().startswith(PNG)


@pytest.mark.nightly
def test_steps_and_studies_are_timed(tmp_path, one_core):
    out, file = tmp_path / "plot.svg", tmp_path / "found.json"
    command = ["--panels", "runs", "arms", "--points", "1", "--rounds", "2", "--seconds", "0.05", "--steps", "5"]
    command += ["--out", str(out), "--json", str(file)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scaling", *command], capture_output=True, text=True, check=True
    )
    found = json.loads(file.read_text())["rows"]
    assert [(row["panel"], row["kind"], row["value"]) for row in found] == [
        ("runs", "a step", 1), ("arms", "numbers", 1), ("arms", "structures", 1)
    ]  # fmt: skip
    assert all(0 < row["least"] <= row["median"] <= row["most"] for row in found)
    assert show(found) in done.stdout
    assert out.exists()
    assert out.with_suffix(".png").read_bytes().startswith(PNG)
