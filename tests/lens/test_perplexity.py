"""Perplexity: equal to the stored loss, to direct computation, and to windows written out."""

import json

import jax
import numpy as np
import pytest
from tests.suites import first_by_default

import taetpu
from taetpu.core.errors import UserError
from taetpu.lens.perplexity import perplexity, split_perplexity, windows
from taetpu.lens.token_texts import read_text

TEXT = "the lazy fox jumps over the brown dog. and the quick dog jumps over that."


def direct(opened, ids: np.ndarray) -> np.ndarray:
    """Return the loss of each token but the first, from the logits of one sequence."""
    out = opened(ids[:-1])
    logs = np.asarray(jax.nn.log_softmax(out.logits[0], -1))[~out.tokens.padding[0]]
    return -logs[np.arange(len(ids) - 1), ids[1:]]


@pytest.mark.parametrize("arm", ["baseline", "fast"])
def test_the_loss_of_the_validation_split_is_the_stored_loss(trained, arm):
    opened = taetpu.open_run(f"small/{arm}/0", root=trained / "runs", data_folder=trained)
    found = split_perplexity(opened, "val")
    stored = opened.result["metrics"]
    assert found.mean == pytest.approx(stored["val/loss"], abs=1e-5)
    assert found.bits_per_byte == pytest.approx(stored["val/bits_per_byte"], abs=1e-5)
    assert found.rows()[-1]["accuracy"] == pytest.approx(stored["val/accuracy"], abs=1e-6)


def test_the_text_of_the_validation_split_has_the_same_loss(opened):
    split = opened.data.evaluation("val")
    ids = np.append(split.tokens[0, 0], split.targets[split.weights > 0])
    found = perplexity(opened, [ids])
    assert len(found.losses) == len(ids) - 1
    assert found.mean == pytest.approx(opened.result["metrics"]["val/loss"], abs=1e-5)


def test_losses_of_a_short_text_are_those_of_its_logits(opened):
    ids = opened.tokenizer.encode(TEXT[:30])
    found = perplexity(opened, TEXT[:30])
    np.testing.assert_allclose(found.losses, direct(opened, ids), atol=1e-5)
    row = found.texts[0].row()
    assert (row["min"], row["max"]) == (found.losses.min(), found.losses.max())
    assert row["perplexity"] == pytest.approx(np.exp(found.losses.mean()))
    assert [one["token"] for one in found.texts[0].token_rows()] == list(TEXT[1:30])


@pytest.mark.slow
@pytest.mark.parametrize(("window", "stride"), first_by_default([(8, 3), (8, 8), (32, 32), (32, 1)]))
def test_windows_score_each_target_once(opened, window, stride):
    ids = opened.tokenizer.encode(TEXT)
    expected = np.zeros(len(ids) - 1)
    done = 0
    for start in range(0, len(ids) - 1, stride):
        end = min(start + window, len(ids) - 1)
        expected[done:end] = direct(opened, ids[start : end + 1])[done - start :]
        done = end
        if end == len(ids) - 1:
            break
    found = perplexity(opened, TEXT, window=window, stride=stride)
    np.testing.assert_allclose(found.losses, expected, atol=1e-5)
    assert sum(scored for *_, scored in windows(len(ids), window, stride)) == len(ids) - 1


@pytest.mark.slow
def test_other_texts_change_nothing(opened):
    texts = [TEXT, "the", "the quick brown fox " * 9]
    together = perplexity(opened, texts)
    for text, own in zip(texts, together.texts, strict=True):
        np.testing.assert_allclose(own.losses, perplexity(opened, text).losses, atol=1e-5)
    assert together.mean == pytest.approx(np.concatenate([own.losses for own in together.texts]).mean(), rel=1e-6)
    assert [row["text"] for row in together.rows()] == ["0", "1", "2", "all"]


@pytest.mark.parametrize(
    ("inputs", "options", "problem", "remedy"),
    [
        ("", {}, "input 0 contains no token", "one token"),
        (["the", "t"], {}, "input 1 has one", "two tokens"),
        ([1, 4000], {}, "4000 is not .*token", "Use numbers from 0 to 28"),
        ("the", {"window": 0}, "a window has 0 tokens", "at least 1"),
        ("the", {"window": 8, "stride": 9}, "the stride is 9, expected 1 to the window's 8", "from 1 to 8"),
    ],
)
def test_invalid_inputs_are_refused(opened, inputs, options, problem, remedy):
    with pytest.raises(UserError, match=problem) as caught:
        perplexity(opened, inputs, **options)
    assert remedy in str(caught.value.remedy)


def test_unknown_evaluation_sets_are_refused(opened):
    with pytest.raises(UserError, match="no evaluation set 'vla'") as caught:
        split_perplexity(opened, "vla")
    assert "Did you mean 'val'?" in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, ": No such file"), (b"", "text is empty"), (b"a\n\xff", "not UTF-8: byte 0xff")],
)
def test_unreadable_files_are_refused(tmp_path, content, problem):
    file = tmp_path / "story.txt"
    (tmp_path / "storyy.txt").write_text("near")
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match=problem) as caught:
        read_text(file)
    assert str(caught.value.file) == str(file)
    assert content is not None or "Did you mean 'storyy.txt'?" in str(caught.value.remedy)


