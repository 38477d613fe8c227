"""Charts over tokens: rounded legends, names of tokens, and distinct colours."""

import numpy as np
import pytest

from taetpu.report.token_charts import SHADES, attention_grid, attention_map, layer_chart


def uniform(tokens: int) -> np.ndarray:
    """Return the weights of a causal head that attends equally to all tokens."""
    return np.tril(np.ones((tokens, tokens))) / np.arange(1, tokens + 1)[:, None]


@pytest.mark.parametrize("norms", [[2.00461149216, 39.87654321], [2.00461149216, 2.2], [2.00461149216, 2.00461149216]])
def test_the_legend_of_norms_has_several_rounded_numbers(norms):
    spec = layer_chart(np.array([norms, norms]), ["embed", "0"], ["a", "b"], "", "norm", logarithmic=True).to_dict()
    colour = spec["encoding"]["color"]
    low, high = colour["scale"]["domain"]
    shown = colour["legend"]["values"]
    assert low <= min(norms) <= max(norms) <= high
    assert len(shown) > 1
    assert colour["legend"]["format"] == ".3~g"
    inner = [value for value in shown if value not in (low, high)]
    assert inner == [float(f"{value:.3g}") for value in inner]


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "heads", "named"), [(9, 4, True), (30, 4, True), (31, 2, False), (30, 8, False)])
def test_a_grid_names_tokens_where_they_fit(tokens, heads, named):
    texts = [f"t{i}" for i in range(tokens)]
    grid = attention_grid({("layer 0", str(head)): uniform(tokens) for head in range(heads)}, texts, "").to_dict()
    for axis in ("x", "y"):
        found = grid["spec"]["encoding"][axis]["axis"]
        assert ('"t8"' in found.get("labelExpr", "")) is named
        assert named or found["values"] == ([0, 20] if tokens == 31 else [0, 10, 20])


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [5, 30, 95])
def test_equal_attention_has_a_visible_colour(tokens):
    grid = attention_grid({("layer 0", "0"): uniform(tokens)}, ["t"] * tokens, "").to_dict()
    scale = grid["spec"]["encoding"]["color"]["scale"]
    assert scale["range"] == SHADES
    place = (1 / tokens) ** scale["exponent"]  # in the colours, whose second one is at 0.25
    assert place == pytest.approx(0.25, abs=0.06)
    (rows,) = (grid["data"]["values"],)
    assert len(rows) == tokens * (tokens + 1) // 2  # the weights of 95 tokens are drawn


@pytest.mark.slow
def test_faint_weights_are_left_out_of_pictures_with_many_cells(monkeypatch):
    pattern = np.array([[1.0, 0.0], [0.996, 0.004]])

    def drawn():
        return [row["weight"] for row in attention_map(pattern, ["a", "b"], "").to_dict()["data"]["values"]]

    assert drawn() == [1.0, 0.996, 0.004]
    monkeypatch.setattr("taetpu.report.token_charts.MAX_MARKS", 2)
    assert drawn() == [1.0, 0.996]
