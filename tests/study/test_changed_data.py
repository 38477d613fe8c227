"""Files of data that change under a study: each is refused by name, and no result is overwritten."""

import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from tests.data.test_document_files import MANY, json_lines

from taetpu.core.errors import UserError
from taetpu.data import base
from taetpu.data.token_files import TokenStream, open_token_file, refuse_changed
from taetpu.spec import frozen
from taetpu.spec.frozen import check_frozen, frozen_data
from taetpu.spec.loading import load_study

MODEL = "model: {dim: 16, num_layers: 1, mixer: {kind: attention, num_heads: 2}}"
TOKENS = "{kind: tokens, source: corpus, vocab_size: 50, seq_len: 8, eval_tokens: 100}"
TEXT = "{kind: text, source: corpus, split: hash, tokenizer: byte, seq_len: 8}"
STUDY = f"""
study: s
base:
  task: TASK
  {MODEL}
  train: {{steps: STEPS, batch_size: 4, eval_every: 20, sample: none, compute: {{feed: host}}}}
seeds: 1
"""


def write_study(folder, task, steps=40):
    (folder / "study.yaml").write_text(STUDY.replace("TASK", task).replace("STEPS", str(steps)))
    return folder / "study.yaml"


def write_tokens(path, seed, count=5000):
    np.random.default_rng(seed).integers(0, 50, count, np.uint16).tofile(path)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TAETPU_CACHE", str(tmp_path / "cache"))
    (tmp_path / "corpus").mkdir()
    return tmp_path


@pytest.fixture
def tokens(folder):
    for i, name in enumerate(("a.bin", "b.bin", "val.bin")):
        write_tokens(folder / "corpus" / name, i)
    return write_study(folder, TOKENS)


@pytest.fixture
def texts(folder):
    for i in range(3):
        (folder / "corpus" / f"{i}.jsonl").write_bytes(json_lines(MANY[i::3]))
    return write_study(folder, TEXT)


def refused(file, stored):
    with pytest.raises(UserError) as caught:
        check_frozen(stored, load_study(file))
    assert caught.value.path == ("base", "task")
    assert caught.value.remedy
    return caught.value.problem


def test_changed_token_file_is_named(tokens):
    stored = frozen_data(load_study(tokens))
    assert check_frozen(stored, load_study(tokens)) == stored
    write_tokens(tokens.parent / "corpus" / "b.bin", 9, 4000)
    problem = refused(tokens, stored)
    assert [name in problem for name in ("corpus/a.bin", "corpus/b.bin", "corpus/val.bin")] == [False, True, False]


def test_changed_missing_and_new_text_files_are_named(texts):
    stored, corpus = frozen_data(load_study(texts)), texts.parent / "corpus"
    (corpus / "0.jsonl").write_bytes(json_lines(MANY[::3][:-1]))
    (corpus / "1.jsonl").rename(corpus / "3.jsonl")
    problem = refused(texts, stored)
    assert [f"corpus/{i}.jsonl" in problem for i in range(4)] == [True, True, False, True]


def test_moved_corpus_is_accepted(texts):
    stored = frozen_data(load_study(texts))
    shutil.move(texts.parent / "corpus", texts.parent / "elsewhere")
    texts.write_text(texts.read_text().replace("source: corpus", "source: elsewhere"))
    assert check_frozen(stored, load_study(texts))["data"] == stored["data"]


def test_folders_of_earlier_versions_name_no_file(tokens):
    stored = frozen_data(load_study(tokens))
    del stored["files"]
    write_tokens(tokens.parent / "corpus" / "b.bin", 9)
    assert "b.bin" not in refused(tokens, stored)


def test_digests_of_very_many_files_are_not_stored(texts, monkeypatch):
    monkeypatch.setattr(frozen, "MOST_FILES", 2)
    monkeypatch.setattr(base, "digest_file", None)  # would fail
    assert "files" not in frozen_data(load_study(texts))


def test_file_that_is_written_while_it_is_mapped(folder):
    path = folder / "corpus" / "a.bin"
    write_tokens(path, 0)
    stream = TokenStream([open_token_file(path).tokens])
    states, first = stream.files, stream[:100].tolist()
    refuse_changed(states)
    write_tokens(folder / "other.bin", 1)
    os.replace(folder / "other.bin", path)  # what is mapped stays as it was
    refuse_changed(states)
    assert stream[:100].tolist() == first
    states = TokenStream([open_token_file(path).tokens]).files
    os.truncate(path, 1000)
    with pytest.raises(UserError) as caught:
        refuse_changed(states)
    assert [value for value in (str(path), "10,000", "1,000") if value not in caught.value.problem] == []


def command(file, root):
    return subprocess.Popen(
        [sys.executable, "-m", "taetpu", "run", str(file), "--root", str(file.parent / root)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process):
    errors = process.communicate()[1]
    return process.returncode, errors


def checkpoints(file, root):
    return set((file.parent / root).glob("s/packs/*/*/complete"))


def wait_for_checkpoint(file, root, process, earlier=frozenset()):
    while not checkpoints(file, root) - earlier:
        assert process.poll() is None
        time.sleep(0.01)


@pytest.mark.slow  # starts processes
def test_corpus_that_changes_under_a_run(tokens):
    """A file that shrinks ends the run with its name; restored, the run ends as if it had not been stopped."""
    tokens = write_study(tokens.parent, TOKENS, steps=200_000)
    path = tokens.parent / "corpus" / "a.bin"
    content = path.read_bytes()
    process = command(tokens, "cut")
    wait_for_checkpoint(tokens, "cut", process)
    os.truncate(path, 1000)
    code, errors = finish(process)
    assert (code, str(path) in errors, "Traceback" in errors) == (2, True, False)
    code, errors = finish(command(tokens, "cut"))  # the shorter file has other tokens
    assert (code, "corpus/a.bin" in errors, "Traceback" in errors) == (2, True, False)
    path.write_bytes(content)
    earlier = checkpoints(tokens, "cut")
    process = command(tokens, "cut")
    wait_for_checkpoint(tokens, "cut", process, earlier)
    process.send_signal(signal.SIGTERM)
    code, errors = finish(process)
    assert (code, "Traceback" in errors) == (130, False)
