"""Names and labels are valid for Google and different for different texts."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taetpu.cloud.machine_api import Spec
from taetpu.cloud.names_and_labels import EXPIRES, check_name, default_name, format_labels, hours_left, label_value
from taetpu.core.chips import parse_slice
from taetpu.core.errors import UserError

NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")  # Compute Engine's rule
VALUE = re.compile(r"[a-z0-9_-]{0,63}")
TEXTS = st.text(max_size=80)


@given(TEXTS)
def test_label_values_are_valid_and_stable(text: str) -> None:
    value = label_value(text)
    assert value
    assert VALUE.fullmatch(value)
    assert label_value(value) == value


@given(st.lists(TEXTS, unique=True, min_size=2, max_size=8))
def test_different_texts_have_different_values(texts: list[str]) -> None:
    assert len({label_value(text) for text in texts}) == len(texts)


@given(TEXTS, TEXTS)
def test_default_names_are_valid(owner: str, study: str) -> None:
    name = default_name(label_value(owner), study)
    assert NAME.fullmatch(name)
    assert check_name(name) == name
    assert len(name) <= 48


@given(st.lists(st.from_regex(r"[a-z0-9_-]{1,60}", fullmatch=True), unique=True, min_size=2, max_size=8))
def test_different_owners_have_different_names(owners: list[str]) -> None:
    assert len({default_name(owner) for owner in owners}) == len(owners)


def test_short_names_are_readable() -> None:
    assert default_name("me") == "tpu-me"
    assert default_name("me", "widths") == "tpu-me-widths"


@pytest.mark.parametrize("name", ["", "1a", "Box", "a_b", "a-", "ä", "a" * 49, "a\n"])
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=re.escape(repr(name))) as raised:
        check_name(name)
    assert "48" in str(raised.value.remedy)


@pytest.mark.parametrize(("api", "longest"), [("gce", 2.0), ("tpu-api", 4.0)])
def test_the_latest_end_is_in_the_labels(api: str, longest: float) -> None:
    made = Spec("box", parse_slice("v6e-8"), api, "me", 2.0, "r", study="s").labels()
    assert hours_left(made) == pytest.approx(longest, abs=0.01)
    assert all(VALUE.fullmatch(value) for value in made.values())
    assert format_labels({"a": "1", "b": "2"}) == "a=1,b=2"


@pytest.mark.parametrize("text", ["", "soon", "-1", "1.5"])
def test_an_unreadable_end_is_unknown(text: str) -> None:
    assert hours_left({EXPIRES: text}) is None
    assert hours_left({}) is None
    assert hours_left({EXPIRES: str(int(time.time() - 3600))}) == pytest.approx(-1, abs=0.01)
