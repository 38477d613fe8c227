"""Settings of a program as words of its command and as environment variables."""

import ast
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.spec.programs.command import Command
from taetpu.spec.programs.loading import read_command
from taetpu.spec.programs.program_config import ProgramConfig

PLACES = {"seed": "3", "folder": "/runs/a b", "arm": "wide", "study": "s"}


def command(words, settings, **rules) -> Command:
    config = load_config(ProgramConfig, {"command": words, "metrics": {"stdout": "(?P<loss>.*)"}, **rules})
    return read_command(config, settings)


def filled(words, settings, **rules) -> list[str]:
    return command(words, settings, **rules).fill_words(settings, PLACES)


def test_a_word_is_repeated_for_each_setting_that_no_other_word_names():
    settings = {"model": "gpt", "lr": 1e-3, "opt.beta": 0.9}
    words = ["run", "{model}", "--{key}={value}", "--seed={seed}", "--out={folder}"]
    assert filled(words, settings) == ["run", "gpt", "--lr=0.001", "--opt.beta=0.9", "--seed=3", "--out=/runs/a b"]


def test_neighbouring_words_are_repeated_together():
    assert filled(["x", "--{key}", "{value}", "end"], {"a": 1, "b": "two words"}) == [
        "x", "--a", "1", "--b", "two words", "end",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rules", "value", "expected"),
    [
        ({}, True, ["--k=True"]),
        ({}, False, ["--k=False"]),
        ({}, None, []),
        ({}, [1, "a"], ["--k=[1, 'a']"]),
        ({}, 1e-5, ["--k=1e-05"]),
        ({"values": "json"}, True, ["--k=true"]),
        ({"values": "json"}, [1, "a", None], ['--k=[1,"a",null]']),
        ({"values": "hydra"}, None, ["--k=null"]),
        ({"values": "hydra"}, "a b", ["--k='a b'"]),
        ({"values": "hydra"}, "true", ["--k='true'"]),
        ({"values": "hydra"}, ["x", 1.5], ["--k=[x,1.5]"]),
        ({"booleans": "number"}, True, ["--k=1"]),
        ({"booleans": "flag"}, True, ["--k"]),
        ({"booleans": "flag"}, False, []),
        ({"booleans": "flag-pair"}, True, ["--k"]),
        ({"booleans": "flag-pair"}, False, ["--no-k"]),
        ({"lists": "comma"}, [1, 2], ["--k=1,2"]),
        ({"lists": "repeat"}, ["a", "b"], ["--k=a", "--k=b"]),
    ],
)
def test_rules_for_booleans_none_and_lists(rules, value, expected):
    assert filled(["run", "--{key}={value}"], {"k": value}, **rules) == ["run", *expected]


def test_lists_as_words_follow_their_key():
    assert filled(["run", "--{key}", "{value}"], {"k": [1, 2], "l": 3}, lists="words") == [
        "run", "--k", "1", "2", "--l", "3",
    ]  # fmt: skip


def test_flags_of_two_words_have_no_value():
    assert filled(["run", "--{key}", "{value}"], {"k": True, "l": 3}, booleans="flag") == ["run", "--k", "--l", "3"]


@given(st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"])))
def test_text_reaches_the_program_as_it_is(text):
    assert filled(["{{run}}", "{key}={value}"], {"k": text}) == ["{run}", f"k={text}"]


def test_no_shell_reads_the_words():
    text = "$HOME; `ls` 'one' \"two\" * \\ \n{x}"
    words = filled([sys.executable, "-c", "import sys, json; print(json.dumps(sys.argv[1:]))", "{value}"], {"k": text})
    assert json.loads(subprocess.run(words, capture_output=True, check=True).stdout) == [text]


@given(st.recursive(st.booleans() | st.integers() | st.text(), lambda items: st.lists(items, max_size=3), max_leaves=5))
def test_values_in_pythons_notation_are_read_back_by_python(value):
    (word,) = filled(["{value}"], {"k": [value]})
    assert ast.literal_eval(word) == [value]


@pytest.mark.parametrize(
    ("words", "path", "named"),
    [
        (["run", "--{kye}={value}"], ("command", 1), "'key'"),
        (["run", "--{key}={value}", "{lrr}"], ("command", 2), "'lr'"),
        (["run", "--{key}={value}", "{config}"], ("command", 2), "seed"),
        (["run", "a}b", "--{key}={value}"], ("command", 1), "}}"),
        (["bash", "-c", "echo ${HOME}", "--{key}={value}"], ("command", 2), "{{HOME}}"),
        (["run", "--{key}"], ("command",), "{value}"),
    ],
)
def test_braces_that_name_nothing_are_refused(words, path, named):
    with pytest.raises(UserError) as caught:
        command(words, {"lr": 0.1})
    assert caught.value.path == path
    assert named in (caught.value.remedy or "")


@pytest.mark.parametrize("rules", [{"lists": "words"}, {"booleans": "flag-pair"}])
def test_forms_that_no_word_can_hold_are_refused(rules):
    with pytest.raises(UserError) as caught:
        command(["run", "{key}={value}"], {"lr": 0.1}, **rules)
    assert caught.value.path == (next(iter(rules)),)


def test_environment_variables_have_the_names_of_settings():
    made = command(["run"], {"opt.lr": 0.1, "off": None}, environment={"SEED": "{seed}", "X_{key}": "{value}", "N": 2})
    assert made.fill_environment({"opt.lr": 0.1, "off": None}, PLACES) == {"SEED": "3", "X_OPT_LR": "0.1", "N": "2"}


def test_a_variable_for_each_setting_needs_a_name_for_each():
    with pytest.raises(UserError) as caught:
        command(["run"], {"lr": 0.1}, environment={"ALL": "{value}"})
    assert caught.value.path == ("environment", "ALL")
