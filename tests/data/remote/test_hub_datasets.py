"""Datasets of the hub, downloaded by the hub's own client from a server on this machine."""

import json
from pathlib import Path

import huggingface_hub.utils
import pyarrow
import pytest
from pyarrow import parquet
from tests.dataset_hub import COMMIT, forget, unreachable

from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.data.corpora import open_corpus
from taetpu.data.document_files import Layout
from taetpu.data.remote.hub import Address, parse_address

OLD = "b" * 40


def rows(name: str, count: int = 40) -> bytes:
    return "".join(json.dumps({"text": f"{name} {i} of many rows, {i * i}"}) + "\n" for i in range(count)).encode()


def texts(source, split="train", folder=Path()) -> list[str]:
    return [document.text for document in open_corpus(source, folder, Layout(), split=split)]


def refusal(source, split="train") -> UserError:
    with pytest.raises(UserError) as caught:
        texts(source, split)
    assert caught.value.path[0] == "source"
    return caught.value


def card(*configs) -> bytes:
    return f"---\nlicense: mit\nconfigs: {json.dumps(configs)}\n---\n# Data\n".encode()


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("hf://datasets/a/b", Address("a/b")),
        ("hf://datasets/a/b/", Address("a/b")),
        ("hf://datasets/a/b@v1.0", Address("a/b", "v1.0")),
        ("hf://datasets/a/b@refs/convert/parquet", Address("a/b", "refs/convert/parquet")),
        ("hf://datasets/a/b@refs/pr/3/c/d.jsonl", Address("a/b", "refs/pr/3", "c/d.jsonl")),
        ("hf://datasets/a/b@new%2Fway/c-?.csv", Address("a/b", "new/way", "c-?.csv")),
        ("hf://datasets/a/b?config=en&split=dev", Address("a/b", None, "", "en", "dev")),
    ],
)
def test_addresses_have_the_form_of_the_hub(source, parts):
    assert parse_address(source) == parts
    if "?" not in source:
        theirs = huggingface_hub.utils.parse_hf_uri(source.rstrip("/"))
        assert (theirs.id, theirs.revision, theirs.path_in_repo) == parts[:3]


@pytest.mark.parametrize(
    "source",
    ["hf://datasets/name", "hf://a/b", "hf://datasets/a/b?subset=en", "hf://datasets/a/b?config=", "hf://buckets/a/b"],
)
def test_other_addresses_are_refused_with_the_form(source):
    with pytest.raises(UserError) as caught:
        parse_address(source)
    assert source in caught.value.problem
    assert "hf://datasets/OWNER/NAME" in caught.value.remedy


def test_a_dataset_has_its_own_splits_and_a_commit(datasets):
    files = {name: rows(name) for name in ("train-0.jsonl", "train-1.jsonl", "validation.jsonl", "test.jsonl")}
    datasets.datasets["their/data"] = {**files, "README.md": b"# Data", "logo.png": b"PNG", "notes/train.md": b"no"}
    settings = {"kind": "text", "source": "hf://datasets/their/data", "seq_len": 16}
    source = build_component("task", settings).prepare(Path())
    assert {*datasets.files()} == {"train-0.jsonl", "train-1.jsonl", "validation.jsonl", "README.md"}
    fetched = source.facts["fetched"]
    assert fetched["train"] == [{"source": settings["source"], "commit": COMMIT, "split": "train", "files": 2}]
    assert fetched["val"][0]["split"] == "validation"
    assert "test" not in fetched
    assert source.facts["bytes"]["val"] == len("\n\n".join(texts(settings["source"], "val")))
    tested = build_component("task", {**settings, "test": 0.1})
    assert tested.evaluation_sets == ("val", "test")
    assert tested.prepare(Path()).facts["fetched"]["test"][0]["split"] == "test"
    assert "test.jsonl" in datasets.files()


def test_a_named_split_is_divided_by_shares(datasets):
    datasets.datasets["their/data"] = {"train.jsonl": rows("train"), "validation.jsonl": rows("validation")}
    settings = {"kind": "text", "source": "hf://datasets/their/data?split=train", "seq_len": 16, "val": 0.2}
    facts = build_component("task", settings).prepare(Path()).facts
    assert [*facts["fetched"]] == ["train"]
    assert facts["documents"] == 40
    assert datasets.files() == ["train.jsonl"]
    other = {**settings, "val_source": "hf://datasets/their/data"}
    facts = build_component("task", other).prepare(Path()).facts
    assert facts["fetched"]["val"][0]["split"] == "validation"


def test_the_identity_is_that_of_the_content(datasets, tmp_path):
    datasets.datasets["their/data"] = {"a.jsonl": rows("a")}
    datasets.datasets["their/copy"] = {"other/name.jsonl": rows("a")}
    (tmp_path / "local.jsonl").write_bytes(rows("a"))
    sources = ("hf://datasets/their/data", f"hf://datasets/their/copy@{COMMIT}/other/*.jsonl", "local.jsonl")
    settings = {"kind": "text", "seq_len": 16, "split": "hash"}
    tasks = [build_component("task", {**settings, "source": source}) for source in sources]
    assert len({task.prepare(tmp_path).fingerprint for task in tasks}) == 1
    assert [task.files(tmp_path) for task in tasks] == [[], [], [tmp_path / "local.jsonl"]]


