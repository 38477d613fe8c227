"""Files of datasets are divided into splits as the package `datasets` divides them."""

from pathlib import Path

import pytest
from datasets.data_files import DataFilesDict, get_data_patterns, sanitize_patterns
from datasets.load import infer_module_for_data_files

from taetpu.core.errors import UserError
from taetpu.data.corpora import TEXT_ENDINGS
from taetpu.data.remote.splits import find_splits, matching

FOLDERS = {
    "shards": ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002-2d5a.parquet", "train.txt",
               "data/x-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"],
    "folders": ["my_train/a.jsonl", "my_train/deep/b.jsonl", "dev-set/c.jsonl", "evaluation/d.jsonl", "training.jsonl"],
    "files": ["train.csv", "valid.csv", "x_test_1.csv", "trainer.csv", "notes.md", "en/train_2.csv"],
    "one file": ["anything.jsonl", "README.md", ".gitattributes", ".hidden/train.jsonl", "__pycache__/train.jsonl"],
    "formats": ["train.jsonl", "train_a.parquet", "train_b.parquet", "train.png", "test.parquet"],
    "a tie": ["a.csv", "b.parquet"],
    "compressed": ["train.jsonl.gz", "validation.jsonl.gz", "test_1.jsonl.gz"],
}  # fmt: skip


def theirs(folder: Path, patterns) -> dict[str, list[str]]:
    listed = DataFilesDict.from_local_or_remote(patterns, base_path=str(folder))
    module, _ = infer_module_for_data_files(listed)
    endings = {"parquet": ".parquet", "json": ".jsonl", "csv": ".csv", "text": ".txt"}
    splits = {
        str(split): sorted(str(Path(file).relative_to(folder)) for file in files if endings[module] in file)
        for split, files in listed.items()
    }
    return {split: files for split, files in splits.items() if files}


def write(folder: Path, files: list[str]) -> list[str]:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("x")
    return sorted(files)


@pytest.mark.parametrize("name", FOLDERS)
def test_files_are_divided_by_their_names(name, tmp_path):
    files = write(tmp_path, FOLDERS[name])
    assert find_splits(files, {}, None, TEXT_ENDINGS) == theirs(tmp_path, get_data_patterns(str(tmp_path)))


@pytest.mark.parametrize(
    "data_files",
    [
        "data/*.jsonl",
        ["a.jsonl", "data/**"],
        [{"split": "train", "path": ["data/*", "a.jsonl"]}, {"split": "test", "path": "data/deep/[de].jsonl"}],
    ],
)
def test_files_are_divided_by_the_card(data_files, tmp_path):
    files = write(tmp_path, ["a.jsonl", "data/b.jsonl", "data/c.jsonl", "data/deep/d.jsonl", "data/deep/e.jsonl"])
    card = {"configs": [{"config_name": "c", "data_files": data_files}]}
    assert find_splits(files, card, None, TEXT_ENDINGS) == theirs(tmp_path, sanitize_patterns(data_files))


@pytest.mark.parametrize(
    "configs",
    [
        "text",
        [{"data_files": "a"}],
        [{"config_name": "c", "data_files": 7}],
        [{"config_name": "c", "data_files": [{}]}],
    ],
)
def test_damaged_cards_are_refused(configs):
    with pytest.raises(UserError) as caught:
        find_splits(["a.jsonl"], {"configs": configs}, None, TEXT_ENDINGS)
    assert "README.md" in caught.value.problem


def test_patterns_stay_within_folders():
    files = ["a.csv", "b/a.csv", "b/c/a.csv"]
    assert matching(files, ["*.csv"]) == ["a.csv"]
    assert matching(files, ["**/a.csv"]) == files
    assert matching(files, ["*/a.csv"]) == ["b/a.csv"]
    assert matching(files, ["c/*"], "b") == ["b/c/a.csv"]
