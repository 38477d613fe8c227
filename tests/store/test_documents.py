"""JSON and YAML documents: round trips, equal bytes for equal content, and errors for damaged files."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taetpu.core.errors import UserError
from taetpu.store.documents import finite, from_json, from_yaml, to_json, to_yaml

# Words that YAML or its older versions take for something else than text.
TRAPS = ["1e-3", "1_000", "0o7", "012", "12:30", "2020-01-01", "yes", "no", "null", "~", "=", "<<", ".nan", "- a", ""]
words = st.one_of(st.sampled_from(TRAPS), st.text(st.characters(codec="utf-8"), max_size=12))
numbers = st.one_of(st.integers(-(2**70), 2**70), st.floats(allow_nan=False, allow_infinity=False))
scalars = st.one_of(st.none(), st.booleans(), numbers, words)


def mappings(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(words, inner, max_size=4)


plain = st.recursive(scalars, lambda inner: st.one_of(st.lists(inner, max_size=3), mappings(inner)), max_leaves=8)


def same(a: Any, b: Any) -> bool:
    """Return whether two values are equal and have equal types: 1 differs from True and 1.0."""
    return repr(a) == repr(b)


@given(mappings(plain))
def test_yaml_round_trip_keeps_types_and_order(data: dict[str, Any]):
    assert same(from_yaml(to_yaml(data), "study.yaml"), data)


@given(plain)
def test_json_round_trip(data: Any):
    written = to_json(data)
    assert from_json(written, "x.json") == data
    assert written == to_json(from_json(written, "x.json"))


def test_equal_content_gives_equal_bytes():
    assert to_json({"b": 1, "a": (1, 2)}) == to_json({"a": [1, 2], "b": 1})
    assert to_json({"a": np.float32(0.5), "b": np.int64(3)}) == b'{\n  "a": 0.5,\n  "b": 3\n}\n'


def test_numbers_that_json_cannot_represent():
    data = {"metrics": {"val/loss": math.nan, "a": [np.float32("inf"), 1.5, None]}, "steps": 3}
    assert finite(data) == {"metrics": {"val/loss": None, "a": [None, 1.5, None]}, "steps": 3}
    with pytest.raises(ValueError, match="JSON"):
        to_json(data)
    assert json.loads(to_json(finite(data))) == finite(data)


@pytest.mark.parametrize("data", [b"", b"{", b'{"a": 1,\n', b"\xff\xfe\x00", b'{"a": 1}}'])
def test_damaged_json_names_the_file(data: bytes):
    with pytest.raises(UserError, match="not valid") as caught:
        from_json(data, "runs/x/result.json")
    assert "runs/x/result.json" in str(caught.value)
    assert "remedy" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"a: 1\na: 2\n", "duplicate key"),
        (b"a: [1,\n", "not valid YAML"),
        (b"\xff", "not valid YAML"),
        (b"a: \x00", "not valid YAML"),
        (b"", "expected a mapping, got NoneType"),
        (b"- 1\n", "expected a mapping, got list"),
    ],
)
def test_damaged_yaml_names_the_file(data: bytes, problem: str):
    with pytest.raises(UserError, match=problem) as caught:
        from_yaml(data, "what/study.yaml")
    assert "what/study.yaml" in str(caught.value)


def test_damaged_yaml_names_the_line():
    with pytest.raises(UserError) as caught:
        from_yaml(b"a: 1\nb: 2\na: 3\n", "study.yaml")
    assert "study.yaml:3" in str(caught.value)