def test_configs_of_the_card(datasets):
    en = {"config_name": "en", "data_files": [{"split": "train", "path": "x/*"}, {"split": "dev", "path": ["y.jsonl"]}]}
    de = {"config_name": "de", "data_dir": "german"}
    files = {"x/1.jsonl": rows("x1"), "x/2.jsonl": rows("x2"), "y.jsonl": rows("y"), "german/train.jsonl": rows("de")}
    datasets.datasets["their/data"] = {**files, "README.md": card(en, de)}
    assert {text.split()[0] for text in texts("hf://datasets/their/data?config=en")} == {"x1", "x2"}
    assert {text.split()[0] for text in texts("hf://datasets/their/data?config=en", "val")} == {"y"}
    assert {text.split()[0] for text in texts("hf://datasets/their/data?config=de")} == {"de"}
    assert {text.split()[0] for text in texts("hf://datasets/their/data?config=en&split=dev")} == {"y"}
    both, unknown = refusal("hf://datasets/their/data"), refusal("hf://datasets/their/data?config=fr")
    assert "en, de" in both.remedy
    assert "?config=" in both.remedy
    assert "'fr'" in unknown.problem
    assert "en, de" in unknown.remedy
    split = refusal("hf://datasets/their/data?config=en&split=test")
    assert "'test'" in split.problem
    assert "train, dev" in split.remedy
    datasets.datasets["their/chosen"] = {**files, "README.md": card(en, {**de, "default": True})}
    assert {text.split()[0] for text in texts("hf://datasets/their/chosen")} == {"de"}


def test_programs_of_datasets_are_not_run(datasets):
    datasets.commits["refs/convert/parquet"] = OLD
    program = {"data.py": b"raise SystemExit", "train.jsonl": rows("raw")}
    stored = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table({"text": ["converted"] * 3}), stored)
    datasets.datasets["their/data"] = program
    datasets.datasets[f"their/data@{OLD}"] = {
        "plain/train/0000.parquet": stored.getvalue().to_pybytes(),
        "plain/validation/0000.parquet": stored.getvalue().to_pybytes(),
    }
    error = refusal("hf://datasets/their/data")
    assert "data.py" in error.problem
    assert "hf://datasets/their/data@refs/convert/parquet" in error.remedy
    assert not datasets.files()
    assert texts("hf://datasets/their/data@refs/convert/parquet") == ["converted"] * 3
    assert texts("hf://datasets/their/data@refs/convert/parquet?config=plain", "val") == ["converted"] * 3
    assert len(texts("hf://datasets/their/data/train.jsonl")) == 40
    datasets.datasets["their/data"] = {**program, "README.md": card({"config_name": "c", "data_files": "train.jsonl"})}
    forget()
    assert len(texts("hf://datasets/their/data")) == 40


def test_revisions(datasets):
    datasets.commits["v1"] = OLD
    datasets.datasets["their/data"] = {"a.jsonl": rows("new")}
    datasets.datasets[f"their/data@{OLD}"] = {"a.jsonl": rows("old")}
    assert texts("hf://datasets/their/data@v1")[0].startswith("old")
    assert texts(f"hf://datasets/their/data@{OLD}")[0].startswith("old")
    assert texts("hf://datasets/their/data")[0].startswith("new")
    wrong = refusal("hf://datasets/their/data@v2")
    assert "'v2'" in wrong.problem
    assert "tag" in wrong.remedy


def test_a_download_that_was_cut_continues(datasets, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 10_000)
    content = rows("long", 4000)
    datasets.datasets["their/data"] = {"a.jsonl": content}
    datasets.cuts["a.jsonl"] = [50_000, 60_000]
    assert len(texts("hf://datasets/their/data")) == 4000
    asked = [ranges for path, ranges in datasets.requested if path.endswith("a.jsonl")]
    assert asked == [None, "bytes=50000-", "bytes=110000-"]


@pytest.mark.parametrize("name", ["large.jsonl", "small.txt"])
def test_a_file_with_another_digest_is_refused(datasets, name):
    datasets.datasets["their/data"] = {"large.jsonl": rows("a"), "small.txt": b"few words"}
    datasets.wrong.add(name)
    error = refusal(f"hf://datasets/their/data/{name}")
    assert name in error.problem
    assert COMMIT in error.problem
    path = Path(error.remedy.split()[1].rstrip(","))
    assert path.is_file()
    path.unlink()
    datasets.wrong.clear()
    assert texts(f"hf://datasets/their/data/{name}")


def test_a_file_that_was_changed_in_the_cache_is_refused(datasets):
    datasets.datasets["their/data"] = {"a.jsonl": rows("a")}
    texts("hf://datasets/their/data")
    (path,) = Path(huggingface_hub.constants.HF_HUB_CACHE).glob("**/a.jsonl")
    path.resolve().write_bytes(rows("a")[:-9])
    error = refusal("hf://datasets/their/data")
    assert str(path.resolve()) in error.remedy
    assert f"{len(rows('a')):,}" in error.problem


