"""Probes: what can be read is found, what cannot is not, and a control task shows memorisation."""

import json

import numpy as np
import pytest

from taetpu.core.errors import UserError
from taetpu.lens.label_files import read_labels
from taetpu.lens.probe import cross_validate, fit_softmax, probe

WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog")
TEXTS = [" ".join(np.random.default_rng(seed).permutation(WORDS)[:5]) for seed in range(12)]


VOWELS = [["vowel" if char in "aeiou" else "other" for char in text] for text in TEXTS]


@pytest.mark.slow
def test_a_property_of_the_token_can_be_read_from_its_embedding(opened):
    spaces = [["space" if char == " " else "other" for char in text] for text in TEXTS]
    found = probe(opened, TEXTS, spaces, "embed")
    (layer,) = found.layers
    assert (layer.layer, found.per, found.labels, found.folds) == (None, "token", ["other", "space"], 5)
    assert found.examples == sum(map(len, TEXTS))
    assert layer.accuracy.mean() > 0.99
    assert layer.majority.mean() < 0.85
    row = layer.row()
    assert row["selectivity"] == pytest.approx(row["accuracy"] - row["control"])


@pytest.mark.slow
def test_the_token_before_is_read_where_a_head_has_written_it(made):
    """Head 0.0 of the hand-made model writes the token before into the stream; the embedding does not contain it."""
    texts = ["".join(np.random.default_rng(seed).choice([*"abefio"], 12)) for seed in range(20)]
    before = [[None, *("vowel" if char in "aeio" else "other" for char in text[:-1])] for text in texts]
    found = probe(made, texts, before, "residual")
    assert [layer.layer for layer in found.layers] == [0, 1]
    assert found.examples == 20 * 11
    assert found.layers[0].accuracy.mean() > 0.99
    assert found.layers[0].control.mean() > 0.99  # the current token, one of many, suffices for its random label
    first = probe(made, texts, before, "embed").layers[0]
    assert first.accuracy.mean() < first.majority.mean() + 0.05


@pytest.mark.slow
def test_the_control_task_gives_token_types_random_labels(opened):
    """A probe of one-hot tokens memorises the labels of the control task, so its selectivity is small."""
    found = probe(opened, TEXTS, VOWELS, "embed", folds=3, seed=3).layers[0]
    again = probe(opened, TEXTS, VOWELS, "embed", folds=3, seed=3).layers[0]
    np.testing.assert_array_equal(found.control, again.control)
    assert found.control.mean() > found.majority.mean() - 0.2


def test_labels_of_texts(opened):
    texts = [" ".join(np.random.default_rng(seed).permutation(WORDS)[:5]) for seed in range(48)]
    labels = ["has fox" if "fox" in text else "none" for text in texts]
    found = probe(opened, texts, labels, "embed", pool="mean", folds=4)
    assert (found.per, found.examples, len(found.layers[0].accuracy)) == ("text", 48, 4)
    assert found.layers[0].accuracy.mean() > found.layers[0].majority.mean()


@pytest.mark.slow
def test_folds_keep_texts_together():
    """With one random label for each text, a probe that saw no token of the text cannot know its label."""
    rng = np.random.default_rng(0)
    centres, owners = rng.standard_normal((40, 60)), np.repeat(np.arange(40), 10)
    x, y = centres[owners] + 0.01 * rng.standard_normal((400, 60)), rng.integers(0, 2, 40)[owners]
    apart, _ = cross_validate(x, y, owners % 5)
    mixed, _ = cross_validate(x, y, rng.integers(0, 5, 400))
    assert apart.mean() < 0.75
    assert mixed.mean() > 0.95


def test_repeated_texts_share_a_fold(opened):
    texts = TEXTS[:2] * 5
    with pytest.raises(UserError, match=r"5 folds .* 2 different texts") as caught:
        probe(opened, texts, [str(i % 2) for i in range(10)])
    assert "Use 2 folds, or more texts." in str(caught.value.remedy)


