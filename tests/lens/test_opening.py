"""Models are found by their names, and opened with what belongs to them."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import taetpu
from taetpu.core.errors import UserError
from taetpu.core.sites import Edit
from taetpu.nn.named_arrays import named_parameters


@pytest.fixture
def runs(trained):
    """Return a function that opens a run of the study."""
    return lambda name, **options: taetpu.open_run(name, root=trained / "runs", data_folder=trained, **options)


def same_weights(one, other) -> bool:
    mine, theirs = named_parameters(one.model), named_parameters(other.model)
    return mine.keys() == theirs.keys() and all(np.array_equal(mine[name], theirs[name]) for name in mine)


def test_a_run_has_several_names(runs, opened):
    assert (opened.name, opened.step, opened.run.seed) == ("small/baseline/0", 30, 0)
    for name in (opened.run.id, opened.run.id[:5], opened.run.where):
        assert same_weights(runs(name), opened)
    assert runs("small/fast/1").run.arm == "fast"
    assert not same_weights(runs("small/baseline/1"), opened)


def test_latest_is_the_run_that_finished_last(runs, trained):
    results = sorted((trained / "runs").glob("small/runs/*/*/result.json"), key=lambda file: file.stat().st_mtime_ns)
    assert runs("latest").run.where == str(results[-1].parent)


def test_earlier_steps_differ_from_the_trained_model(runs, opened):
    early = runs("small/baseline/0", step=10)
    assert early.step == 10
    assert not same_weights(early, opened)
    with pytest.raises(UserError, match=r"no model .*step 11\b") as caught:
        runs("small/baseline/0", step=11)
    assert "10, 20" in str(caught.value.remedy)


def test_what_belongs_to_a_run(opened):
    assert opened.run_config.train.steps == 30
    assert opened.metrics["val/loss"].step[-1] == 30
    assert opened.result["outcome"] == "finished"
    assert opened.data.evaluation("val").tokens.shape[1] == 32
    assert opened.site_layers["mixer.pattern"] == (0, 1)
    assert opened.site_layers["embed"] == ()


def test_other_data_than_that_of_training_is_refused(trained, tmp_path):
    (tmp_path / "words.txt").write_text("other words " * 100)
    other = taetpu.open_run("small/baseline/0", root=trained / "runs", data_folder=tmp_path)
    with pytest.raises(UserError, match="from the data") as caught:
        _ = other.data
    assert "--data-folder" in str(caught.value.remedy)


def test_copies_of_a_run_and_of_its_model_open(opened, tmp_path):
    shutil.copytree(opened.run.where, tmp_path / "copy")
    for place in (tmp_path / "copy", tmp_path / "copy" / "model"):
        copy = taetpu.open_run(place)
        assert same_weights(copy, opened)
        with pytest.raises(UserError, match="no metrics"):
            _ = copy.metrics


@pytest.mark.parametrize(
    ("name", "problem", "remedy"),
    [
        ("tiny/baseline/0", "no study 'tiny'", "small"),
        ("small/baselin/0", "no arm 'baselin'", "'baseline'"),
        ("small/baseline/7", "has no seed 7", "0, 1"),
        ("small/baseline", "matches 2 runs", "small/baseline/1"),
        ("ffffffff", "or run 'ffffffff'", "STUDY/ARM/SEED"),
        ("what is this", "or run 'what is this'", "latest"),
    ],
)
def test_unknown_names_are_refused(runs, name, problem, remedy):
    with pytest.raises(UserError, match=problem) as caught:
        runs(name)
    assert remedy in str(caught.value.remedy)


def test_a_folder_without_a_model_is_named(runs, lens, tmp_path):
    for name in (tmp_path, f"{tmp_path}/"):
        with pytest.raises(UserError, match=r"config\.json is missing") as caught:
            lens("perplexity", str(name), "--text", "the fox")
        assert (str(caught.value.file), caught.value.exit_code) == (str(name), 2)
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    with pytest.raises(UserError, match=r"config\.json has neither .*`model_type`"):
        runs(tmp_path)


def test_a_folder_with_the_name_of_a_run_does_not_hide_the_run(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small/baseline/0").mkdir(parents=True)
    assert runs("small/baseline/0").run.seed == 0


def test_texts_and_tokens_give_the_same_logits(opened):
    texts = ["the quick", "dog."]
    both = opened(texts)
    for number, text in enumerate(texts):
        alone = opened(opened.tokenizer.encode(text))
        mine = both.tokens.strip(number, np.asarray(both.logits[number]))
        np.testing.assert_allclose(mine, alone.tokens.strip(0, np.asarray(alone.logits[0])), atol=1e-5)
        assert opened.decode(both.tokens.of(number)) == text


def test_a_call_reads_and_edits_sites(opened):
    plain = opened("the quick", ["mixer.z", "residual"])
    assert plain.sites["mixer.z"].shape == (2, 1, 2, 9, 8)
    zero = Edit("mixer.out", lambda x, _: x * 0, layer=1)
    edited = opened("the quick", ["residual", "ffn.out"], [zero])
    np.testing.assert_array_equal(edited.sites["residual"][0], plain.sites["residual"][0])
    assert np.abs(np.asarray(edited.logits - plain.logits)).max() > 1e-3


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        ("", "input 0 contains no token"),
        (["a", ""], "input 1 contains no token"),
        ([], "input is empty"),
        ([3, 4000], "4000 is not .*token"),
        ([[1.5, 2.0]], "of token numbers"),
        (None, r"input is None \(NoneType\), .*token numbers"),
        (5, r"the input is 5 \(int\)"),
        (np.array(3), r"input is .*single number \(ndarray\)"),
        ({"a": 1}, r"the input is \{'a': 1\} \(dict\)"),
        ({3}, r"the input is \{3\} \(set\)"),
        ([None], "input 0 has shape .* and type object"),
        (["the", 3], "input 1 has shape"),
        ([[[1], [2, 3]]], "input 0 .*different lengths"),
    ],
)
def test_invalid_inputs_are_refused(opened, inputs, problem):
    with pytest.raises(UserError, match=problem):
        opened(inputs)


def test_one_site_is_read_by_its_name(opened):
    found = opened("the quick", sites="mixer.pattern").sites
    assert [*found] == ["mixer.pattern"]
    np.testing.assert_array_equal(found["mixer.pattern"], opened("the quick", ["mixer.pattern"]).sites["mixer.pattern"])
    with pytest.raises(UserError, match=r"'mixer\.none'"):
        opened("the quick", sites="mixer.none")


def test_a_damaged_config_is_named(opened, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"format": "taetpu"})[:-3])
    with pytest.raises(UserError, match="not JSON") as caught:
        taetpu.open_run(tmp_path)
    assert "config.json" in str(caught.value.file)


def test_an_edited_model_can_be_differentiated(opened):
    """Its compiled functions can be called within other functions that jax compiles or differentiates."""
    tokens, edit = np.arange(1, 9)[None], Edit("mixer.out", lambda x, v: x + v, layer=0, value="v")

    def logit(vector):
        return opened(tokens, edits=[edit], values={"v": vector}).logits[0, -1, 0]

    slope = jax.grad(logit)(jnp.zeros(16))
    step = 1e-2 * slope / jnp.linalg.norm(slope)
    difference = logit(step) - logit(-step)
    np.testing.assert_allclose(difference, 2 * slope @ step, rtol=1e-2)
    assert difference != 0
