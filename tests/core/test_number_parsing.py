"""Numbers are parsed alike in study files, `--set`, claims and layer names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taetpu.core.errors import UserError
from taetpu.core.number_parsing import parse_float, parse_int
from taetpu.nn.layer_overrides import select_layers
from taetpu.spec.document import parse_value
from taetpu.stats.claims import parse_claim

NO_NUMBERS = ["0_1", "1_000", "1e3_0", "1_0.5", "٣", "0b11", "1_", "--1", "1e", "²", "1__0"]


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_numbers_that_only_python_accepts_are_rejected(text):
    assert parse_value(text) == text
    for parser in (parse_int, parse_float):
        with pytest.raises(ValueError, match="is not a"):
            parser(text)
    with pytest.raises(UserError, match=r"size of .*effect"):
        parse_claim(f"nope is worse by at least {text}", ())
    with pytest.raises(UserError, match="no layer"):
        select_layers(text, 4)


@given(st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False))
def test_formatted_numbers_are_parsed_exactly(number):
    assert parse_value(repr(number)) == number
    assert parse_float(repr(number)) == float(number)
    assert type(parse_value(repr(number))) is type(number)


@pytest.mark.parametrize(
    ("text", "value"), [("+3", 3), ("017", 17), ("0x10", 16), ("0o17", 15), (".5e3", 500.0), ("-.5", -0.5), ("5.", 5.0)]
)
def test_numbers_of_yaml_1_2(text, value):
    assert (parse_value(text), type(parse_value(text))) == (value, type(value))


def test_infinite_sizes_are_rejected():
    with pytest.raises(UserError, match=r"size of .*effect"):
        parse_claim("nope is worse by at least 1e999", ())
