"""Published corpora, downloaded from a server on this machine that stands in for those of the table."""

import dataclasses
import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from functools import partial
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet
from tests.dataset_hub import COMMIT, unreachable

from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.data.corpora import open_corpus
from taetpu.data.document_files import Layout
from taetpu.data.remote import download, named
from taetpu.data.remote.named import PUBLISHED, Part, cut_zip

PLAY = "".join(f"Speaker {i}: words of verse {i * 7919 % 1000}.\n" for i in range(3000)).encode()


@pytest.fixture
def published(datasets, monkeypatch, tmp_path):
    """The server, at which `tinyshakespeare` is a play of another author; downloads pause for no time."""
    monkeypatch.setattr(download, "PAUSE", 0.0)
    datasets.plain["/plays/input.txt"] = PLAY
    part = Part(f"{datasets.address}/plays/input.txt", f"sha256:{hashlib.sha256(PLAY).hexdigest()}")
    monkeypatch.setitem(PUBLISHED, "tinyshakespeare", replaced("tinyshakespeare", train=part))
    return datasets


def replaced(name, build=None, **splits):
    return dataclasses.replace(PUBLISHED[name], splits=splits, **({"build": build} if build else {}))


def place(name: str) -> Path:
    return Path(os.environ["TAETPU_CACHE"]) / "corpora" / "tinyshakespeare" / name


def read(source="tinyshakespeare", split="train", folder=Path()) -> str:
    return "".join(document.text for document in open_corpus(source, folder, Layout(), split=split))


def refusal(**about) -> UserError:
    with pytest.raises(UserError) as caught:
        read(**about)
    return caught.value


def test_every_entry_has_what_people_ask_for():
    names = "tinyshakespeare wikitext-2 wikitext-103 ptb enwik8 text8 tinystories fineweb-edu-10bt openwebtext"
    assert {*names.split()} == {*PUBLISHED}
    for name, corpus in PUBLISHED.items():
        assert corpus.licence, name
        assert re.search(r"\d+(\.\d)? [MG]B", corpus.size), name
        assert {"train"} <= {*corpus.splits} <= {"train", "val", "test"}, name
        for part in corpus.splits.values():
            assert re.match(r"https://|hf://datasets/[\w-]+/[\w-]+@[0-9a-f]{40}/", part.address), name
            pattern = r"(sha256:[0-9a-f]{64}|(sha1|git):[0-9a-f]{40}|md5:[0-9a-f]{32})"
            assert part.digest is None or re.fullmatch(pattern, part.digest), name


def test_a_name_is_downloaded_once(published):
    settings = {"kind": "text", "source": "tinyshakespeare", "seq_len": 32}
    source = build_component("task", settings).prepare(Path())
    assert source.facts["split"] == "order"
    (fetched,) = source.facts["fetched"]["train"]
    assert (fetched["licence"], fetched["addresses"]) == ("public domain", [f"{published.address}/plays/input.txt"])
    assert read().encode() == PLAY
    assert [path for path, _ in published.requested] == ["/plays/input.txt"]
    assert sorted(file.name for file in place("").iterdir()) == ["input.txt", "lock"]
    assert build_component("task", settings).files(Path()) == []


def test_a_path_of_the_same_name_is_not_shadowed(published, tmp_path):
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "a.txt").write_text("of this folder")
    error = refusal(folder=tmp_path)
    assert str(tmp_path / "tinyshakespeare") in error.problem
    assert "./tinyshakespeare" in error.remedy
    assert read("./tinyshakespeare", folder=tmp_path) == "of this folder"
    assert "'tinyshakespeare'" in refusal(source="tinyshakespere", folder=tmp_path / "tinyshakespeare").remedy


def test_a_download_that_was_cut_continues(published):
    published.cuts["input.txt"] = [1000, 2000, 0, 500]
    assert read().encode() == PLAY
    assert [ranges for _, ranges in published.requested] == [
        None, "bytes=1000-", "bytes=3000-", "bytes=3000-", "bytes=3500-",
    ]  # fmt: skip


def test_a_download_without_progress_is_given_up_and_continues_later(published):
    published.cuts["input.txt"] = [1000, *[0] * download.ATTEMPTS]
    error = refusal()
    assert "1,000 of " in error.problem
    assert str(place("input.txt")) in error.remedy
    assert not place("input.txt").exists()
    assert place("input.txt.part").stat().st_size == 1000
    published.requested.clear()
    assert read().encode() == PLAY
    assert [ranges for _, ranges in published.requested] == ["bytes=1000-"]


def test_a_file_that_changed_meanwhile_is_downloaded_from_its_start(published, monkeypatch):
    published.cuts["input.txt"] = [1000, *[0] * download.ATTEMPTS]
    refusal()
    other = PLAY[::-1]
    published.plain["/plays/input.txt"] = other
    part = Part(PUBLISHED["tinyshakespeare"].splits["train"].address)
    monkeypatch.setitem(PUBLISHED, "tinyshakespeare", replaced("tinyshakespeare", train=part))
    assert read().encode() == other


PROGRAM = """\
import sys
from pathlib import Path
from taetpu.data.remote.download import download_file
download_file(sys.argv[1], Path(sys.argv[2]), None, "")
"""


