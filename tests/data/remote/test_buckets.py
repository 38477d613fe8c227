"""Files in Cloud Storage, copied by the real gcloud from a fake of Google's API."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.data.token_writers import write_megatron
from tests.dataset_hub import forget
from tests.fake_google.world import Fault, Refused

from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.data.corpora import open_corpus
from taetpu.data.document_files import Layout
from taetpu.data.remote import buckets
from taetpu.store import gcs_client

MANY = 1000
TEXT = "".join(f"Line {i} of a text, {i * 7919 % 1000}.\n" for i in range(200))


@pytest.fixture
def put(google):
    """Return a function that writes an object of the bucket `studies`."""
    forget()

    def write(name: str, data: bytes) -> None:
        gcs_client.storage_client().bucket("studies").blob(name).upload_from_string(data)
        google.world.calls.clear()

    return write


def downloads(google) -> int:
    return sum(call.name == "objects.get" for call in google.world.calls)


def staged(name: str) -> Path:
    return Path(os.environ["TAETPU_CACHE"]) / "buckets" / "studies" / "objects" / name


def texts(source: str) -> list[str]:
    forget()
    return [document.text for document in open_corpus(source, Path(), Layout())]


def refusal(source: str) -> UserError:
    with pytest.raises(UserError) as caught:
        texts(source)
    assert caught.value.path == ("source",)
    return caught.value


def tokens(seed: int, count: int = 4000) -> bytes:
    return np.random.default_rng(seed).integers(0, 500, count).astype("<u2").tobytes()


def test_a_file_a_pattern_and_a_folder(put, google):
    put("data/a.txt", b"first")
    put("data/b.jsonl", json.dumps({"text": "second"}).encode())
    put("data/deep/c.txt", b"third")
    put("data/deep/d.png", b"PNG")
    put("data/.hidden/e.txt", b"hidden")
    put("data/../../../f.txt", b"outside")
    assert texts("gs://studies/data/a.txt") == ["first"]
    assert texts("gs://studies/data/*.txt") == ["first"]
    assert texts("gs://studies/data/") == ["first", "second", "third"]
    task = build_component("task", {"kind": "text", "source": "gs://studies/data", "seq_len": 2, "val": 0.4})
    (fetched,) = task.prepare(Path()).facts["fetched"]["train"]
    assert fetched["files"] == 3
    assert task.files(Path()) == []
    forget()
    put("data/a.txt", b"first")
    (again,) = task.prepare(Path()).facts["fetched"]["train"]
    assert again.pop("generations") != fetched.pop("generations")
    assert again == fetched


def test_copies_are_kept_until_the_object_changes(put, google):
    put("data/a.txt", b"first")
    put("data/b.txt", b"second")
    texts("gs://studies/data/*.txt")
    assert downloads(google) > 2
    google.world.calls.clear()
    assert texts("gs://studies/data/*.txt") == ["first", "second"]
    assert downloads(google) == 0
    put("data/b.txt", b"other")
    assert texts("gs://studies/data/*.txt") == ["first", "other"]
    assert texts("gs://studies/data/a.txt") == ["first"]
    staged("data/a.txt").write_bytes(b"FIRST")
    assert texts("gs://studies/data/*.txt") == ["first", "other"]


def test_tokens_are_those_of_a_folder_on_this_machine(put, google, tmp_path):
    shards = {f"fineweb_{name}.bin": tokens(i) for i, name in enumerate(("train_1", "train_2", "val_1"))}
    for name, data in shards.items():
        (tmp_path / name).write_bytes(data)
        put(f"shards/{name}", data)
    settings = {"kind": "tokens", "vocab_size": 500, "seq_len": 16}
    prints = set()
    for source in (str(tmp_path), "gs://studies/shards/*.bin", "gs://studies/shards"):
        task = build_component("task", {**settings, "source": source})
        prepared = task.prepare(tmp_path)
        prints.add(prepared.fingerprint)
        assert prepared.facts["files"] == {"train": 2, "val": 1, "test": 0}
    assert len(prints) == 1
    assert task.files(tmp_path) == []
    val = {"source": "gs://studies/shards/fineweb_train_1.bin", "val_source": "gs://studies/shards/fineweb_val_1.bin"}
    assert build_component("task", {**settings, **val}).prepare(tmp_path).facts["files"]["val"] == 1


def test_an_index_is_copied_with_its_tokens(put, tmp_path):
    write_megatron(tmp_path / "m.bin", [[list(range(400))]])
    for name in ("m.bin", "m.idx"):
        put(f"data/{name}", (tmp_path / name).read_bytes())
    for source in ("gs://studies/data/m.bin", "gs://studies/data/m.*", "gs://studies/data"):
        forget()
        settings = {"kind": "tokens", "source": source, "vocab_size": 500, "seq_len": 16, "val": 0.2}
        assert build_component("task", settings).prepare(tmp_path).facts["layout"] == "megatron"


def test_a_copy_with_another_checksum_is_refused_and_removed(put, google, monkeypatch):
    put("data/a.txt", TEXT.encode())
    listed = buckets.list_objects("studies", "data/a.txt")
    wrong = [item._replace(md5="AAAAAAAAAAAAAAAAAAAAAA==") for item in listed]
    with pytest.raises(UserError) as caught:
        buckets.stage("studies", wrong)
    assert "gs://studies/data/a.txt" in caught.value.problem
    assert "AAAA" in caught.value.problem
    assert not [file for file in staged("data").iterdir() if file.suffix in (".txt", ".part")]
    composite = [item._replace(md5=None) for item in listed]
    with pytest.raises(UserError) as caught:
        buckets.stage("studies", [item._replace(crc32c="AAAAAA==") for item in composite])
    assert "AAAAAA==" in caught.value.problem
    buckets.stage("studies", composite)
    assert staged("data/a.txt").read_text() == TEXT


def test_what_is_not_there_or_not_allowed_is_refused(put, google, monkeypatch):
    put("data/a.png", b"PNG")
    for source, value in (
        ("gs://studies/no/*.txt", "gs://studies/no/*.txt"),
        ("gs://nobody/data/a.txt", "gs://nobody/data/a.txt"),
        ("gs://studies/data", "gs://studies/data"),
        ("gs://studies", "gs://studies"),
    ):
        error = refusal(source)
        assert value in error.problem
        assert error.remedy
    google.world.faults.append(
        Fault("objects.list", Refused(7, "does not have storage.objects.list access"), times=MANY)
    )
    denied = refusal("gs://studies/data/*.txt")
    assert "storage.objects.list" in denied.problem
    assert "gcloud auth login" in denied.remedy
    monkeypatch.setenv("PATH", "/nowhere")
    assert "cloud.google.com/sdk" in refusal("gs://studies/data/*.txt").remedy


def test_without_an_answer_what_was_copied_is_read(put, google, monkeypatch):
    put("data/a.txt", b"first")
    texts("gs://studies/data/*.txt")
    monkeypatch.setattr(buckets, "PROPERTIES", {**buckets.PROPERTIES, "CLOUDSDK_STORAGE_MAX_RETRIES": "0"})
    google.world.faults.append(Fault("objects.list", Refused(3, "a strange failure"), times=MANY))
    assert texts("gs://studies/data/*.txt") == ["first"]
    assert "a strange failure" in refusal("gs://studies/data/*.csv").problem


def test_a_disk_that_is_too_small_is_named_before_anything_is_copied(put, google, monkeypatch):
    put("data/a.txt", TEXT.encode())
    monkeypatch.setattr(buckets, "free_bytes", lambda path: 100)
    error = refusal("gs://studies/data/a.txt")
    assert f"{len(TEXT):,}" in error.problem
    assert "TAETPU_CACHE" in error.remedy
    assert downloads(google) == 0


PROGRAM = """\
import sys
from taetpu.data.remote import buckets
fetched = buckets.fetch_objects(sys.argv[1], (".txt",))
fetched.files()
"""


@pytest.mark.slow
def test_a_killed_copy_continues(put, google):
    large = os.urandom(2**20) * 24
    put("large/a.txt", b"first")
    put("large/b.txt", large)
    google.world.pause = 0.1
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, "gs://studies/large"], start_new_session=True)
    until = time.monotonic() + 60
    while not (parts := [*staged("large").glob("b.txt.*part")]) or parts[0].stat().st_size < 4 * 2**20:
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    google.world.pause = None
    assert not staged("large/b.txt").exists()
    time.sleep(0.5)  # gcloud ends with who started it
    google.world.sent = 0
    subprocess.run([sys.executable, "-c", PROGRAM, "gs://studies/large"], check=True)
    assert staged("large/b.txt").read_bytes() == large
    assert 0 < google.world.sent < len(large) - 3 * 2**20
