"""Lines are the same however their parts arrive; files are read from where reading ended, or from the start again."""

import os
import re
from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given

from taetpu.core.errors import UserError
from taetpu.programs import growing_file
from taetpu.programs.growing_file import GrowingFile, LineSplitter


def split(parts):
    splitter = LineSplitter()
    lines = [line for part in parts for line in splitter.split(part)]
    return [*lines, *splitter.finish()]


@given(parts=st.lists(st.text("ab\r\nü", max_size=6).map(str.encode), max_size=8))
def test_lines_do_not_depend_on_the_parts(parts):
    data = b"".join(parts)
    expected = [
        (number, piece)
        for number, line in enumerate(data.decode().split("\n"), 1)
        for piece in re.split("\r", line)
        if piece
    ]
    assert [line for line in split(parts) if line[1]] == expected


@given(cuts=st.lists(st.integers(0, 60), max_size=6))
def test_the_rest_of_a_long_line_is_skipped(cuts):
    data = b"short\n" + b"x" * 30 + b"\nnext\n" + b"y" * 12 + b"\rz"
    places = sorted({0, *(min(cut, len(data)) for cut in cuts), len(data)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growing_file, "LONGEST_LINE", 10)
        lines = split([data[start:end] for start, end in pairwise(places)])
    assert [line for line in lines if line[1]] == [(1, "short"), (2, "x" * 10), (3, "next"), (4, "y" * 10), (4, "z")]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "log.jsonl"


def read(growing):
    """Return what was written; a restart is `|`."""
    return b"".join(b"|" if data is None else data for data in growing.read())


def test_a_file_is_read_as_it_grows(file):
    growing = GrowingFile(file)
    assert read(growing) == b""
    assert not growing.was_opened
    file.write_bytes(b"a\n")
    assert read(growing) == b"a\n"
    with file.open("ab") as opened:
        opened.write(b"b" * 100)
    assert read(growing) == b"b" * 100
    assert read(growing) == b""
    growing.close()


@pytest.mark.parametrize("content", [b"", b"x", b"other" * 20, b"a" * 99 + b"b"])
def test_a_rewritten_file_is_read_from_its_start(content, file):
    growing = GrowingFile(file)
    file.write_bytes(b"a" * 100)
    assert read(growing) == b"a" * 100
    file.write_bytes(content)
    assert read(growing) == b"|" + content
    growing.close()


def test_a_replaced_file_is_read_to_its_end_first(file):
    growing = GrowingFile(file)
    file.write_bytes(b"a\n")
    assert read(growing) == b"a\n"
    with file.open("ab") as opened:
        opened.write(b"b\n")
    file.rename(file.with_suffix(".old"))
    assert read(growing) == b"b\n"
    file.write_bytes(b"c\n")
    assert read(growing) == b"|c\n"
    file.unlink()
    assert read(growing) == b""
    growing.close()


def test_a_file_in_a_folder_that_appears_later(file):
    growing = GrowingFile(file.parent / "later" / "log")
    assert read(growing) == b""
    (file.parent / "later").mkdir()
    (file.parent / "later" / "log").write_bytes(b"a")
    assert read(growing) == b"a"
    growing.close()


def test_other_things_than_files_are_refused(file):
    os.mkfifo(file)
    for place in (file, file.parent):
        with pytest.raises(UserError) as raised:
            read(GrowingFile(place))
        assert raised.value.file == place


def test_a_file_that_is_too_large_is_refused_before_it_is_read(file):
    file.write_bytes(b"")
    os.truncate(file, 2**40)
    with pytest.raises(UserError, match="1,073,741,824"):
        read(GrowingFile(file))
