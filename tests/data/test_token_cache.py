"""Preparing a large corpus: any number of processes, kills and rivals give the same files, and no process is left."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.data.test_document_files import json_lines
from tests.data.test_text_task import prepared

from taetpu.core.atomic_files import locked
from taetpu.core.errors import UserError
from taetpu.data import streamed_text, text, tokenizer_pool
from taetpu.data.splitting import hashed_split
from taetpu.data.token_cache import delete_prepared, list_prepared
from taetpu.data.tokenizers import base

TEXTS = [f"Document {i} says {i * 7919 % 1000} and {'more ' * (i % 50)}." for i in range(3000)]
TEXTS += TEXTS[:300]  # duplicates
TASK = {"kind": "text", "source": "a.jsonl", "tokenizer": "byte", "split": "hash", "val": 0.2, "seq_len": 8}
PREPARE = """
import resource, sys
from pathlib import Path
from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.data import streamed_text, text
text.LARGE, streamed_text.BLOCK = 1000, 3000
if {limit}:
    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))
try:
    build_component("task", {task}).prepare(Path(sys.argv[1]))
except UserError as error:
    sys.exit(f"refused: {{error}}")
"""


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(json_lines(TEXTS))
    return tmp_path


def start(folder, cache, limit=0):
    return subprocess.Popen(
        [sys.executable, "-c", PREPARE.format(task=TASK, limit=limit), str(folder)],
        env={**os.environ, "TAETPU_CACHE": str(cache)}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process):
    """Return the exit status of a process and what it wrote to standard error."""
    message = process.communicate()[1]
    return process.returncode, message


def files_of(cache):
    """Return the content of the tokens in a cache, which has one corpus."""
    (folder,) = cache.glob("text/*/")
    return {path.name: path.read_bytes() for path in folder.glob("*.bin")}


def progress_of(cache):
    states = [*cache.glob("text/*/progress.json")]
    return json.loads(states[0].read_bytes()) if states else {"done": False, "counts": {"documents": {"train": 0}}}


def children_of(process):
    return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()


def wait_for(condition):
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("not reached within 30 s")


def is_alive(pid):
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("children", [1, 3])
def test_tokens_do_not_depend_on_the_number_of_processes(corpus, monkeypatch, children):
    monkeypatch.setenv("TAETPU_CACHE", str(corpus / "cache"))
    monkeypatch.setattr(text, "LARGE", 1000)
    monkeypatch.setattr(streamed_text, "BLOCK", 3000)
    monkeypatch.setattr(tokenizer_pool, "cpu_cores", lambda: children)
    source = prepared(corpus, **{name: TASK[name] for name in ("source", "tokenizer", "val")})
    for split, content in files_of(corpus / "cache").items():
        expected = [t for t in TEXTS if hashed_split(t, 0.2, 0) == split.removesuffix(".bin")]
        assert content == "".join(f"{t}\n\n" for t in expected).encode("utf-16-le")  # a token is a byte
    assert source.facts["documents"] == len(TEXTS)


@pytest.mark.slow  # starts six processes
def test_killed_preparation_leaves_no_process_and_continues(corpus):
    whole = start(corpus, corpus / "whole")
    assert finish(whole) == (0, "")
    process = start(corpus, corpus / "cache")
    wait_for(lambda: progress_of(corpus / "cache")["counts"]["documents"]["train"] > 100)
    os.kill(process.pid, signal.SIGSTOP)  # so that it cannot end before its children are listed
    children = children_of(process)
    process.kill()
    finish(process)
    assert children
    wait_for(lambda: not any(map(is_alive, children)))
    state = progress_of(corpus / "cache")
    assert not state["done"]
    again = start(corpus, corpus / "cache")
    assert finish(again) == (0, "")
    assert progress_of(corpus / "cache")["counts"] == progress_of(corpus / "whole")["counts"]
    assert files_of(corpus / "cache") == files_of(corpus / "whole")


@pytest.mark.slow  # starts four processes
def test_killed_child_ends_the_preparation_and_keeps_what_was_written(corpus):
    process = start(corpus, corpus / "cache")
    wait_for(lambda: progress_of(corpus / "cache")["counts"]["documents"]["train"] > 100)
    os.kill(int(children_of(process)[0]), signal.SIGKILL)
    code, message = finish(process)
    if progress_of(corpus / "cache")["done"]:
        pytest.skip("the child had encoded its last block")
    assert (code, "SIGKILL" in message, "Traceback" in message) == (1, True, False)
    assert progress_of(corpus / "cache")["counts"]["documents"]["train"] > 100


@pytest.mark.slow  # starts eight processes
def test_two_processes_that_prepare_one_corpus(corpus):
    rivals = [start(corpus, corpus / "cache") for _ in range(2)]
    for rival in rivals:
        assert finish(rival) == (0, "")
    alone = start(corpus, corpus / "whole")
    assert finish(alone) == (0, "")
    assert files_of(corpus / "cache") == files_of(corpus / "whole")


@pytest.mark.slow  # starts processes
def test_full_disk(corpus):
    process = start(corpus, corpus / "cache", limit=20_000)  # bytes of a file
    code, message = finish(process)
    assert (code, "refused" in message, "Traceback" in message) == (1, True, False)
    assert str(next((corpus / "cache").glob("text/*/"))) in message
    again = start(corpus, corpus / "cache")
    assert finish(again) == (0, "")
    alone = start(corpus, corpus / "whole")
    assert finish(alone) == (0, "")
    assert files_of(corpus / "cache") == files_of(corpus / "whole")


def test_partial_corpora_are_listed_and_deleted(tmp_path, monkeypatch):
    monkeypatch.setenv("TAETPU_CACHE", str(tmp_path))
    for name, content in (("begun", b""), ("damaged", b"{")):
        folder = tmp_path / "text" / name
        folder.mkdir(parents=True)
        (folder / "train.bin").write_bytes(bytes(100))
        if content:
            (folder / "progress.json").write_bytes(content)
    rows = {row["name"]: row for row in list_prepared()}
    assert {name: row["complete"] for name, row in rows.items()} == {"begun": False, "damaged": False}
    assert rows["begun"]["bytes"] == 100
    with locked(tmp_path / "text" / "begun"), pytest.raises(UserError) as caught:
        delete_prepared("begun")
    assert "begun" in caught.value.problem
    for name in rows:
        delete_prepared(name)
    assert list_prepared() == []


def test_damaged_tokenizer_of_the_cache_is_named(corpus, monkeypatch):
    monkeypatch.setenv("TAETPU_CACHE", str(corpus / "cache"))
    monkeypatch.setattr(text, "LARGE", 1000)
    prepared(corpus, source="a.jsonl", tokenizer="byte", val=0.2)
    (file,) = (corpus / "cache").glob("text/*/tokenizer.json")
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(UserError) as caught:
        prepared(corpus, source="a.jsonl", tokenizer="byte", val=0.2)
    assert str(file) in caught.value.problem
    assert file.parent.name in str(caught.value.remedy)


def test_error_of_a_child_is_that_of_the_document(corpus, monkeypatch):
    monkeypatch.setenv("TAETPU_CACHE", str(corpus / "cache"))
    monkeypatch.setattr(text, "LARGE", 1000)
    monkeypatch.setattr(base, "SAMPLE", 500)
    (corpus / "a.jsonl").write_bytes(json_lines([*TEXTS, "ß"]))
    with pytest.raises(UserError) as caught:
        prepared(corpus, source="a.jsonl", tokenizer={"kind": "char", "unseen": "error"}, val=0.0)
    assert "ß" in caught.value.problem
    assert caught.value.path[-1] == "unseen"
