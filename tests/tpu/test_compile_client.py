"""Stored answers of the TPU compiler are not used after a change to the source code."""

import pytest

from taetpu.tpu import compile_client


@pytest.mark.parametrize("name", ["block.py", "residual/single.py"])
def test_a_change_to_any_module_changes_the_key(tmp_path, monkeypatch, name):
    monkeypatch.setattr(compile_client, "files", lambda _: tmp_path)
    file = tmp_path / "nn" / name
    file.parent.mkdir(parents=True)
    file.write_text("a = 1\n")
    before = compile_client._source_hash.__wrapped__()
    file.write_text("a = 2\n")
    assert compile_client._source_hash.__wrapped__() != before