def test_names_that_are_refused(datasets):
    datasets.refused = {"their/gated": (403, "GatedRepo"), "their/private": (401, "")}
    datasets.datasets["their/data"] = {"a.png": b"PNG", "b.xml": b"<>"}
    for name, value, remedy in (
        ("absent", "their/absent", "Correct"),
        ("gated", "restricted", "hf auth login"),
        ("private", "denies", "hf auth login"),
        ("data", ".png, .xml", "parquet"),
        ("data/c.jsonl", "c.jsonl", f"tree/{COMMIT}"),
        ("data/deep/*.jsonl", "deep", f"tree/{COMMIT}"),
        ("data/**.jsonl", "**.jsonl", "**/*"),
    ):
        error = refusal(f"hf://datasets/their/{name}")
        assert value in error.problem
        assert "model" not in f"{error.problem}{error.remedy}"
        assert remedy in error.remedy


def test_without_a_network(datasets, monkeypatch):
    datasets.datasets["their/data"] = {"train.jsonl": rows("a"), "test.jsonl": rows("b"), "README.md": b"#"}
    before = texts("hf://datasets/their/data")
    unreachable(monkeypatch)
    count = len(datasets.requested)
    assert texts("hf://datasets/their/data") == before
    assert len(datasets.requested) == count
    not_there = refusal("hf://datasets/their/data", "test")
    assert "test.jsonl" in f"{not_there.problem}{not_there.remedy}" or "their/data" in str(not_there.file)
    other = refusal("hf://datasets/their/other")
    assert "HF_HUB_OFFLINE" in other.remedy
    assert "https://huggingface.co/datasets/their/other/tree/main" in other.remedy


def test_a_cache_that_cannot_be_written_is_no_error_of_the_network(datasets, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "file" / "client"))
    datasets.datasets["their/data"] = {"a.jsonl": rows("a")}
    error = refusal("hf://datasets/their/data")
    assert str(tmp_path / "file") in error.problem
    assert "HF_HOME" in error.remedy


def test_tokens_of_the_hub(datasets):
    import numpy as np

    def shard(seed):
        return np.random.default_rng(seed).integers(0, 500, 4000).astype("<u2").tobytes()

    names = ("train_000001.bin", "train_000002.bin", "val_000000.bin")
    datasets.datasets["their/tokens"] = {f"fineweb_{name}": shard(i) for i, name in enumerate(names)}
    settings = {"kind": "tokens", "vocab_size": 500, "seq_len": 16}
    whole, pattern = (
        build_component("task", {**settings, "source": f"hf://datasets/their/tokens{path}"}) for path in ("", "/*.bin")
    )
    assert whole.prepare(Path()).fingerprint == pattern.prepare(Path()).fingerprint
    assert whole.prepare(Path()).facts["files"] == {"train": 2, "val": 1, "test": 0}
    assert whole.files(Path()) == []
    (about,) = pattern.prepare(Path()).facts["fetched"]["train"]
    assert about == {"source": "hf://datasets/their/tokens/*.bin", "commit": COMMIT, "files": 3}


@pytest.mark.parametrize("kind", ["text", "tokens"])
def test_sources_of_a_mixture(datasets, kind):
    import numpy as np

    def content(seed):
        return (
            np.random.default_rng(seed).integers(0, 500, 4000).astype("<u2").tobytes()
            if kind == "tokens"
            else rows(seed)
        )

    ending = "bin" if kind == "tokens" else "jsonl"
    names = [f"hf://datasets/their/{name}" for name in ("one", "two")]
    for i, name in enumerate(("one", "two")):
        parts = {f"{split}.{ending}": content(2 * i + j) for j, split in enumerate(("train", "validation"))}
        datasets.datasets[f"their/{name}"] = parts
    settings = {"kind": kind, "seq_len": 16, **({"vocab_size": 500} if kind == "tokens" else {})}
    source = build_component("task", {**settings, "source": dict.fromkeys(names, 1)}).prepare(Path())
    assert set(source.mixture.names) == {*names}
    assert sum(len(about) for about in source.facts["fetched"].values()) >= 2


@pytest.mark.parametrize("kind", ["text", "tokens"])
@pytest.mark.parametrize("source", ["https://huggingface.co/datasets/a/b", "s3://bucket/a.txt"])
def test_other_schemes_are_refused_with_those_that_are_read(kind, source):
    settings = {"kind": kind, "seq_len": 16, "source": source, **({"vocab_size": 9} if kind == "tokens" else {})}
    with pytest.raises(UserError) as caught:
        build_component("task", settings).prepare(Path())
    assert source in caught.value.problem
    assert all(scheme in caught.value.remedy for scheme in ("hf://datasets/", "gs://"))


def test_without_the_extra(monkeypatch):
    forget()
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    error = refusal("hf://datasets/their/data")
    assert "their/data" in error.problem
    assert "taetpu[hub]" in error.remedy
