"""JSON files of models are read with limits: no traceback, no hang, no memory beyond their size."""

import codecs
import json
import os
from pathlib import Path

import pytest
from safetensors.numpy import save_file

import taetpu
from taetpu.core.errors import DataWarning, UserError
from taetpu.core.json_files import LARGEST_FILE
from taetpu.data.tokenizers.characters import ByteConfig
from taetpu.interop.huggingface import import_folder

FILES = ("config.json", "generation_config.json", "model.safetensors.index.json")


@pytest.fixture
def folder(tmp_path, llama):
    config, tensors = llama
    names = sorted(tensors)
    save_file(tensors, tmp_path / "a.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4]}))
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(names, "a.safetensors")})
    )
    return tmp_path


def refused(folder, file, text):
    with pytest.raises(UserError, match=rf"{text}.*\n  where:  .*{file}(:\d+)?\n  remedy: \w+"):
        import_folder(folder)


CONTENTS = {
    "deep": (b'{"a": ' + b"[" * 100_000, "not JSON: recursion"),
    "digits": (b'{"a": ' + b"9" * 5000 + b"}", "not JSON: number out of range"),
    "bytes": (b'{"a": "\xff"}', "not JSON: invalid unicode"),
    "empty": (b"", "not JSON: EOF"),
    "list": (b"[1]", "expected a JSON object, got list"),
    "large": (b'{"a": "' + b"x" * LARGEST_FILE + b'"}', "more than 16,777,216 bytes"),
}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("content", CONTENTS)
def test_contents_refused(folder, file, content):
    data, text = CONTENTS[content]
    (folder / file).write_bytes(data)
    refused(folder, file, text)


PLACES = {
    "folder": (Path.mkdir, "this is a folder"),
    "pipe": (os.mkfifo, "this is a pipe, socket or device"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "this is a pipe, socket or device"),
    "loop": (lambda path: path.symlink_to(path.name), "cannot read: Too many levels"),
}


@pytest.mark.parametrize("file", [*FILES, "a.safetensors"])
@pytest.mark.parametrize("place", PLACES)
def test_places_refused(folder, file, place):
    make, text = PLACES[place]
    (folder / file).unlink()
    make(folder / file)
    refused(folder, file, text)


@pytest.mark.parametrize("file", ["vocab.json", "merges.txt", "tokenizer.json"])
def test_large_tokenizers_are_refused(folder, file):
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    for name in ["vocab.json", "merges.txt"] if file != "tokenizer.json" else [file]:
        (folder / name).write_text("{}")
    os.truncate(folder / file, 2**33)
    refused(folder, file, "this file has more than [0-9,]+ bytes")


@pytest.mark.parametrize("content", ["deep", "digits"])
def test_opened_folders_are_read_with_the_same_limits(folder, content):
    (folder / "config.json").write_bytes(CONTENTS[content][0])
    with pytest.raises(UserError, match=r"not JSON: .*\n  where:  .*config.json"):
        taetpu.open_run(folder)


@pytest.mark.parametrize("value", [1.5, "x", [1, "x"], -2, 2**31, True, {"a": 1}])
def test_tokens_of_generation_are_validated(folder, value):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    with pytest.raises(UserError, match=r"is not allowed: .*\n  where:  .*generation_config.json at eos_token_id"):
        import_folder(folder)


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({}, {}, {}),  # the config states null
        ({"pad_token_id": -1, "eos_token_id": 5}, {}, {"eos_token_id": 5}),
        ({"eos_token_id": 5, "bos_token_id": 2}, {"eos_token_id": [7]}, {"bos_token_id": 2, "eos_token_id": [7]}),
    ],
)
def test_special_tokens(folder, config, generation, expected):
    stored = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stored | config))
    (folder / "generation_config.json").write_text(json.dumps(generation))
    assert import_folder(folder).special_tokens == expected


def test_end_tokens_that_the_model_cannot_produce_are_named(folder, llama):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 99999]}))
    rows = llama[0]["vocab_size"]
    with pytest.warns(DataWarning, match=f"eos_token_id contains 99999, .* 0 to {rows - 1}"):
        assert import_folder(folder).special_tokens["eos_token_id"] == [2, 99999]


def test_a_byte_order_mark_is_skipped(folder):
    for name in FILES:
        (folder / name).write_bytes(codecs.BOM_UTF8 + (folder / name).read_bytes())
    (folder / "tokenizer.json").write_text(ByteConfig().train("").to_json(), encoding="utf-8-sig")
    tokenizer = import_folder(folder).tokenizer
    assert tokenizer is not None
    assert tokenizer.vocab_size == 256


def test_missing_tokens_are_those_of_the_class(folder):
    stored = json.loads((folder / "config.json").read_text())
    kept = {name: value for name, value in stored.items() if not name.endswith("_token_id")}
    (folder / "config.json").write_text(json.dumps(kept))
    (folder / "generation_config.json").unlink()
    assert import_folder(folder).special_tokens == {"bos_token_id": 1, "eos_token_id": 2}
