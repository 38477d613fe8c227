"""Heatmaps on a terminal: numbers in units, colours, and what wide layers become."""

import json
import re

import numpy as np
import pytest
from rich.console import Console
from tests.cli.terminal import on_terminal

from taetpu.cli.heatmap import draw_heatmap, print_heatmap


def cells(layers: int, heads: int) -> dict[tuple[int, int], float]:
    values = np.random.default_rng(heads).standard_normal((layers, heads)) * 0.03
    return {(i, j): float(values[i, j]) for i in range(layers) for j in range(heads)}


def colours(values: dict[tuple[int, int], float]) -> list[tuple[int, ...]]:
    """Return the background of each cell."""
    drawn = draw_heatmap(values, "effect")
    assert drawn is not None
    segments = drawn.render(Console(color_system="truecolor"))
    found = [segment.style.bgcolor for segment in segments if segment.style and segment.style.bgcolor]
    return [tuple(colour.get_truecolor()) for colour in found]


def test_numbers_are_those_of_the_cells_in_a_named_unit():
    values = {(0, 0): 0.0123, (0, 1): -0.0456, (1, 0): 0.00001, (1, 1): 0.0349}
    drawn = draw_heatmap(values, "rise of loss", noun="nats")
    assert drawn is not None
    assert drawn.plain.splitlines() == [
        "rise of loss, in 0.01 nats", "layer 1   0.0 +3.5", "layer 0  +1.2 -4.6", "head        0    1",
    ]  # fmt: skip


@pytest.mark.parametrize(("largest", "unit", "shown"), [(0.999, "1", "+1.0"), (1.0, "1", "+1.0"), (99.6, "100", "+1.0"),
                                                        (0.0314, "0.01", "+3.1"), (3e-8, "1e-08", "+3.0")])  # fmt: skip
def test_the_largest_number_has_one_digit_before_the_point(largest, unit, shown):
    drawn = draw_heatmap({(0, 0): largest}, "effect")
    assert drawn is not None
    title, row, _ = drawn.plain.splitlines()
    assert title == ("effect" if unit == "1" else f"effect, in units of {unit}")
    assert row.split()[-1] == shown


@pytest.mark.parametrize("heads", [1, 8, 14, 15, 23, 24, 35, 36, 71])
def test_no_line_is_longer_than_80_columns(heads):
    drawn = draw_heatmap(cells(12, heads), "rise of the loss, in nats per target")
    assert drawn is not None
    lines = drawn.plain.splitlines()
    assert len(lines) == 14
    assert max(map(len, lines)) <= 80
    assert len({len(line) for line in lines[1:-1]}) == 1
    if heads <= 23:
        assert lines[-1].split() == ["head", *map(str, range(heads))]
    else:
        assert lines[-1].split() == ["heads", "0", "to", str(heads - 1)]


def test_layers_that_are_too_wide_have_no_picture():
    assert draw_heatmap(cells(2, 80), "effect") is None
    assert draw_heatmap({}, "effect") is None


def test_colours_grow_with_the_number_and_differ_by_its_sign():
    negative, zero, half, whole = colours({(0, 0): -2.0, (0, 1): 0.0, (0, 2): 1.0, (0, 3): 2.0})
    assert (negative, zero, whole) == ((0xD5, 0x56, 0x2F), (0xFF, 0xFF, 0xFF), (0x2A, 0x7F, 0xC1))
    assert all(low <= mid <= high for low, mid, high in zip(whole, half, zero, strict=True))


def test_missing_heads_are_blank():
    drawn = draw_heatmap({(0, 0): 1.0, (0, 1): 2.0, (1, 0): 1.0, (1, 1): float("nan")}, "effect")
    assert drawn is not None
    assert drawn.plain.splitlines()[1] == "layer 1  +1.0     "
    assert len(colours({(0, 0): 1.0, (0, 1): 2.0, (1, 0): 1.0})) == 3


def test_nothing_is_drawn_without_a_terminal(capsys):
    print_heatmap(cells(2, 2), "effect")
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_the_commands_show_the_picture_on_a_terminal(tmp_path):
    study = {
        "study": "tiny",
        "base": {
            "task": {"kind": "induction", "symbols": 8, "seq_len": 16},
            "model": {"dim": 16, "num_layers": 2, "mixer": {"kind": "attention", "num_heads": 2}},
            "train": {"steps": 3, "batch_size": 4},
        },
        "seeds": 1,
    }
    (tmp_path / "tiny.yaml").write_text(json.dumps(study))
    assert on_terminal(tmp_path, ["run", "tiny.yaml"], answer="", seconds=240)[0] == 0
    words = ["lens", "knockout", "latest", "--split", "val", "--documents", "6", "--no-controls"]
    code, shown = on_terminal(tmp_path, words, answer="", seconds=240)
    assert code == 0
    assert re.search(r"the loss, in [\d.e-]+ nats", shown)
    assert "48;2;255;255;255" in shown or "48;5;" in shown
