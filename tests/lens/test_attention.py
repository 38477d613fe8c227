"""Attention maps: equal to the model's weights, whatever is padded, of one head over training, drawn and written."""

import json

import numpy as np
import pytest

import taetpu
from taetpu.core.errors import UserError
from taetpu.lens.attention import attention_maps, head_progress
from taetpu.report.token_charts import FAINTER

TEXT = "the fox and the quick fox"


@pytest.fixture(scope="session")
def mixed(opened, draw):
    """A model with a recurrent layer, a layer with three heads, and a layer without a mixer."""
    from dataclasses import replace

    from taetpu.core.config_parsing import load_config
    from taetpu.nn.lm import ModelConfig

    settings = {"dim": 24, "num_layers": 4, "mixer": {"kind": "attention", "num_heads": 2}, "layers": {
        0: {"mixer": {"kind": "lstm"}}, 2: {"mixer": {"kind": "attention", "num_heads": 3}},
        3: {"mixer": {"kind": "none"}}}}  # fmt: skip
    config = load_config(ModelConfig, settings).resolve()
    model = draw(settings, vocab=29, seq=32)
    return replace(opened, model=model, config=config, name="mixed", run=None, step=None, _programs={})


def test_maps_are_the_weights_of_the_model_without_padding(opened):
    texts = [TEXT, "dog"]
    found = attention_maps(opened, texts)
    out = opened(texts, ["mixer.pattern"])
    for number, maps in enumerate(found):
        assert "".join(maps.texts) == texts[number]
        assert [*maps.patterns] == [0, 1]
        for layer, patterns in maps.patterns.items():
            assert patterns.shape == (2, len(texts[number]), len(texts[number]))
            np.testing.assert_allclose(patterns.sum(-1), 1, atol=1e-5)
            assert not np.triu(patterns, 1).any()
            whole = np.asarray(out.sites["mixer.pattern"][layer][number])[:, -len(texts[number]) :]
            np.testing.assert_allclose(patterns, whole[:, :, -len(texts[number]) :], atol=1e-6)
        (alone,) = attention_maps(opened, texts[number])
        np.testing.assert_allclose(alone.patterns[1], maps.patterns[1], atol=1e-5)


def test_layers_and_heads_are_selected(opened):
    (whole,) = attention_maps(opened, TEXT)
    (one,) = attention_maps(opened, TEXT, layer=-1, head=1)
    assert [(layer, head) for layer, head, _ in one.each()] == [(1, 1)]
    np.testing.assert_array_equal(one.patterns[1][0], whole.patterns[1][1])
    (column,) = attention_maps(opened, TEXT, head=0)
    assert [(layer, head) for layer, head, _ in column.each()] == [(0, 0), (1, 0)]


@pytest.mark.slow
def test_layers_with_other_mixers_are_left_out(mixed):
    (maps,) = attention_maps(mixed, TEXT)
    assert {layer: len(patterns) for layer, patterns in maps.patterns.items()} == {1: 2, 2: 3}
    assert maps.heads == {1: [0, 1], 2: [0, 1, 2]}


