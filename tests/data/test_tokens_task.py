"""Task `tokens`: splits, crops and shares of token files, and what is refused."""

import os

import numpy as np
import pytest
from tests.data.token_writers import write_llm_c, write_megatron, write_raw

from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.core.keys import root_key
from taetpu.data.digests import digest_tokens
from taetpu.data.token_files import open_token_file
from taetpu.testing import check_component

TRAIN, VAL = (np.random.default_rng(seed).integers(0, 90, size).tolist() for seed, size in ((0, 700), (1, 120)))
END = 7


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TAETPU_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path):
    """A folder as nanoGPT writes it."""
    folder = tmp_path / "data"
    folder.mkdir()
    write_raw(folder / "train.bin", TRAIN)
    write_raw(folder / "val.bin", VAL)
    return folder


def task(folder, **settings):
    return build_component(
        "task", {"kind": "tokens", "source": str(folder), "seq_len": 8, "vocab_size": 96, **settings}
    ).prepare(folder)


def texts(source):
    return {name: stream[:].tolist() for name, stream in source.streams.items()}


def test_folder_of_nanogpt(folder):
    source = task(folder)
    assert texts(source) == {"train": TRAIN, "val": VAL, "test": []}
    assert source.num_windows == 699 // 8
    windows = source.gather(np.arange(source.num_windows))["windows"]
    batch = source.batch({"windows": windows}, np.array([3]), root_key(0))
    assert batch.tokens[0].tolist() == TRAIN[24:32]
    assert batch.targets[0].tolist() == TRAIN[25:33]


def test_task_keeps_the_contract_of_tasks(folder, monkeypatch):
    monkeypatch.chdir(folder)
    for settings in ({}, {"segments": True, "end_token": END}):
        assert not check_component("task", "tokens", source=".", seq_len=8, vocab_size=96, **settings).failed


def test_shards_equal_one_file(folder, tmp_path):
    shards = tmp_path / "shards"
    shards.mkdir()
    write_llm_c(shards / "a_val_000000.bin", VAL)
    for i, start in enumerate(range(0, 700, 233)):
        write_llm_c(shards / f"a_train_{i:06d}.bin", TRAIN[start : start + 233])
    whole, parts = task(folder), task(shards)
    assert texts(parts) == texts(whole)
    rows = np.arange(whole.num_windows)
    assert np.array_equal(parts.gather(rows)["windows"], whole.gather(rows)["windows"])
    assert parts.evaluated == whole.evaluated


def test_pattern_and_files_of_evaluation(folder):
    write_raw(folder / "more.bin", VAL[::-1])
    source = task(folder, source=["train.bin"], val_source="mo*.bin", test_source="val.bin")
    assert texts(source) == {"train": TRAIN, "val": VAL[::-1], "test": VAL}


def test_shares_are_taken_from_the_end(folder):
    source = task(folder, source="train.bin", val=0.1, test=0.2)
    assert texts(source) == {"train": TRAIN[:490], "val": TRAIN[490:560], "test": TRAIN[560:]}


def test_crops_of_training_leave_the_evaluation(folder):
    whole, cropped, short = task(folder), task(folder, train_tokens=100), task(folder, eval_tokens=50)
    assert texts(cropped) == {"train": TRAIN[:100], "val": VAL, "test": []}
    assert cropped.evaluated == whole.evaluated != short.evaluated
    assert texts(short)["val"] == VAL[:50]
    assert len({whole.fingerprint, cropped.fingerprint, short.fingerprint}) == 3


def test_segments_are_documents(folder):
    source = task(folder, segments=True, end_token=END)
    windows = source.gather(np.arange(source.num_windows))["windows"]
    segments = np.asarray(source.batch({"windows": windows}, np.arange(len(windows)), root_key(0)).segments)
    tokens = windows[:, :-1]
    for row, numbers in zip(tokens.tolist(), segments.tolist(), strict=True):
        assert numbers == [row[:i].count(END) for i in range(8)]


def test_fingerprint_is_of_content_not_of_paths(folder, tmp_path):
    moved = tmp_path / "moved"
    folder_print = task(folder).fingerprint
    os.rename(folder, moved)
    assert task(moved).fingerprint == folder_print
    write_raw(moved / "train.bin", [*TRAIN[:-1], (TRAIN[-1] + 1) % 90])
    assert task(moved).fingerprint != folder_print


def test_digest_is_remembered_until_the_file_changes(folder, cache):
    file = open_token_file(folder / "train.bin")
    seen: list[tuple[int, int]] = []
    first = digest_tokens(file, lambda *args: seen.append(args))
    assert digest_tokens(file, lambda *args: seen.append(args)) == first
    assert seen == [(700, 700)]
    (remembered,) = (cache / "digests").iterdir()
    remembered.write_text("{")  # a damaged entry is computed again
    assert digest_tokens(file, lambda *args: seen.append(args)) == first
    write_raw(folder / "train.bin", TRAIN[::-1])
    changed = digest_tokens(open_token_file(folder / "train.bin"), lambda *args: seen.append(args))
    assert len(seen) == 3
    assert changed.sha256 != first.sha256
    assert TRAIN[::-1][changed.at] == changed.largest == max(TRAIN)


WRONG = {  # settings -> place, values of the problem
    "no such file": ({"source": "absent.bin"}, ("source",), ("absent.bin",)),
    "no such pattern": ({"source": ["train.bin", "x*.bin"]}, ("source", 1), ("x*.bin",)),
    "a token beyond the vocabulary": ({"vocab_size": 80}, ("vocab_size",), (str(max(TRAIN)), "train.bin", "80")),
    "uint32 in place of uint16": ({"dtype": "uint32"}, ("dtype",), ("uint16", "train.bin")),
    "segments without an end": ({"segments": True}, ("segments",), ()),
    "an end beyond the vocabulary": ({"end_token": 96}, ("end_token",), ("96",)),
    "a share beside a file": ({"val": 0.1}, ("val",), ("0.1",)),
    "more than there is": ({"train_tokens": 701}, ("train_tokens",), ("701", "700")),
    "windows too long": ({"seq_len": 120}, ("seq_len",), ("val", "120")),
    "evaluation windows too long": ({"eval_lengths": [120]}, ("eval_lengths", 0), ("120",)),
    "no training file": ({"source": "va*.bin"}, ("source",), ("val.bin",)),
    "nothing left": ({"source": "train.bin", "val": 0.5, "test": 0.5}, ("val",), ("0.5",)),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_refused(folder, name):
    settings, place, values = WRONG[name]
    with pytest.raises(UserError) as caught:
        task(folder, **settings)
    assert caught.value.path == place
    assert [value for value in values if value not in str(caught.value)] == []
    assert caught.value.remedy


def test_files_that_travel_with_a_study(folder):
    write_megatron(folder / "m.bin", [[TRAIN]])
    settings = {
        "kind": "tokens",
        "seq_len": 8,
        "vocab_size": 96,
        "source": ["m.bin", "tr*.bin"],
        "val_source": "val.bin",
    }
    component = build_component("task", settings)
    assert {path.name for path in component.files(folder)} == {"m.bin", "m.idx", "train.bin", "val.bin"}
    assert component.sources == ("m.bin", "tr*.bin", "val.bin")


def test_negative_tokens_are_refused_with_their_place(folder):
    np.save(folder / "filled.npy", np.array([*TRAIN, -1, -1], np.int16))
    with pytest.raises(UserError) as caught:
        task(folder, source="filled.npy", val_source="val.bin")
    assert [part for part in ("-1", "700", "filled.npy") if part not in caught.value.problem] == []
