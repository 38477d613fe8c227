"""Fine-tuning with the tokenizer of the imported model: `tokenizer: start`, also with fewer tokens."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import transformers
from safetensors.numpy import load_file
from tests.tokenizer_files import train_bpe, write_tokenizer

import taetpu
from taetpu.cli.main import app
from taetpu.cli.on_tpu import study_files
from taetpu.core.errors import UserError
from taetpu.spec.loading import load_study

TEXT = "To be, or not to be: that is the question.\n" * 30
CORPUS = "a quick brown fox jumps " * 99 + TEXT  # whose first merges TEXT does not need
ROWS = 310  # ten more than the tokenizer has, as in Pythia
STUDY = """\
study: fine
base:
  task: {{kind: text, source: a.txt, seq_len: 8, val: 0.2, tokenizer: {tokenizer}}}
  model: {{dim: 16, num_layers: 1, mixer: {{kind: attention, num_heads: 2, bias: true}}, position: learned,
           norm: {{kind: layer}}, ffn: {{kind: gelu-tanh, hidden: 32, bias: true}}}}
  train: {{steps: 2, batch_size: 4, start: {start}, sample: none}}
seeds: 2
measure: {{primary: val/bits_per_byte}}
arms: {arms}
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """A folder with a text and with `gpt2`, imported from a model of transformers with a tokenizer."""
    folder = tmp_path_factory.mktemp("imported")
    settings = {"vocab_size": ROWS, "n_positions": 8, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_inner": 32}
    ends = dict.fromkeys(("bos_token_id", "eos_token_id"), 0)
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings, **ends)).save_pretrained(folder / "hf")
    (folder / "hf" / "tokenizer.json").write_text(train_bpe(CORPUS, 300).to_str())
    (folder / "a.txt").write_text(TEXT)
    app(["model", "import", str(folder / "hf"), "-o", str(folder / "gpt2")], standalone_mode=False)
    return folder


@pytest.fixture
def load(imported, tmp_path):
    """Return a function that loads a study in a copy of the folder."""
    shutil.copytree(imported, tmp_path, dirs_exist_ok=True)

    def loaded(tokenizer="start", start="gpt2", arms="{}"):
        (tmp_path / "study.yaml").write_text(STUDY.format(tokenizer=tokenizer, start=start, arms=arms))
        return load_study(tmp_path / "study.yaml")

    return loaded


def test_the_tokens_of_the_model_are_loaded(load, tmp_path):
    study = load()
    (arm,) = study.arms
    source, start = study.source(arm), study.start(arm, 0)
    stored = load_file(tmp_path / "gpt2" / "model.safetensors")
    assert source.vocab_size == ROWS
    assert source.tokenizer.encode("To be").tolist() == train_bpe(CORPUS).encode("To be").ids
    assert np.array_equal(
        start.fitting({"embedding.weight": (ROWS, 16)})["embedding.weight"], stored["embedding.weight"]
    )


def test_a_cropped_tokenizer_maps_the_embedding(load, tmp_path):
    study = load("{kind: start, crop: true}")
    (arm,) = study.arms
    source, start = study.source(arm), study.start(arm, 0)
    stored = load_file(tmp_path / "gpt2" / "model.safetensors")["embedding.weight"]
    kept = source.tokenizer.kept
    assert source.vocab_size == len(kept) < 298
    loaded = start.fitting({"embedding.weight": (len(kept), 16)})["embedding.weight"]
    for text in ("To be", "question"):
        ours, theirs = source.tokenizer.encode(text), load().source(load().arms[0]).tokenizer.encode(text)
        assert np.array_equal(loaded[ours], stored[theirs])
    assert start.digest != load().start(load().arms[0], 0).digest


def test_a_file_with_the_same_tokenizer_lacks_the_rows_of_the_model(load):
    study = load("{kind: file, path: gpt2/tokenizer.json}")
    with pytest.raises(UserError, match=r"310 .*298") as caught:
        study.runs()
    assert caught.value.path == ("base", "train", "start")
    assert "tokenizer: start" in caught.value.remedy
    cropped = load("{kind: file, path: gpt2/tokenizer.json, crop: true}")
    assert cropped.source(cropped.arms[0]).vocab_size < 298
    cropped.runs()


def test_a_vocabulary_larger_than_the_model_is_refused_with_both_sizes(load, tmp_path):
    about = json.loads((tmp_path / "gpt2" / "config.json").read_text())
    (tmp_path / "gpt2" / "config.json").write_text(json.dumps({**about, "vocab_size": 280}))
    with pytest.raises(UserError, match=r"280 .*298") as caught:
        load().runs()
    assert caught.value.path == ("base", "task", "tokenizer")
    assert "crop: true" in caught.value.remedy


@pytest.mark.parametrize(
    ("start", "problem"), [("none", "train.start"), ("'{seed}/gpt2'", "0/gpt2"), ("tokenless", "tokenless")]
)
def test_a_model_that_names_no_tokenizer_is_refused(load, tmp_path, start, problem):
    study = load(start=start)
    shutil.copytree(tmp_path / "gpt2", tmp_path / "tokenless", ignore=shutil.ignore_patterns("tokenizer.json"))
    with pytest.raises(UserError) as caught:
        study.runs()
    assert problem in caught.value.problem
    assert caught.value.path[:3] == ("base", "task", "tokenizer")


def test_a_tokenizer_is_copied_to_machines_with_the_study(load, tmp_path):
    study = load("{kind: file, path: gpt2/tokenizer.json, crop: true}")
    assert study_files(study, tmp_path / "study.yaml") == (tmp_path, ["study.yaml", "a.txt", "gpt2/tokenizer.json"])


@pytest.mark.slow
def test_studies_are_trained_from_each_kind(load, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("ranks.tiktoken", "tokenizer.model"):
        write_tokenizer(Path(name), TEXT)
    cropped = "{task.tokenizer: {kind: start, crop: true}}"
    others = [
        "{kind: file, path: gpt2/tokenizer.json}",
        "{kind: tiktoken, path: ranks.tiktoken, pattern: gpt2, special: {<|end|>: 305}}",
        "{kind: sentencepiece, path: tokenizer.model}",
    ]
    arms = [f"{'abc'[i]}: {{task.tokenizer: {other}, train.start: none}}" for i, other in enumerate(others)]
    load(arms=f"{{crop: {cropped}, {', '.join(arms)}}}")
    done = taetpu.run("study.yaml", root="runs")
    assert {arm["name"] for arm in done.results["arms"]} == {"baseline", "crop", "a", "b", "c"}
    for arm in ("baseline", "crop", "a", "b", "c"):
        opened = taetpu.open_run(f"runs/fine/{arm}/0")
        ids = opened.tokenizer.encode("to be")
        assert ids.max() < opened.vocab_size
        assert opened.tokenizer.decode(ids) == "to be"
        assert opened.data.fingerprint == opened.record["data"]
    app(["model", "export", "runs/fine/baseline/0", "-o", "exported"], standalone_mode=False)
    theirs = transformers.AutoTokenizer.from_pretrained("exported")
    assert theirs.encode("to be") == taetpu.open_run("runs/fine/baseline/0").tokenizer.encode("to be").tolist()
