"""Files of tables: every format gives the same rows, and a file that is no table is refused with its place."""

import gzip
import json
import os
from pathlib import Path

import pandas as pd
import pytest

from taetpu.core.errors import UserError
from taetpu.judging.table_files import BYTE_ORDER_MARKS, read_table

ROWS = [
    {"method": "base", "seed": "0", "loss": "2.5"},
    {"method": "muon, fast", "seed": "0", "loss": "2.25"},
    {"method": "Grüße", "seed": "1", "loss": "nan"},
]
CSV = '"method","seed","loss"\n"base","0","2.5"\n"muon, fast","0","2.25"\n"Grüße","1","nan"\n'


def fields(path: Path) -> list[dict[str, str]]:
    return [{name: str(value) for name, value in record.fields.items()} for record in read_table(path)]


def as_csv(path: Path, text: str = CSV, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


FORMATS = {
    "t.csv": CSV.encode(),
    "t.CSV": CSV.replace("\n", "\r\n").encode(),
    "t.tsv": CSV.replace('","', '"\t"').encode(),
    "semicolons.csv": CSV.replace('","', '";"').encode(),
    "t.csv.gz": gzip.compress(CSV.encode()),
    "t.json": json.dumps(ROWS).encode(),
    "columns.json": json.dumps({name: [row[name] for row in ROWS] for name in ROWS[0]}).encode(),
    "pandas.json": str(pd.DataFrame(ROWS).to_json()).encode(),
    "t.jsonl": "\n\n".join(map(json.dumps, ROWS)).encode(),
    **{f"{encoding}{len(mark)}.csv": CSV.encode(encoding) for mark, encoding in BYTE_ORDER_MARKS.items()},
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_rows(name: str, tmp_path: Path):
    (tmp_path / name).write_bytes(FORMATS[name])
    assert fields(tmp_path / name) == ROWS


def test_parquet_gives_the_same_rows_and_tells_missing_from_not_finite(tmp_path: Path):
    pytest.importorskip("pyarrow")
    pd.DataFrame(ROWS).to_parquet(tmp_path / "t.parquet")
    assert fields(tmp_path / "t.parquet") == ROWS
    pd.DataFrame({"a": pd.array([1, None], dtype="Int64"), "b": [float("inf"), 0.5]}).to_parquet(tmp_path / "n.parquet")
    assert [dict(record.fields) for record in read_table(tmp_path / "n.parquet")] == [
        {"a": 1, "b": float("inf")},
        {"a": None, "b": 0.5},
    ]


def test_rows_have_the_numbers_that_a_spreadsheet_shows(tmp_path: Path):
    text = '\n"a",b\n1,"two\nlines"\n,\n\n3,4\n'
    records = read_table(as_csv(tmp_path / "t.csv", text))
    assert [(record.where, record.fields["b"]) for record in records] == [
        ("t.csv, row 3", "two\nlines"),
        ("t.csv, row 6", "4"),
    ]


def test_objects_within_rows_have_dotted_names(tmp_path: Path):
    (tmp_path / "t.json").write_text('[{"optimizer": {"kind": "adam", "lr": 1e-3}, "seed": 0}]')
    (record,) = read_table(tmp_path / "t.json")
    assert record.fields == {"optimizer.kind": "adam", "optimizer.lr": 1e-3, "seed": 0}


def test_columns_without_a_name_are_left_out(tmp_path: Path):
    (record,) = read_table(as_csv(tmp_path / "t.csv", ",seed,\n0,1,x\n"))
    assert record.fields == {"seed": "1"}


@pytest.mark.parametrize(
    ("name", "content", "places"),
    [
        ("t.csv", b"a,b,a\n1,2,3\n", ["row 1", "'a'", "1 and 3"]),
        ("t.csv", b"a,b\n1,2\n3\n4,5,6\n", ["t.csv, row 3", "1 cells", "t.csv, row 4", "3 cells"]),
        ("t.csv", b'a,b\n1,2\n3,"4\n', ["t.csv, row 3"]),
        ("t.csv", b"a,b\n1,2\n\n3,\xff\n", ["t.csv:4", "0xff", "UTF-8"]),
        ("t.csv", "a,b\n1,2\n".encode("utf-16-le"), ["t.csv", "UTF-8"]),
        ("t.csv", b"", ["t.csv"]),
        ("t.csv", b" \n\n", ["t.csv"]),
        ("t.csv", "\ufeff".encode(), ["t.csv"]),
        ("t.csv", b"a,b\n", ["t.csv"]),
        ("t.csv.gz", b"a,b\n1,2\n", ["t.csv.gz", "gzip"]),
        ("t.xlsx", b"PK", [".csv", ".parquet"]),
        ("t.json", b'{"a": 1}', ["t.json"]),
        ("t.json", b"[]", ["t.json"]),
        ("t.json", b'[{"a": 1}, 2]', ["t.json, entry 2", "int"]),
        ("t.json", b'[{"a": 1, "a": 2}]', ["t.json", "'a'"]),
        ("t.json", b'{"a": [1, 2], "b": [1]}', ["'a'", "'b'"]),
        ("t.json", b'[\n{"a": }]', ["t.json:2"]),
        ("t.json", b"[" * 100_000, ["t.json"]),
        ("t.jsonl", b'{"a": 1}\nx\n{"a": y}\n', ["t.jsonl:2", "t.jsonl:3"]),
        ("t.parquet", b"PAR1", ["t.parquet"]),
    ],
)
def test_a_file_that_is_no_table_is_refused_with_its_place(
    name: str, content: bytes, places: list[str], tmp_path: Path
):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_table(tmp_path / name)
    for place in places:
        assert place in str(caught.value)


def test_folders_and_missing_files_are_refused(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.csv")
    for path in (tmp_path, tmp_path / "none.csv", tmp_path / "pipe.csv", Path("/dev/zero")):
        with pytest.raises(UserError, match=str(path)):
            read_table(path)


def test_a_small_file_may_not_decompress_to_more_than_memory_holds(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("taetpu.judging.table_files.LARGEST_FILE", 10_000)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 5000))
    with pytest.raises(UserError, match="10,000"):
        read_table(tmp_path / "t.csv.gz")


def test_numbers_beyond_64_bits_are_not_read_as_infinite(tmp_path: Path):
    (tmp_path / "t.json").write_text('[{"a": 1e400, "b": NaN, "c": Infinity}]')
    (record,) = read_table(tmp_path / "t.json")
    assert record.fields["a"] == "1e400"
    assert record.fields["c"] == float("inf")
