"""A Python function as a task: its examples, its settings, and mistakes in it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.core.registry import unregister
from taetpu.data.function_task import task_function


@pytest.fixture(autouse=True)
def sums():
    @task_function("test-sums")
    def test_sums(random, largest: int = 99, sign="+"):
        """Add two numbers."""
        a, b = random.randint(0, largest), random.randint(0, largest)
        return f"{a}{sign}{b}=", str(a + b)

    yield test_sums
    unregister(__name__)


def prepare(**fields: Any) -> Any:
    settings = {"kind": "test-sums", "seq_len": 9, "examples": 300, "eval_size": 40, **fields}
    task: Any = build_component("task", settings)
    return task.prepare(Path())


def texts(source, tokens, targets, weights):
    """Return each sequence as its question and its answer with the line end, read from tokens and weights."""
    for row, target, weight in zip(tokens, targets, weights, strict=True):
        whole = source.show(np.append(row, target[-1]))
        scored = np.flatnonzero(weight) + 1
        yield whole[: scored[0]], whole[scored[0] : scored[-1] + 1]
        assert source.show(target) == whole[1:]


def test_the_answer_and_the_line_end_are_scored():
    source = prepare()
    train = [source.arrays[name] for name in ("tokens", "targets", "weights")]
    val = source.evaluation("val")
    pairs = {"train": [*texts(source, *train)], "val": [*texts(source, val.tokens, val.targets, val.weights)]}
    for question, answer in pairs["train"] + pairs["val"]:
        assert answer == f"{eval(question[:-1])}\n"
    assert len(pairs["val"]) == 40
    assert not {question for question, _ in pairs["train"]} & {question for question, _ in pairs["val"]}
    assert len(pairs["train"]) + source.facts["removed"] == 300
    assert source.show(source.prompt()).endswith("=")
    assert source.show([source.special_tokens["eos_token_id"]]) == "\n"  # at which generated texts end


def test_arguments_are_settings_and_examples_depend_on_nothing_else():
    first, again, other = prepare(), prepare(), prepare(largest=50)
    assert first.fingerprint == again.fingerprint != other.fingerprint
    longer = prepare(examples=500)
    assert longer.evaluated == first.evaluated
    with pytest.raises(UserError) as caught:
        prepare(largest="many")
    assert caught.value.path == ("largest",)


def test_a_small_set_of_questions_is_refused():
    with pytest.raises(UserError) as caught:
        prepare(largest=1)
    assert caught.value.path == ("examples",)
    assert "300" in caught.value.problem


@pytest.mark.parametrize(
    ("returned", "named"),
    [("1+1", "'1+1'"), (("1+1", 2), "2"), (("", "2"), "''"), (("1\n", "2"), "'1\\n'"), (("12345=", "6789"), "seq_len")],
)
def test_what_a_function_returns_is_checked(returned, named):
    task_function("test-wrong")(lambda random: returned)
    with pytest.raises(UserError) as caught:
        prepare(kind="test-wrong")
    assert named in caught.value.problem
    assert caught.value.remedy


def test_an_error_of_the_function_is_named():
    task_function("test-fails")(lambda random: 1 / 0)
    with pytest.raises(UserError, match="ZeroDivisionError") as caught:
        prepare(kind="test-fails")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("function", [lambda random, size: ("1", "2"), lambda random, seq_len=3: ("1", "2")])
def test_an_argument_is_a_setting_with_a_default(function):
    with pytest.raises(UserError) as caught:
        task_function("test-argument")(function)
    assert "argument" in caught.value.problem
