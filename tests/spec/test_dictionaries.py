"""A dictionary is a study: the same arms and IDs as of the file, and errors in place of raw exceptions."""

from pathlib import Path

import numpy as np
import pytest
from ruamel.yaml import YAML
from tests.small import TINY

import taetpu
from taetpu.core.errors import UserError
from taetpu.spec.loading import load_study


@pytest.fixture
def data() -> dict:
    return YAML(typ="safe", pure=True).load(TINY + "seeds: 2\narms:\n  low-lr: {train.optimizer.lr: 1e-4}\n")


def test_file_and_dictionary_are_the_same_study(data: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "study.yaml"
    YAML(typ="safe", pure=True).dump(data, file)
    written, given = load_study(file, ["train.steps=4"]), load_study(data, ["train.steps=4"])
    assert [run.id for run in written.runs()] == [run.id for run in given.runs()]
    assert (given.file, given.folder, given.base) == (None, tmp_path, written.base)


def test_values_of_python_become_those_of_a_file(data: dict):
    data["seeds"] = (0, np.int64(1))
    data["base"]["train"]["steps"] = np.int64(4)
    data["arms"]["low-lr"]["train.optimizer.lr"] = np.float32(0.5)
    study = load_study(data)
    data["arms"].clear()  # the study has a copy
    assert (study.seeds, study.arms[0].config.train.steps) == ((0, 1), 4)
    assert study.arms[1].config.train.optimizer.lr == 0.5


def test_changes_of_the_baseline_as_texts_or_a_dictionary(data: dict):
    texts, values = ["train.steps=4", "train.optimizer.lr=0.5"], {"train.steps": np.int64(4), "train.optimizer.lr": 0.5}
    assert load_study(data, values).base == load_study(data, texts).base == load_study(data, iter(texts)).base


@pytest.mark.parametrize(
    ("sets", "place", "given"),
    [
        ("train.steps=3", "sets", "'train.steps=3'"),
        (None, "sets", "None"),
        ([("train.steps", 3)], "--set ('train.steps', 3)", "path=value"),
        ({"train.stepz": 3}, "sets['train.stepz']", "stepz"),
        ({"train.steps": "many"}, "sets['train.steps']", "many"),
        ({"train.steps": object()}, "sets", "object"),
    ],
)
def test_changes_of_another_form_are_refused_with_one_message(data: dict, sets: object, place: str, given: str):
    with pytest.raises(UserError) as error:
        load_study(data, sets)  # pyright: ignore[reportArgumentType]
    assert (len(error.value.all_errors), error.value.path[0]) == (1, place)
    assert given in str(error.value)


@pytest.mark.parametrize("seeds", [range(2), range(3, 5)])
def test_seeds_may_be_a_range(data: dict, seeds: range):
    assert load_study({**data, "seeds": seeds}).seeds == tuple(seeds)


def test_paths_are_relative_to_the_current_folder(data: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "text.txt").write_text("hello world. " * 40)
    data["base"]["task"] = {"kind": "text", "source": Path("text.txt"), "seq_len": 8}
    with pytest.raises(UserError, match=r"text\.txt") as error:
        load_study(data).runs()
    assert error.value.path == ("base", "task", "source")
    monkeypatch.chdir(tmp_path)
    assert len(load_study(data).runs()) == 4


def nested(levels: int) -> dict:
    return {"a": nested(levels - 1)} if levels else {}


REFUSED = {
    "a set": ({"study": "x", "seeds": {1, 2}}, ("seeds",), "set"),
    "an object": ({"study": "x", "base": {"model": object()}}, ("base", "model"), "object"),
    "a key": ({"study": "x", "arms": {1.5: {}}}, ("arms",), "1.5"),
    "a huge integer": ({"study": "x", "seeds": 10**5000}, ("seeds",), "16610 bits"),
    "depth": ({"study": "x", "base": nested(40)}, ("base", "a"), "nested too deeply"),
    "no study": ({}, (), "'study' is missing"),
    "a list": ([1], (), "got list"),
    "a number": (3, (), "got int"),
    "nothing": (None, (), "got NoneType"),
}


@pytest.mark.parametrize("call", [taetpu.load_study, taetpu.run, taetpu.components], ids=lambda call: call.__name__)
@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_study_is_refused_with_its_place(what: str, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    given, path, value = REFUSED[what]
    with pytest.raises(UserError) as caught:
        call(given)
    errors = caught.value.all_errors
    assert any(error.path == path and value in str(error) and error.remedy for error in errors), str(caught.value)


def test_a_cycle_is_refused(data: dict):
    data["base"]["again"] = data
    with pytest.raises(UserError, match="nested too deeply"):
        load_study(data)


def test_a_dictionary_is_not_sent_to_a_cluster(data: dict):
    with pytest.raises(UserError, match="dictionary") as error:
        taetpu.run(data, ray="")
    assert error.value.path == ("ray",)


@pytest.mark.slow
def test_a_dictionary_is_trained_as_its_file_is(data: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    del data["arms"]
    outcome = taetpu.run({**data, "seeds": 1}, ["train.steps=2"])
    assert [arm["name"] for arm in outcome.results["arms"]] == ["baseline"]
    assert outcome.whole
