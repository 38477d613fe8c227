"""Functions of users: what identifies them, and which reports are numbers."""

import importlib.util
import json
import math
import pickle

import numpy as np
import pytest

from taetpu.programs import function_worker
from taetpu.programs.function_source import function_digest
from taetpu.programs.function_worker import FUNCTION, REPORTS, convert_number, iterate_reports

SOURCE = """
import math
from functools import partial
import numpy as np

SCALE = 2
TABLE = {"a": [1, (2, 3)]}
ARRAY = np.arange(3)


class Model:
    width = 4

    def __init__(self, depth):
        self.depth = depth

    def size(self):
        return helper(self.width * self.depth)


MODEL = Model(3)


def helper(value):
    return value * SCALE


def other(value):
    return value


def make(offset):
    def inner(config, seed):
        return {"loss": offset + helper(seed)}
    return inner


def train(config, seed, power=2):
    return {"loss": math.sqrt(max(helper(x) for x in TABLE["a"][1]) ** power) + MODEL.size() + ARRAY.sum()}


made = make(5)
part = partial(train, power=3)
"""


def digest(tmp_path, changes=(), name="train"):
    """Return the digest of a function of `SOURCE`, in which texts are replaced."""
    source = SOURCE
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    file = tmp_path / f"functions{len([*tmp_path.iterdir()])}.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location("functions", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return function_digest(getattr(module, name))


@pytest.mark.parametrize("name", ["train", "made", "part", "MODEL"])
def test_a_function_is_identified_by_its_source_in_each_session(name, tmp_path):
    assert digest(tmp_path, name=name) == digest(tmp_path, name=name)


@pytest.mark.parametrize(
    "change",
    [
        ("power=2", "power=4"),
        ("SCALE = 2", "SCALE = 2.0"),
        ("value * SCALE", "value + SCALE"),
        ("(2, 3)", "(2, 4)"),
        ("arange(3)", "arange(4)"),
        ("Model(3)", "Model(4)"),
        ("width = 4", "width = 5"),
        ("self.width *", "self.width +"),
        ("math.sqrt", "math.exp"),
    ],
)
def test_a_change_of_what_it_uses_is_noticed(change, tmp_path):
    assert digest(tmp_path, [change]) != digest(tmp_path)


def test_a_change_of_what_it_does_not_use_is_not_noticed(tmp_path):
    assert digest(tmp_path, [("return value\n", "return 2 * value\n"), ("make(5)", "make(6)")]) == digest(tmp_path)


def test_enclosed_variables_and_arguments_of_partial_functions_are_part_of_it(tmp_path):
    assert digest(tmp_path, [("make(5)", "make(6)")], "made") != digest(tmp_path, name="made")
    assert digest(tmp_path, [("power=3", "power=4")], "part") != digest(tmp_path, name="part")


def test_a_function_without_source_is_identified_by_its_code():
    names = [{}, {}, {}]
    for scope, text in zip(names, ("x + 1", "x + 1", "x + 2"), strict=True):
        exec(f"def train(x, seed): return {text}", scope)
    digests = [function_digest(scope["train"]) for scope in names]
    assert digests[0] == digests[1] != digests[2]


def test_numbers_of_libraries_are_reported_as_numbers_of_python():
    reports = [*iterate_reports({"loss": np.float32(0.5), "n": np.array(3), "step": 7, "x": math.nan})]
    assert reports[0] | {"x": 0} == {"loss": 0.5, "n": 3.0, "step": 7, "x": 0}
    assert math.isnan(reports[0]["x"])
    assert type(reports[0]["step"]) is int
    assert [*iterate_reports(report for report in ({"a": 1}, {"a": 2}))] == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("result", [None, 0.5, [{"loss": 1}], {"loss": "x"}, {"loss": [1, 2]}, {"loss": None}])
def test_other_results_are_errors_that_show_the_value(result):
    value = result["loss"] if isinstance(result, dict) else result
    with pytest.raises(TypeError) as raised:
        list(iterate_reports(result))
    assert repr(value) in str(raised.value)


def test_a_loss_with_gradients_is_reported_without_a_warning():
    torch = pytest.importorskip("torch")
    loss = (torch.ones(3, requires_grad=True) / 2).mean()
    assert [*iterate_reports({"loss": loss})] == [{"loss": 0.5}]
    with pytest.raises(TypeError, match="'loss'"):
        convert_number("loss", torch.zeros(2))


def test_strings_that_look_like_numbers_are_numbers():
    assert convert_number("loss", "0.5") == 0.5


def test_the_worker_calls_the_function_with_settings_and_seed(tmp_path, monkeypatch):
    function, config = tmp_path / "function", tmp_path / "settings.json"
    function.write_bytes(pickle.dumps(_Sum()))
    config.write_text(json.dumps({"a": {"b": 2.5}}))
    monkeypatch.setenv(FUNCTION, str(function))
    function_worker.main(str(config), "4", str(tmp_path))
    assert (tmp_path / REPORTS).read_text() == '{"loss": 6.5}\n'


class _Sum:
    def __call__(self, config, seed):
        return {"loss": config["a"]["b"] + seed}
