"""Errors of values that do not fit a config's field."""

import pytest

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.spec.train_config import TrainConfig


@pytest.mark.parametrize(
    ("name", "value", "fields"),
    [
        ("compute", {"mesh": "foo"}, "(?s)^'foo' .*'auto' or .*mapping of data, model"),
        ("sample", 3, "^3 .*mapping of tokens, "),
    ],
)
def test_a_value_in_place_of_a_mapping_names_the_mappings_fields(name, value, fields):
    with pytest.raises(UserError, match=fields) as caught:
        load_config(TrainConfig, {"steps": 1, "batch_size": 1, name: value})
    assert caught.value.path == ((name, *value) if isinstance(value, dict) else (name,))


def test_a_value_like_an_allowed_one_names_it():
    with pytest.raises(UserError, match="'plane'") as caught:
        load_config(TrainConfig, {"steps": 1, "compute": {"attention": "plane"}})
    assert caught.value.remedy.startswith("Did you mean 'plain'? Use 'auto', 'plain'")


def test_an_entry_of_a_list_needs_a_kind():
    with pytest.raises(UserError, match=r"hook kinds .*no kind") as caught:
        load_config(TrainConfig, {"steps": 1, "hooks": [{"mine": {"trained": ["*"]}}]})
    assert caught.value.path == ("hooks", 0)
    assert "{name: {kind: ..., field: ...}}" in caught.value.remedy
