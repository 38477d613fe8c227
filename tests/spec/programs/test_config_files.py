"""Config files that are written for programs."""

import json
import tomllib

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from taetpu.spec.programs.config_files import encode, merge
from taetpu.spec.programs.settings import flatten_settings, nest_settings

NAMES = st.text(st.characters(codec="utf-8", blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=6)
SCALARS = st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | NAMES
CONTENT = st.dictionaries(NAMES, SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(NAMES, SCALARS, max_size=3))
AMBIGUOUS = {
    "no": "yes",
    "on": "1e5",
    "version": "1.10",
    "time": "12:30",
    "null": "null",
    "x": 1e-05,
    "y": 1e22,
    "z": "a: b # c",
}


@given(CONTENT)
def test_toml_is_read_back(content):
    assert tomllib.loads(encode(content, "toml").decode()) == content


@given(CONTENT)
def test_yaml_is_read_back_by_pyyaml(content):
    assert (yaml.safe_load(encode(content, "yaml")) or {}) == content


@pytest.mark.parametrize("read", [yaml.safe_load, YAML(typ="safe", pure=True).load, yaml.load])
def test_readers_of_yaml_agree_on_ambiguous_values(read):
    more = {"Loader": yaml.SafeLoader} if read is yaml.load else {}
    assert read(encode(AMBIGUOUS, "yaml").decode(), **more) == AMBIGUOUS


def test_json_is_read_back():
    content = {"a": {"b": [1, None, True]}, "c": "é"}
    assert json.loads(encode(content, "json")) == content


def test_settings_extend_and_replace_a_template():
    template = {"model": {"dim": 64, "layers": 2}, "seed": 1}
    settings = nest_settings(flatten_settings({"model.dim": 32, "train": {"lr": 0.1}}))
    assert merge(template, settings) == {"model": {"dim": 32, "layers": 2}, "seed": 1, "train": {"lr": 0.1}}
    assert template["model"]["dim"] == 64