def test_rows_describe_each_head(opened):
    (maps,) = attention_maps(opened, TEXT)
    rows = maps.rows()
    assert [(row["layer"], row["head"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    pattern = maps.patterns[1][0]
    assert rows[2]["previous"] == pytest.approx(np.mean([pattern[i, i - 1] for i in range(1, len(TEXT))]))
    assert rows[2]["first"] == pytest.approx(pattern[1:, 0].mean())
    (short,) = attention_maps(opened, "t")
    assert short.rows()[0] == {
        "layer": 0, "head": 0, "entropy": pytest.approx(0), "self": 1.0, "previous": None, "first": None
    }  # fmt: skip


@pytest.mark.slow
def test_one_head_over_training(opened, trained):
    found = head_progress(opened, TEXT, 1, 0)
    assert found.steps == [10, 20, 30]
    early = taetpu.open_run("small/baseline/0", step=10, root=trained / "runs")
    np.testing.assert_array_equal(head_progress(early, TEXT, 1, 0).patterns, found.patterns)
    for model, pattern in zip((early, opened), found.patterns[[0, 2]], strict=True):
        np.testing.assert_allclose(pattern, attention_maps(model, TEXT)[0].patterns[1][0], atol=1e-6)
    assert np.abs(found.patterns[0] - found.patterns[-1]).max() > 1e-3
    assert head_progress(opened, TEXT, -1, 1, [20]).steps == [20]
    assert [row["step"] for row in found.rows()] == [10, 20, 30]


@pytest.mark.parametrize(
    ("options", "problem", "remedy"),
    [
        ({"layer": 7}, "layer 7 .* 4 layers", "Use 0 to 3"),
        ({"layer": -5}, "layer -5 does not exist", "-1 to -4 from the end"),
        ({"layer": 1, "head": 2}, "head 2 .* layer 1, which has 2 heads", "Use 0 to 1."),
        ({"head": 2}, "head 2 .* layer 1, which has 2 heads", "Use 0 to 1."),
        ({"layer": 0}, "layer 0 .*'lstm', .*no attention weights", "the layers 1, 2."),
        ({"layer": 3}, "layer 3 .*'none', .*no attention weights", "the layers 1, 2."),
    ],
)
def test_unknown_layers_and_heads_are_refused(mixed, options, problem, remedy):
    with pytest.raises(UserError, match=problem) as caught:
        attention_maps(mixed, TEXT, **options)
    assert remedy in str(caught.value.remedy)


def test_a_model_without_attention_is_refused(opened, draw):
    from dataclasses import replace

    from taetpu.core.config_parsing import load_config
    from taetpu.nn.lm import ModelConfig

    settings = {"dim": 16, "num_layers": 2, "mixer": {"kind": "gru"}}
    config = load_config(ModelConfig, settings).resolve()
    model = replace(opened, model=draw(settings, vocab=29, seq=32), config=config, _programs={})
    with pytest.raises(UserError, match="gru, compute no attention") as caught:
        attention_maps(model, TEXT)
    assert "mixer.out" in str(caught.value.remedy)


def test_texts_that_need_too_much_memory_are_refused(opened, monkeypatch):
    monkeypatch.setattr("taetpu.lens.inputs.MAX_NUMBERS", 1600)
    with pytest.raises(UserError, match="a text of 25 tokens has 2,500 attention weights in 4 heads") as caught:
        attention_maps(opened, TEXT)
    assert "at most 20 tokens" in str(caught.value.remedy)


def test_a_folder_without_a_run_has_no_steps(mixed):
    with pytest.raises(UserError, match=r"mixed .*not trained"):
        head_progress(mixed, TEXT, 1, 0)


def marks(spec):
    """Return the rows of the data of a chart with one kind of mark."""
    inner = spec.get("spec", spec)
    assert inner["mark"]["type"] == "rect"
    return (spec.get("data") or inner["data"])["values"]


@pytest.mark.slow
def test_pictures_show_the_weights(opened):
    (maps,) = attention_maps(opened, TEXT)
    grid = maps.chart().to_dict()
    rows = marks(grid)
    for layer, head, pattern in maps.each():
        own = [row for row in rows if (row["row"], row["column"]) == (f"layer {layer}", str(head))]
        drawn = np.zeros_like(pattern)
        for row in own:
            drawn[row["query"], row["key"]] = row["weight"]
        np.testing.assert_allclose(drawn, np.where(pattern >= FAINTER, pattern, 0), atol=1e-4)
    (one,) = attention_maps(opened, TEXT, layer=1, head=0)
    spec = one.chart().to_dict()
    assert spec["title"]["text"] == "layer 1, head 0 of small/baseline/0, step 30"
    assert json.dumps(["t", "h", "e", "·"])[1:-1] in spec["encoding"]["x"]["axis"]["labelExpr"]
    assert len(marks(spec)) == (one.patterns[1] >= FAINTER).sum()
    steps = head_progress(opened, TEXT, 1, 0).chart().to_dict()
    assert {row["column"] for row in marks(steps)} == {"10", "20", "30"}


def test_pictures_with_too_many_cells_are_refused(opened, monkeypatch):
    monkeypatch.setattr("taetpu.report.token_charts.MAX_MARKS", 50)
    with pytest.raises(UserError, match="cells, and at most 50 can be drawn") as caught:
        attention_maps(opened, TEXT)[0].chart()
    assert "a layer or" in str(caught.value.remedy)


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_shows_heads_and_writes_pictures_and_arrays(lens, opened, tmp_path):
    (maps,) = attention_maps(opened, TEXT)
    arguments = ("attention", "small/baseline/0", "--text", TEXT)
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<svg"), (".json", b"{"), (".npz", b"PK")):
        text = lens(*arguments, "-o", str(tmp_path / f"a{suffix}"))
        assert (tmp_path / f"a{suffix}").read_bytes().startswith(start)
    assert f"{maps.rows()[3]['entropy']:.3f}" in text
    assert max(map(len, text.splitlines())) <= 80 + len(str(tmp_path))
    with np.load(tmp_path / "a.npz", allow_pickle=False) as arrays:
        np.testing.assert_allclose(arrays["layer1"], maps.patterns[1], atol=1e-6)
        assert arrays["tokens"].tolist() == maps.tokens.tolist()
    data = json.loads(lens(*arguments, "--layer", "-1", "--head", "1", "--json"))
    assert [(one["layer"], one["head"]) for one in data["maps"]] == [(1, 1)]
    np.testing.assert_allclose(data["maps"][0]["weights"], maps.patterns[1][1], atol=1e-5)


@pytest.mark.slow
def test_the_command_shows_a_head_over_training(lens):
    arguments = ("attention", "small/baseline/0", "--text", TEXT, "--layer", "1", "--head", "0")
    data = json.loads(lens(*arguments, "--steps", "10,30", "--json"))
    assert [one["step"] for one in data["maps"]] == [10, 30]
    assert "20" in lens(*arguments, "--steps", "all")
    with pytest.raises(UserError, match=r"no model .*step 11\b"):
        lens(*arguments, "--steps", "11")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--steps", "all"), "--steps .*no head"),
        (("--steps", "x", "--layer", "1", "--head", "0"), "'x' .*list of numbers"),
        (("--layer", "2"), "layer 2 .* 2 layers"),
        (("--ids", "1 2"), "several texts"),
    ],
)
def test_wrong_options_are_refused(lens, arguments, problem):
    with pytest.raises(UserError, match=problem):
        lens("attention", "small/baseline/0", "--text", TEXT, *arguments)
