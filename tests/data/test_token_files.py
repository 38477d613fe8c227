"""Token files of other programs are read token by token as they were written, or refused with place and remedy."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.token_writers import write_llm_c, write_megatron, write_raw

from taetpu.core.errors import UserError
from taetpu.data.base import train_windows
from taetpu.data.token_files import TokenStream, check_dtype, open_token_file

SMALL = np.random.default_rng(0).integers(0, 50257, 4000).tolist()
LARGE = np.random.default_rng(1).integers(0, 128256, 4000).tolist()


def npy(path, tokens, dtype):
    np.save(path, np.array(tokens, dtype))
    return path


FORMATS = {
    "nanoGPT": (lambda path: write_raw(path, SMALL), SMALL, None),
    "OLMo, uint32": (lambda path: write_raw(path, LARGE, "<u4"), LARGE, "uint32"),
    "llm.c": (lambda path: write_llm_c(path, SMALL), SMALL, None),
    "llm.c, Llama 3": (
        lambda path: write_llm_c(path, LARGE, magic=20240801, version=7, dtype="<u4"), LARGE, None),
    "build-nanogpt": (lambda path: npy(path.with_suffix(".npy"), SMALL, "uint16"), SMALL, None),
    "npy of int64": (lambda path: npy(path.with_suffix(".npy"), LARGE, "int64"), LARGE, None),
    "Megatron": (lambda path: write_megatron(path, [[SMALL[:5], SMALL[5:9]], [SMALL[9:]]]), SMALL, None),
    "Megatron, int32": (lambda path: write_megatron(path, [[LARGE]], dtype="<i4", code=4), LARGE, None),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_files_are_read_as_they_were_written(tmp_path, name):
    write, tokens, dtype = FORMATS[name]
    file = open_token_file(write(tmp_path / "train.bin"), dtype)
    assert file.tokens.tolist() == tokens
    assert isinstance(file.tokens, np.memmap)
    check_dtype(file, 128256)


def test_documents_of_megatron(tmp_path):
    file = open_token_file(write_megatron(tmp_path / "a.bin", [[[1, 2], [3]], [[4]], [[5], [6, 7]]]))
    assert file.documents is not None
    assert file.documents.tolist() == [0, 3, 4]
    assert open_token_file(tmp_path / "a.idx").path == tmp_path / "a.bin"


# --- bad files -------------------------------------------------------------------------------------------------------


def _change(path, at, value):
    content = bytearray(path.read_bytes())
    content[at : at + len(value)] = value
    path.write_bytes(content)
    return path


def _without(path, count):
    path.write_bytes(path.read_bytes()[:-count])
    return path


DAMAGED = {  # how it is written, and values of the message
    "cut in the middle of a token": (lambda p: _without(write_raw(p, SMALL), 1), ("7,999", "uint16")),
    "empty": (lambda p: write_raw(p, []), ("empty",)),
    "text": (lambda p: write_raw(p.with_suffix(".txt"), SMALL), ("a.txt",)),
    "a newer version": (lambda p: write_llm_c(p, SMALL, version=9), ("version 9",)),
    "fewer tokens than the header says": (lambda p: _without(write_llm_c(p, SMALL), 2), ("4,000", "7,998")),
    "more tokens than the header says": (
        lambda p: _change(write_llm_c(p, SMALL), 8, struct.pack("<i", 3999)), ("3,999", "8,000")),
    "a negative count": (lambda p: _change(write_llm_c(p, SMALL), 8, struct.pack("<i", -1)), ("-1", "8,000")),
    "npy, cut": (lambda p: _without(npy(p.with_suffix(".npy"), SMALL, "uint16"), 100), ()),
    "npy of real numbers": (lambda p: npy(p.with_suffix(".npy"), [0.5], "float32"), ("float32",)),
    "npy of two axes": (lambda p: npy(p.with_suffix(".npy"), [[1, 2]], "uint16"), ("(1, 2)",)),
    "Megatron, tokens cut": (lambda p: _without(write_megatron(p, [[SMALL]]), 2), ("4,000", "7,998")),
    "Megatron, index cut": (lambda p: _without(write_megatron(p, [[SMALL]]).with_suffix(".idx"), 8), ("1 sequences",)),
    "Megatron, another type": (lambda p: write_megatron(p, [[SMALL]], code=6), ("type 6",)),
    "Megatron, overlapping": (
        lambda p: _change(write_megatron(p, [[SMALL[:2], SMALL[2:]]]).with_suffix(".idx"), 50, b"\2"), ("a.bin",)),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_refused(tmp_path, name):
    write, values = DAMAGED[name]
    path = write(tmp_path / "a.bin")
    with pytest.raises(UserError) as caught:
        open_token_file(path)
    assert [value for value in (str(tmp_path), *values) if value not in caught.value.problem] == []
    assert caught.value.remedy


@pytest.mark.parametrize(("written", "read"), [("<u4", "uint16"), ("<u2", "uint32")])
@pytest.mark.parametrize("tokens", [SMALL, [*range(300)]])
def test_another_type_of_the_tokens_is_noticed(tmp_path, written, read, tokens):
    path = write_raw(tmp_path / "a.bin", tokens, written)
    with pytest.raises(UserError) as caught:
        check_dtype(open_token_file(path, read), 50257)
    assert str(path) in caught.value.problem
    assert caught.value.path == ("dtype",)
    assert np.dtype(written).name in str(caught.value.remedy)


def test_numbers_of_64_bits_are_noticed(tmp_path):
    path = write_raw(tmp_path / "a.bin", SMALL, "<i8")
    for dtype in ("uint16", "uint32"):
        with pytest.raises(UserError) as caught:
            check_dtype(open_token_file(path, dtype), 50257)
        assert str(path) in caught.value.problem
    assert "64" in caught.value.problem


def test_a_dtype_that_contradicts_the_header_is_refused(tmp_path):
    path = write_llm_c(tmp_path / "a.bin", SMALL)
    with pytest.raises(UserError) as caught:
        open_token_file(path, "uint32")
    assert caught.value.path == ("dtype",)
    assert "uint16" in caught.value.problem


# --- streams ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_windows_of_several_files_are_those_of_one_row(lengths, seq_len, seed):
    rng = np.random.default_rng(seed)
    parts = [rng.integers(0, 100, length).astype("<u2") for length in lengths]
    row, stream = np.concatenate(parts), TokenStream(parts)
    assert len(stream) == len(row)
    start, stop = sorted(rng.integers(0, len(row) + 1, 2).tolist())
    assert stream[start:stop].tolist() == row[start:stop].tolist()
    assert stream.part(start, stop)[:].tolist() == row[start:stop].tolist()
    if len(row) > seq_len:
        windows = train_windows(row, seq_len)
        rows = rng.integers(0, len(windows), 7)
        assert stream.windows(rows, seq_len).tolist() == windows[rows].tolist()