def test_a_model_that_sees_the_next_token_is_refused(opened, draw):
    from dataclasses import replace

    from taetpu.core.config_parsing import load_config
    from taetpu.nn.lm import ModelConfig

    settings = {"dim": 16, "num_layers": 2, "mixer": {"kind": "attention", "num_heads": 2, "mask": "full"}}
    config = load_config(ModelConfig, settings).resolve()
    other = replace(opened, config=config)
    with pytest.raises(UserError, match="layer 0 of small"):
        perplexity(other, "the quick")


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_prints_the_losses_and_draws_them(lens, opened, tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    found = perplexity(opened, TEXT)
    text = lens("perplexity", "small/baseline/0", str(tmp_path / "a.txt"), "-o", str(tmp_path / "a.json"))
    assert f"{found.perplexity:.4g}" in text
    assert max(len(line) for line in text.splitlines() if not line.startswith("wrote ")) <= 80
    spec = json.loads((tmp_path / "a.json").read_text())
    assert [layer["mark"]["type"] for layer in spec["layer"]] == ["bar", "rule"]
    drawn = [row["loss"] for row in spec["layer"][0]["data"]["values"]]
    np.testing.assert_allclose(drawn, found.losses, atol=1e-6)


@pytest.mark.slow
def test_the_chart_has_the_positions_of_the_table(opened):
    found = perplexity(opened, ["the fox", "a dog"])
    table = [row for text in found.texts for row in text.token_rows()]
    spec = found.chart().to_dict()["layer"][0]
    drawn = spec["data"]["values"]
    assert [row["position"] for row in drawn] == [row["position"] for row in table] == [*range(1, 7), *range(1, 5)]
    assert [row["number"] for row in drawn] == [*range(1, 11)]  # one after the other
    shown = [row["token"].replace(" ", "·") for row in table]
    assert spec["encoding"]["x"]["axis"]["labelExpr"] == f"{json.dumps(shown, ensure_ascii=True)}[datum.value - 1]"
    assert [row["predicted"] for row in found.rows()] == [6, 4, 10]


@pytest.mark.slow
def test_the_command_measures_files_texts_and_numbers(lens, opened, tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    ids = " ".join(map(str, opened.tokenizer.encode("the fox")))
    arguments = (str(tmp_path / "a.txt"), "--text", "the dog", "--ids", ids, "--json", "--window", "16")
    data = json.loads(lens("perplexity", "small/baseline/0", *arguments))
    assert [row["tokens"] for row in data["texts"]] == [list(TEXT[1:]), list("he dog"), list("he fox")]
    assert (data["window"], data["stride"]) == (16, 16)
    split = json.loads(lens("perplexity", "small/baseline/0", "--split", "val", "--json"))
    assert split["mean"] == pytest.approx(opened.result["metrics"]["val/loss"], abs=1e-5)
    table = lens("perplexity", "small/baseline/0", "--text", "the dog", "--per-token")
    assert table.splitlines()[-1].split()[:2] == ["6", "g"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (("perplexity",), ("--text", "Ä E dogE")),
        (("sample", "--tokens", "2"), ("--prompt", "Ä E dogE")),
        (("attention",), ("--text", "Ä E dogE")),
        (("logit-lens",), ("--text", "Ä E dogE")),
        (("attribution",), ("--text", "Ä E dogE")),
        (("embed",), ("--text", "Ä E dogE")),
    ],
)
def test_commands_name_unknown_characters(lens, arguments, texts):
    command, *rest = arguments
    output = lens(command, "small/baseline/0", *texts, *rest)
    assert "warning: 3 characters" in output
    assert "vocabulary: 'Ä', 'E'" in output
    assert "warning" not in lens(command, "small/baseline/0", texts[0], "the dog", *rest)


@pytest.mark.slow
def test_windows_are_named_only_if_a_text_is_cut(lens):
    arguments = ("perplexity", "small/baseline/0", "--text", "the dog", "--window")
    assert "nats per token;" in lens(*arguments, "6")
    assert "nats per token, windows of 5 tokens;" in lens(*arguments, "5")
    assert "windows of 32 tokens" in lens("perplexity", "small/baseline/0", "--split", "val")


def test_unknown_words_are_named(spaced):
    assert spaced.tokenizer.find_unknown("the zz fox Ä") == ["zz", "Ä"]
    assert spaced.tokenizer.find_unknown("the fox") == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "text is missing"),
        (("--split", "val", "--text", "a"), "--split cannot be combined"),
        (("--ids", "1 x"), "'1 x' .*list of numbers"),
        (("--text", "the dog", "-o", "a.bmp"), "unknown chart format"),
    ],
)
def test_wrong_options_are_refused(lens, arguments, problem):
    with pytest.raises(UserError, match=problem):
        lens("perplexity", "small/baseline/0", *arguments)
