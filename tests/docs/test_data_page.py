"""Every line of docs/data.md is prepared from the data that it names."""

import csv
import gzip
import json
import re
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from ruamel.yaml import YAML
from tests.data.token_writers import write_llm_c, write_megatron, write_raw
from tests.dataset_hub import serving
from tests.labelled_files import labelled_rows, write_json_lines, write_table

import taetpu
from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.data.remote import named
from taetpu.lens.perplexity import perplexity, split_perplexity
from taetpu.store import gcs_client
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
ROWS = re.findall(r"^\| (.*?) \| `(\{.*\})` \|$", PAGE, re.MULTILINE)
TEXTS = [f"Text {i}: {'and so on, ' * (i % 7 + 2)}until {i * 7919}." for i in range(120)]


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A hub with the datasets that the page names."""
    with pytest.MonkeyPatch.context() as monkeypatch, serving(monkeypatch, tmp_path_factory.mktemp("hub")) as state:
        yield state


@pytest.fixture(scope="module")
def data(tmp_path_factory, hub):
    """Data of all kinds that the page names."""
    folder = tmp_path_factory.mktemp("data")
    lines = "".join(json.dumps({"body": text}) + "\n" for text in TEXTS)
    for name in ("books", "saved/train", "saved/test", "nanogpt", "shards"):
        (folder / name).mkdir(parents=True)
    (folder / "book.txt").write_text("\n".join(TEXTS))
    for i, text in enumerate(TEXTS):
        (folder / "books" / f"{'abc'[i % 3]}{i}.txt").write_text(text)
    (folder / "names.txt").write_text("\n".join(TEXTS))
    (folder / "stories.txt").write_text("\n\n".join(TEXTS[::-1]))
    for name in ("rows.jsonl", "rows.txt"):
        (folder / name).write_text(lines)
    (folder / "rows.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    with (folder / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["body"], *([text] for text in TEXTS)])
    rows = pyarrow.table({"body": TEXTS})
    parquet.write_table(rows, folder / "rows.parquet")
    for name, part in (("train", rows[:100]), ("test", rows[100:])):
        with pyarrow.ipc.new_stream(str(folder / "saved" / name / "data.arrow"), rows.schema) as stream:
            stream.write_table(part)
        state = {"_data_files": [{"filename": "data.arrow"}]}
        (folder / "saved" / name / "state.json").write_text(json.dumps(state))
    (folder / "saved" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    write_json_lines(folder / "labelled.jsonl", labelled_rows())
    for name in ("labelled.csv", "labelled.tsv"):
        write_table(folder / name, labelled_rows())
    parquet.write_table(pyarrow.Table.from_pylist(labelled_rows()), folder / "labelled.parquet")
    tokens = np.random.default_rng(0).integers(0, 50257, 3000).tolist()
    for name in ("train", "val"):
        write_raw(folder / "nanogpt" / f"{name}.bin", tokens)
        write_llm_c(folder / "shards" / f"fineweb_{name}_000000.bin", tokens)
    np.save(folder / "tokens.npy", np.array(tokens, np.uint16))
    write_raw(folder / "raw.npy", [*tokens, 100351], "<u4")
    write_megatron(folder / "megatron.bin", [[tokens]])
    shards = {file.name: file.read_bytes() for file in (folder / "shards").iterdir()}
    for split, part in (("train", rows[:100]), ("validation", rows[100:])):
        (folder / "hub").mkdir(exist_ok=True)
        parquet.write_table(part, folder / "hub" / f"{split}.parquet")
    parts = {f"en/{file.name}": file.read_bytes() for file in (folder / "hub").iterdir()}
    configs = [{"config_name": "en", "data_dir": "en"}]
    card = f"---\nconfigs: {json.dumps(configs)}\n---\n".encode()
    wikitext = {f"wikitext-2-raw-v1/{file.stem}-0.parquet": file.read_bytes() for file in write_articles(folder)}
    hub.commits["v1.0"] = "b" * 40
    hub.datasets |= {"their/data": {"README.md": card, **parts}, "their/tokens": shards}
    hub.datasets[f"Salesforce/wikitext@{(commit := named.WIKITEXT.rpartition('@')[2])}"] = wikitext
    hub.commits["then"] = commit
    return folder


def write_articles(folder):
    """Write the rows of two splits of a corpus as WikiText has them, and return the files."""
    files = []
    for split, part in (("train", TEXTS), ("validation", TEXTS[::-7])):
        lines = [line for i, text in enumerate(part) for line in (f" = {split} {i} = \n", "", f"{text}\n")]
        files.append(folder / "hub" / f"{split}.parquet")
        parquet.write_table(pyarrow.table({"text": lines}), files[-1])
    return files


def test_the_page_lists_the_published_corpora():
    rows = re.findall(r"^\| `([\w-]+)` \| (.*) \| (.*) \| (.*) \| (.*) \|$", PAGE, re.MULTILINE)
    assert rows == [
        (name, corpus.about, corpus.licence, corpus.size, ", ".join(corpus.splits))
        for name, corpus in named.PUBLISHED.items()
    ]


def test_the_page_has_lines_for_all_formats():
    named = " ".join(line for _, line in ROWS)
    assert len(ROWS) > 20
    for part in (
        ".jsonl",
        ".csv",
        ".parquet",
        "saved",
        "shards",
        ".npy",
        "megatron",
        "per: line",
        "split: hash",
        "hf://",
    ):
        assert part in named


def check_line(line, data):
    source = build_component("task", YAML(typ="safe").load(line)).prepare(data)
    if "labelled" in line:
        assert source.num_windows > 60
        assert source.evaluation("val") is not None
        assert max(source.facts.get("chance_loss", 0), source.facts.get("constant_loss", 0)) > 0.5
        return
    assert source.num_windows > 20
    assert source.evaluation("val") is not None
    assert source.facts["chance_loss"] > 3


@pytest.mark.parametrize(("have", "line"), [pytest.param(*row, id=row[0]) for row in ROWS if "gs://" not in row[1]])
def test_each_line_is_prepared(have, line, data):
    check_line(line, data)


@pytest.mark.slow
def test_lines_with_buckets_are_prepared(data, google):
    storage = gcs_client.storage_client()
    storage.bucket("mine").create(location="us-east5")
    for file in [*(data / "books").iterdir(), *(data / "shards").iterdir()]:
        storage.bucket("mine").blob(str(file.relative_to(data))).upload_from_filename(file)
    lines = [line for _, line in ROWS if "gs://" in line]
    assert len(lines) == 2
    for line in lines:
        check_line(line, data)


MIXTURES, MASKS, REVIEWS = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_study_of_mixtures_is_trained(data, tmp_path):
    (data / "study.yaml").write_text(MIXTURES)
    outcome = taetpu.run(data / "study.yaml", root=str(tmp_path))
    shares = {"baseline": 0.75, "even": 0.5, "more-books": 0.25}
    assert {arm["name"] for arm in outcome.results["arms"]} == shares.keys()
    for arm, share in shares.items():
        for run in StudyFolder(open_store(tmp_path), "mixtures").runs():
            if run.arm == arm:
                read = run.result()["environment"]["data"]["mixture"]["book.txt"]
                assert read["weight"] == share
                assert read["share"] == pytest.approx(share, abs=0.06)
    report = next(tmp_path.rglob("report.md")).read_text()
    assert "book.txt" in report
    assert "weight 0.75" in report


@pytest.mark.slow
def test_the_study_of_labelled_rows_is_trained(data, tmp_path):
    (data / "reviews.yaml").write_text(REVIEWS)
    outcome = taetpu.run(data / "reviews.yaml", root=str(tmp_path))
    assert {arm["name"] for arm in outcome.results["arms"]} == {"baseline", "mean", "balanced"}
    assert "val/weighted" in next(tmp_path.rglob("report.md")).read_text()


@pytest.mark.slow
def test_the_study_of_masks_is_trained_and_shown(data, tmp_path):
    (data / "masks.yaml").write_text(MASKS)
    outcome = taetpu.run(data / "masks.yaml", root=str(tmp_path))
    assert {arm["name"] for arm in outcome.results["arms"]} == {
        "baseline", "more", "whole-words", "spans", "always-hidden"
    }  # fmt: skip
    report = next(tmp_path.rglob("report.md")).read_text()
    assert "bits_per_byte" not in report
    opened = taetpu.open_run("masks/more/0", root=tmp_path, data_folder=data)
    with pytest.raises(UserError, match="not causal"):
        taetpu.generate(opened, "the")
    with pytest.raises(UserError, match="not causal"):
        perplexity(opened, "the cat")
    losses = split_perplexity(opened, "val")
    assert losses.mean == pytest.approx(opened.metrics["val/loss"].value[-1], rel=1e-4)
