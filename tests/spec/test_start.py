"""The stored model that a run starts from: its tokens, and folders of other formats."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file

from taetpu.core.errors import UserError
from taetpu.data.tokenizers.bpe import BPEConfig
from taetpu.data.tokenizers.characters import ByteConfig, CharConfig
from taetpu.spec.start import StartConfig, StoredModel, read_start

LATIN = CharConfig().train("abc")
OTHER = [
    (LATIN, CharConfig().train("\u03b1bc"), "token 0 is 'a', and 'b' in the task"),
    (LATIN, BPEConfig(vocab_size=260).train("abcabc"), "task has 259"),
    (BPEConfig(vocab_size=256).train(""), ByteConfig().train(""), "token 0 is '!', and"),
    (CharConfig(unseen="drop").train("ab"), CharConfig(unseen="error").train("ab"), "not divided in the same way"),
    (LATIN, None, "the task has none"),
    (None, LATIN, "the model has none"),
]


def source(tokenizer, unit="a b <pad>"):
    return SimpleNamespace(tokenizer=tokenizer, unit=unit)


@pytest.mark.parametrize(("stored", "task", "problem"), OTHER)
def test_another_tokenizer_is_refused(stored, task, problem):
    with pytest.raises(UserError, match=problem) as caught:
        StoredModel("file", b"", stored).check_vocabulary(source(task))
    assert "vocabulary: drawn" in str(caught.value.remedy)


@pytest.mark.parametrize("config", [CharConfig(unseen="drop"), ByteConfig(), BPEConfig(vocab_size=260), None])
def test_equal_tokenizers_are_accepted(config, tmp_path):
    (tmp_path / "model").mkdir()
    save_file({"a": np.zeros(2)}, tmp_path / "model" / "model.safetensors")
    (tmp_path / "model" / "config.json").write_text(json.dumps({"tokens": "a b <pad>"}))
    if config is not None:
        (tmp_path / "model" / "tokenizer.json").write_text(config.train("abcab").to_json())
    stored = read_start(StartConfig(folder="."), 0, tmp_path)
    assert list(stored.arrays) == ["a"]
    stored.check_vocabulary(source(None if config is None else config.train("abcab")))


def test_other_tokens_without_a_tokenizer_are_refused():
    with pytest.raises(UserError, match=r"'a c <pad>', .* the task 'a b <pad>'") as caught:
        StoredModel("file", b"", None, {"tokens": "a c <pad>"}).check_vocabulary(source(None))
    assert "vocabulary: drawn" in str(caught.value.remedy)


def test_models_of_earlier_versions_state_no_tokens_and_are_accepted():
    StoredModel("file", b"", None).check_vocabulary(source(None))
    with pytest.raises(UserError, match="tokenizer"):
        StoredModel("file", b"", None).check_vocabulary(source(CharConfig().train("ab")))


def test_a_damaged_tokenizer_is_refused(tmp_path):
    save_file({"a": np.zeros(2)}, tmp_path / "model.safetensors")
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match="not a tokenizer") as caught:
        read_start(StartConfig(folder="."), 0, tmp_path)
    assert str(caught.value.file).endswith("tokenizer.json")


@pytest.mark.parametrize("weights", ["model.safetensors", "model-00001-of-00002.safetensors"])
def test_a_model_of_hugging_face_must_be_imported(tmp_path, weights):
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "config.json").write_text('{"model_type": "gpt2"}')
    save_file({"wte.weight": np.zeros((2, 2))}, tmp_path / "hub" / weights)
    with pytest.raises(UserError, match="Hugging Face") as caught:
        read_start(StartConfig(folder="hub"), 0, tmp_path)
    assert f"taetpu model import {tmp_path / 'hub'} " in str(caught.value.remedy)
    assert caught.value.path == ("folder",)
