"""Stored output: whole lines of two streams, limited in size, readable at any time; and the last lines."""

import gzip
import shutil

import hypothesis.strategies as st
import pytest
from hypothesis import given

from taetpu.core.errors import UserError
from taetpu.programs.output import LAST_LINES, LONGEST_SHOWN, OutputLog, read_output


@pytest.fixture
def log(tmp_path):
    return OutputLog(tmp_path / "out.log.gz", 2**20)


def test_streams_mix_between_lines_only(log, tmp_path):
    for stream, data in (("stdout", b"a"), ("stderr", b"1\n2"), ("stdout", b"b\nc"), ("stderr", b"3\n")):
        log.write(stream, data)
    log.close()
    assert gzip.decompress((tmp_path / "out.log.gz").read_bytes()) == b"1\nab\n23\nc"


@given(parts=st.lists(st.binary(max_size=50), max_size=30), limit=st.integers(0, 400))
def test_the_start_and_the_end_are_stored(parts, limit, tmp_path_factory):
    file = tmp_path_factory.mktemp("log") / "out.log.gz"
    log, whole = OutputLog(file, limit), b"".join(parts)
    for part in parts:
        log.write("stdout", part)
    open_ended = read_output(file) if log.flush() is None else b""
    log.close()
    stored = gzip.decompress(file.read_bytes())
    assert stored == read_output(file)
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert log.size == len(whole)
    half = max(limit, 4) // 2
    start, marker, end = stored.partition(b"\n[taetpu: ")
    if marker:
        omitted, _, end = end.partition(b" bytes of output left out here]\n")
        assert start == whole[:half]
        assert whole.endswith(end)
        assert len(start) + int(omitted.replace(b",", b"")) + len(end) == len(whole)
        assert half // 2 <= len(end) <= half
    else:
        assert stored == whole
    assert open_ended[:half] == whole[: len(open_ended[:half])]


def test_an_open_log_can_be_read(log, tmp_path):
    log.write("stdout", b"first\nsecond\nthird")
    assert read_output(tmp_path / "out.log.gz") == b""
    log.flush()
    assert read_output(tmp_path / "out.log.gz") == b"first\nsecond\n"
    log.close()


def test_an_open_log_above_the_limit_can_be_read(tmp_path):
    log = OutputLog(tmp_path / "out.log.gz", 100)
    for number in range(100):
        log.write("stdout", b"%09d\n" % number)
    log.flush()
    lines = read_output(tmp_path / "out.log.gz").split()
    assert lines[:5] == [b"%09d" % number for number in range(5)]
    assert lines[-1] == b"000000099"
    later = shutil.copytree(tmp_path, tmp_path / "later") / "out.log.gz"
    log.close()
    OutputLog(later, 100).close()
    assert read_output(later) == b""


def test_a_damaged_log_ends_early(log, tmp_path):
    output = bytes(range(256)) * 100
    log.write("stdout", output)
    log.close()
    data = (tmp_path / "out.log.gz").read_bytes()
    (tmp_path / "out.log.gz").write_bytes(data[: len(data) // 2])
    start = read_output(tmp_path / "out.log.gz")
    assert output.startswith(start)
    assert len(start) < len(output)
    (tmp_path / "out.log.gz").write_bytes(b"no gzip")
    assert read_output(tmp_path / "out.log.gz") == b""


def test_the_last_lines_are_those_that_a_terminal_shows(log):
    for number in range(40):
        log.write("stderr", f"line {number}\n\n".encode())
    log.write("stdout", b"\r 1%\r 50%\r100%\r\n\x1b[31mred\x1b[0m \x07\n" + b"y" * 5000 + b"\npartial \xff")
    lines = log.last_lines()
    assert len(lines) == LAST_LINES
    assert lines[:2] == ("line 24", "line 25")
    assert lines[-4:-2] == ("100%", "red \\x07")
    assert len(lines[-2]) <= LONGEST_SHOWN
    assert lines[-1] == "partial \ufffd"
    log.close()


def test_a_folder_that_vanishes_is_an_error_once(tmp_path):
    folder = tmp_path / "run"
    log = OutputLog(folder / "out.log.gz", 100)
    shutil.rmtree(folder)
    with pytest.raises(UserError) as raised:
        log.write("stdout", b"x" * 1000 + b"\n")
    assert raised.value.file == folder / "out.log.gz"
    log.write("stdout", b"y\n")
    log.flush()
    log.close()
    assert log.last_lines()[-1] == "y"
    assert read_output(folder / "out.log.gz") == b""


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError) as raised:
        OutputLog(tmp_path / "file" / "out.log.gz", 100)
    assert raised.value.file == tmp_path / "file" / "out.log.gz"