def test_the_regression_has_the_least_loss():
    """The gradient of the mean cross entropy and the penalty vanishes."""
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((60, 3)), rng.integers(0, 3, 60)
    weights, bias = fit_softmax(x, y, 3, 0.1)
    scores = x @ weights + bias
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    apart = (shares - np.eye(3)[y]) / 60
    np.testing.assert_allclose(x.T @ apart + 0.1 * weights, 0, atol=1e-4)
    np.testing.assert_allclose(apart.sum(0), 0, atol=1e-4)


@pytest.mark.parametrize(
    ("labels", "options", "problem", "remedy"),
    [
        (["a"] * 11, {}, "11 labels for 12 texts", "each text"),
        (["a"] * 12, {}, "labels are 'a'", "two different labels"),
        ([[None] * len(text) for text in TEXTS], {}, "labels are missing", "two different labels"),
        ([["a"], *VOWELS[1:]], {}, "input 0 has 1 labels for", "each token"),
        (["a", *VOWELS[1:]], {}, "input 0 .*the whole text", "one form"),
        (VOWELS, {"folds": 99}, "99 folds .* 12 different texts", "Use 2 to 12 folds"),
        (VOWELS, {"layer": 5}, "layer 5 does not exist", "Use 0 to 1"),
        (VOWELS, {"site": "mixer.pattern"}, "axes of positions", "taetpu lens attention"),
    ],
)
def test_invalid_requests_are_refused(opened, labels, options, problem, remedy):
    with pytest.raises(UserError, match=problem) as caught:
        probe(opened, TEXTS, labels, **options)
    assert remedy in str(caught.value.remedy)


# --- files and the command --------------------------------------------------------------------------------------------


def test_files_with_labels(tmp_path):
    (tmp_path / "a.csv").write_text('text,label\n"a dog, here",animal\na car,thing\n')
    assert read_labels(tmp_path / "a.csv") == (["a dog, here", "a car"], ["animal", "thing"])
    (tmp_path / "a.jsonl").write_text('{"text": "ab", "labels": ["x", null]}\n\n{"ids": [1, 2], "label": 3}\n')
    assert read_labels(tmp_path / "a.jsonl") == (["ab", [1, 2]], [["x", None], 3])


@pytest.mark.parametrize(
    ("name", "content", "problem", "line"),
    [
        ("a.txt", "a", "unknown file format", None),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text"', "not JSON", 2),
        ("a.jsonl", "[1]\n", "expected an object", 1),
        ("a.jsonl", '{"text": "a"}\n', "label and labels, .*text", 1),
        ("a.csv", "words,label\na,b\n", "text and ids, .*words, label", 2),
    ],
)
def test_wrong_files_are_refused(tmp_path, name, content, problem, line):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=problem) as caught:
        read_labels(tmp_path / name)
    assert caught.value.line == line


@pytest.mark.slow
def test_the_command(lens, opened, tmp_path):
    lines = [json.dumps({"text": text, "labels": own}) for text, own in zip(TEXTS, VOWELS, strict=True)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    arguments = ("probe", "small/baseline/0", str(tmp_path / "a.jsonl"), "--folds", "3")
    text = lens(*arguments, "-o", str(tmp_path / "a.json"))
    found = probe(opened, TEXTS, VOWELS, folds=3)
    row = found.rows()[1]
    assert f"{row['accuracy']:.3f} ± {row['accuracy_error']:.3f}" in text
    assert max(len(line) for line in text.splitlines() if "wrote" not in line) <= 80
    spec = json.loads((tmp_path / "a.json").read_text())
    points = spec["data"]["values"]
    assert {(point["layer"], point["task"]) for point in points} == {
        (layer, task) for layer in "01" for task in ("probe", "control task", "most frequent label")
    }
    data = json.loads(lens(*arguments, "--json"))
    assert data["layers"][1]["accuracy"] == pytest.approx(row["accuracy"])
