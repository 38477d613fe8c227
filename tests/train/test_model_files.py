"""Damaged files of stored models are refused with their place."""

import json

import pytest
from tests.interop.cases import imported

from taetpu.core.errors import UserError
from taetpu.core.model_interface import Interface
from taetpu.train.model_io import from_files, to_files


@pytest.fixture(scope="module")
def files():
    config, model = imported("llama-linear")
    return to_files(model, config.resolve(), interface=Interface(11), seq_len=12, tokenizer=None)


RECORDS = {
    "model": ({"model": None}, "model"),
    "vocabulary": ({"vocab_size": "x"}, "vocab_size"),
    "length": ({"seq_len": -5}, "seq_len"),
    "memory": ({"vocab_size": 2**40}, "vocab_size"),
    "plugins": ({"plugins": 5}, "plugins"),
    "tokens": ({"special_tokens": {"eos_token_id": "x"}}, "special_tokens"),
}


@pytest.mark.parametrize("record", RECORDS)
def test_records_refused(files, record):
    change, path = RECORDS[record]
    content = json.dumps({**json.loads(files["config.json"]), **change, "later": 1}).encode()
    with pytest.raises(UserError, match=rf"is not allowed: .*\n  where:  here/config.json at {path}"):
        from_files({**files, "config.json": content}, "here")


@pytest.mark.parametrize("content", [b"", b"[]", b'{"a": ' + b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}", b"{}"])
def test_other_contents_are_refused(files, content):
    with pytest.raises(UserError, match=r"\n  where:  here/config.json"):
        from_files({**files, "config.json": content}, "here")
    with pytest.raises(UserError, match=r"safetensors file: .*\n  where:  here/model.safetensors\n  remedy: Copy"):
        from_files({**files, "model.safetensors": content}, "here")
