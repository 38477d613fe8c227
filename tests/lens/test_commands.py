"""The commands `taetpu lens sample`, `check` and `diff`."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.lens.test_knockout import with_weights
from typer.testing import CliRunner

from taetpu.cli.lens_options import ModelOptions
from taetpu.cli.main import app
from taetpu.core.errors import UserError
from taetpu.lens.check_run import CheckedLoss, check_losses
from taetpu.lens.generate import Sampling, generate
from taetpu.nn.position.absolute import LearnedConfig
from taetpu.store.digests import Damaged


@pytest.mark.slow
def test_a_sample_is_what_the_library_generates(lens, opened):
    (found,) = generate(opened, "the ", max_tokens=25, sampling=Sampling(0.5, top_k=9), seed=3)
    arguments = ("sample", "small/baseline/0", "--prompt", "the ", "--tokens", "25", "--temperature", "0.5")
    options = ("--top-k", "9", "--seed", "3")
    assert lens(*arguments, *options) == f"the {found.text}\n"
    (row,) = json.loads(lens(*arguments, *options, "--json"))
    assert (row["prompt"], row["text"], row["tokens"]) == ("the ", found.text, found.tokens.tolist())


@pytest.mark.slow
def test_without_a_prompt_the_prompt_of_the_run_is_used(lens, opened):
    shown = opened.decode(opened.data.prompt())
    assert lens("sample", "small/baseline/0", "--tokens", "5").startswith(shown)


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--temperature", "0"), ("--beams", "1")])
def test_token_numbers_of_prompt_and_sample_are_separated(lens, opened, monkeypatch, options):
    numbers = replace(opened, tokenizer=None, _programs={})
    monkeypatch.setattr(ModelOptions, "open", lambda _: numbers)
    prompt = opened.data.prompt()
    (found,) = generate(opened, prompt, max_tokens=3, sampling=Sampling(0))
    shown = " ".join(map(str, [*prompt, *found.tokens]))
    assert shown in lens("sample", "small/baseline/0", "--tokens", "3", *options).splitlines()


@pytest.mark.slow
def test_a_stored_loss_is_checked(lens, opened):
    (row,) = json.loads(lens("check", "small/baseline/0", "--json"))
    assert row["stored"] == opened.result["metrics"]["val/loss"]
    assert row["first"] == row["second"] == pytest.approx(row["stored"], abs=1e-5)
    assert row["agrees"] is True
    assert "yes" in lens("check", "small/baseline/0")


@pytest.mark.parametrize(
    ("first", "second", "agrees"), [(2.0, 2.0, True), (2.0, 2.1, False), (2.1, 2.1, False), (np.nan, np.nan, False)]
)
def test_a_loss_agrees_if_it_is_equal_twice_and_near_the_stored_one(first, second, agrees):
    assert vars(CheckedLoss("val", 2.0, first, second, 1e-3))["agrees"] is agrees


def test_a_changed_file_of_weights_is_damaged(lens, opened, trained):
    file = next((trained / "runs/small/runs/baseline").glob("1-*/model/model.safetensors"))
    before = file.read_bytes()
    try:
        weights = load_file(file)
        save_file({**weights, "embedding.weight": weights["embedding.weight"] + np.float32(0.1)}, file)
        with pytest.raises(Damaged) as caught:
            lens("check", "small/baseline/1")
        assert Path(str(caught.value.file)).name == "model.safetensors"
    finally:
        file.write_bytes(before)


def test_other_weights_do_not_give_the_stored_loss(opened):
    other = with_weights(opened, lambda weights: np.add(weights["norm.weight"], 1, out=weights["norm.weight"]))
    assert [loss.agrees for loss in check_losses(opened)] == [True]
    (loss,) = check_losses(other)
    assert (loss.agrees, loss.first == loss.second) == (False, True)


def test_only_differences_between_configs_are_shown(lens):
    found = json.loads(lens("diff", "small/baseline/0", "small/fast/0", "--json"))
    assert found == {"train.optimizer.lr": [0.01, 0.02]}
    text = lens("diff", "small/baseline/0", "small/fast/0")
    assert text.split() == ["setting", "baseline/0", "fast/0", "train.optimizer.lr", "0.01", "0.02"]
    assert "the same settings" in lens("diff", "small/baseline/0", "small/baseline/1")


def test_unknown_runs_are_refused(lens):
    with pytest.raises(UserError, match="no arm 'baselin'"):
        lens("sample", "small/baselin/0")


@pytest.mark.slow
def test_without_a_number_as_many_tokens_are_drawn_as_learned_positions_admit(lens, opened, monkeypatch):
    config = opened.config.model_copy(update={"position": LearnedConfig()})
    limited = replace(opened, config=config, _programs={})
    monkeypatch.setattr(ModelOptions, "open", lambda _: limited)
    found = json.loads(lens("sample", "any", "--prompt", "the quick", "--json"))
    assert len(found[0]["tokens"]) == opened.seq_len - len("the quick") + 1  # the last token needs no position
    with pytest.raises(UserError) as refused:
        lens("sample", "any", "--prompt", "the quick", "--tokens", "25")
    assert "--tokens 25 exceeds the 24" in str(refused.value)
    assert "--tokens 24 or fewer" in str(refused.value)


def test_a_wrong_option_is_refused_before_the_prompt_is_printed(trained, monkeypatch):
    monkeypatch.chdir(trained)
    done = CliRunner().invoke(app, ["lens", "sample", "small/baseline/0", "--prompt", "the", "--top-p", "1.5"])
    assert (done.output, str(done.exception).splitlines()[0]) == ("", "top_p is 1.5, expected above 0 and at most 1")


@pytest.mark.parametrize("file", ["picture.gif", "missing/a.png", "folder.png"])
@pytest.mark.parametrize(
    "command", ["perplexity", "attention", "scores", "logit-lens", "attribution", "norms", "embed", "probe"]
)
def test_files_are_checked_before_a_model_is_opened(lens, tmp_path, monkeypatch, command, file):
    def refuse(_):
        raise AssertionError("the model was opened")

    monkeypatch.setattr(ModelOptions, "open", refuse)
    (tmp_path / "folder.png").mkdir()
    texts = {"scores": (), "probe": ("labels.jsonl",)}.get(command, ("--text", "the fox"))
    out = tmp_path / (file.replace(".png", ".npz") if command == "embed" and "folder" not in file else file)
    with pytest.raises(UserError, match=r"unknown (chart|file) format|cannot write") as caught:
        lens(command, "small/baseline/0", *texts, "-o", str(out))
    assert str(caught.value.file) == str(out)


@pytest.mark.parametrize("command", ["logit-lens", "attribution"])
def test_positions_are_checked_before_a_model_computes(lens, monkeypatch, command):
    import taetpu.lens.attribution
    import taetpu.lens.logit_lens

    monkeypatch.delattr(taetpu.lens.logit_lens, "_build")
    monkeypatch.delattr(taetpu.lens.attribution, "_build")
    with pytest.raises(UserError, match=r"position 12 .* 7 tokens"):
        lens(command, "small/baseline/0", "--text", "the fox", "--position", "12")


@pytest.mark.slow
def test_a_second_call_takes_the_programs_of_the_first(trained, tmp_path):
    environment = os.environ | {"TAETPU_CACHE": str(tmp_path)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [
        sys.executable,
        "-m",
        "taetpu",
        "lens",
        "logit-lens",
        "small/baseline/0",
        "--root",
        "runs",
        "--text",
        "the",
    ]
    stored = []
    for _ in range(2):
        subprocess.run(command, cwd=trained, env=environment, check=True, capture_output=True)
        stored.append({file.name for file in tmp_path.glob("programs/*/jit_*-cache")})
    assert len(stored[0]) > 3
    assert stored[0] == stored[1]