def test_a_killed_download_continues(published, tmp_path):
    published.plain["/large"] = PLAY * 200
    published.pauses["large"] = 0.05
    file = tmp_path / "large"
    command = [sys.executable, "-c", PROGRAM, f"{published.address}/large", str(file)]
    process = subprocess.Popen(command, env=os.environ)
    part = tmp_path / "large.part"
    while not part.is_file() or part.stat().st_size < 3_000_000:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not file.exists()
    done = part.stat().st_size
    published.pauses.clear()
    subprocess.run(command, env=os.environ, check=True)
    assert file.read_bytes() == PLAY * 200
    assert published.requested[-1] == ("/large", f"bytes={done}-")


def test_a_file_with_another_digest_is_refused_and_removed(published):
    published.wrong.add("input.txt")
    error = refusal()
    assert hashlib.sha256(PLAY).hexdigest() in error.problem
    assert sorted(file.name for file in place("").iterdir() if file.suffix == ".txt") == []
    published.wrong.clear()
    assert read().encode() == PLAY
    place("input.txt").write_bytes(PLAY[:-1])
    assert str(place("input.txt")) in refusal().problem
    assert read().encode() == PLAY


def test_without_a_network_the_message_says_what_to_fetch_and_where_to_put_it(published, monkeypatch):
    part = dataclasses.replace(PUBLISHED["tinyshakespeare"].splits["train"], address="http://127.0.0.1:9/input.txt")
    monkeypatch.setitem(PUBLISHED, "tinyshakespeare", replaced("tinyshakespeare", train=part))
    error = refusal()
    assert "http://127.0.0.1:9/input.txt" in error.problem
    assert str(place("input.txt")) in error.remedy
    place("").mkdir(parents=True, exist_ok=True)
    place("input.txt").write_bytes(PLAY)
    assert read().encode() == PLAY


def test_a_split_that_was_not_published(published, monkeypatch):
    error = refusal(source="tinystories", split="test")
    assert all(name in error.problem for name in ("tinystories", "'train'", "'val'"))
    assert "share" in error.remedy


def test_an_address_that_is_gone(published):
    published.gone.add("/plays/input.txt")
    error = refusal()
    assert "404" in error.problem
    assert str(place("input.txt")) in error.remedy
    assert len(published.requested) == 1


def test_an_archive_is_cut_into_its_published_splits(published, monkeypatch):
    text = ("a" * 88 + "ü" + "b" * 9 + "ö" + "d" * 3).encode()  # bytes 88 and 89 are one character, also 99 and 100
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("enwik8", text)
    published.plain["/dc/enwik8.zip"] = archive.getvalue()
    build = partial(cut_zip, "enwik8", f"sha1:{hashlib.sha1(text).hexdigest()}", (89, 11, 4))
    part = Part(f"{published.address}/dc/enwik8.zip")
    corpus = replaced("enwik8", build=build, train=part, val=part, test=part)
    monkeypatch.setitem(PUBLISHED, "enwik8", corpus)
    parts = [read("enwik8", split) for split in ("train", "val", "test")]
    assert "".join(parts).encode() == text
    assert [len(part.encode()) for part in parts] == [88, 11, 5]
    assert len(published.requested) == 1
    published.plain["/dc/enwik8.zip"] = archive.getvalue()[:-30]
    for file in (Path(os.environ["TAETPU_CACHE"]) / "corpora" / "enwik8").iterdir():
        file.unlink()
    error = refusal(source="enwik8")
    assert "enwik8.zip" in error.problem
    assert "Delete" in error.remedy


@pytest.mark.parametrize(("text", "end"), [("ab", 2), ("aü", 3), ("a€", 4), ("a\U0001f600", 5), ("", 0)])
def test_no_character_is_cut(text, end):
    data = text.encode()
    assert named._character_start(data, len(data)) == end
    for cut in range(len(data)):
        data[: named._character_start(data, cut)].decode()
    data[: named._character_start(data[:-1], len(data) - 1)].decode()


def test_wikitext_has_articles_as_documents(published, monkeypatch):
    lines = [
        "",
        " = First = \n",
        "",
        " Text of it . \n",
        " = = Part = = \n",
        " More . \n",
        "",
        " = Second = \n",
        " End . \n",
    ]
    stored = {}
    for split, rows in (("train", lines), ("validation", lines[7:]), ("test", lines[:4])):
        sink = pyarrow.BufferOutputStream()
        parquet.write_table(pyarrow.table({"text": rows}), sink)
        stored[f"wikitext-2-raw-v1/{split}-00000-of-00001.parquet"] = sink.getvalue().to_pybytes()
    published.commits["main"] = named.WIKITEXT.rpartition("@")[2]
    published.datasets["Salesforce/wikitext"] = stored
    corpus = open_corpus("wikitext-2", Path(), Layout())
    articles = [document.text for document in corpus]
    first = " = First = \n\n Text of it . \n = = Part = = \n More . "
    assert articles == [first, " = Second = \n End . "]
    assert [document.text for document in open_corpus("wikitext-2", Path(), Layout(), split="val")] == articles[1:]
    assert {path.rpartition("/")[2] for path, _ in published.requested if "resolve" in path} == {
        "train-00000-of-00001.parquet", "validation-00000-of-00001.parquet",
    }  # fmt: skip
    unreachable(monkeypatch)
    assert len([*open_corpus("wikitext-2", Path(), Layout())]) == 2
    assert COMMIT not in json.dumps(corpus.origins)
