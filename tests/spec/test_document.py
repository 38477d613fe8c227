"""YAML values: what the core schema of YAML 1.2 does not name is a text."""

import pytest

from taetpu.spec.document import parse_value


@pytest.mark.parametrize("text", ["2020-01-01", "2001-12-14t21:59:43.10-05:00", "1_0", "0b11", "yes"])
def test_a_date_is_a_text(text):
    assert parse_value(text) == text
