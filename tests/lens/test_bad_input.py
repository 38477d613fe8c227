"""Files, texts and arguments that are wrong give a message with the place and a remedy."""

import json
import os
import pty
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import taetpu
from taetpu.cli.main import app
from taetpu.cli.output import print_sample
from taetpu.core.errors import UserError
from taetpu.core.streams import escape_controls
from taetpu.lens.activations import check_position
from taetpu.lens.label_files import read_labels, read_pair_file
from taetpu.lens.token_texts import read_token

PAIR = {"clean": "a", "corrupted": "b", "answer": " c"}
LABELS = {
    "deep": (".jsonl", '{"text": "a", "label": 0}\n' + "[" * 100_000, 2, "nested too deeply"),
    "large": (".jsonl", '{"text": "a", "label": ' + "1" * 5000 + "}", 1, "not JSON"),
    "number": (".jsonl", '{"text": 5, "label": "a"}', 1, "the field text is 5, expected a text"),
    "long": (".csv", "text,label\nb,1\n" + "a" * 131_073 + ",1", 3, "not CSV: field larger than field limit (131072)"),
}


@pytest.mark.parametrize("case", LABELS)
def test_labels_that_cannot_be_read(case, tmp_path):
    ending, content, line, problem = LABELS[case]
    file = tmp_path / f"labels{ending}"
    file.write_text(content)
    with pytest.raises(UserError) as caught:
        read_labels(file)
    assert (caught.value.file, caught.value.line) == (file, line)
    assert problem in caught.value.problem
    assert '{"text": "a dog", "label": "animal"}' in str(caught.value.remedy)


@pytest.mark.parametrize(("field", "value", "shown"), [
    ("answer", None, "null"), ("answer", True, "true"), ("answer", [1], "[1]"), ("clean", 3, "3"),
    ("wrong", 1.5, "1.5"),
])  # fmt: skip
def test_pairs_with_a_value_of_another_type(tmp_path, field, value, shown):
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps({**PAIR, "wrong": "d"}) + "\n" + json.dumps({**PAIR, "wrong": "d", field: value}))
    with pytest.raises(UserError, match=f"the field {field} is ") as caught:
        read_pair_file(file)
    assert (caught.value.line, shown in caught.value.problem) == (2, True)


def test_a_line_separator_within_a_text_ends_no_line(tmp_path):
    file = tmp_path / "labels.jsonl"
    text = "one\u2028two\u0085three\x0bfour"
    file.write_bytes(json.dumps({"text": text, "label": "a"}, ensure_ascii=False).replace("\\u000b", "\x0c").encode()
                     .replace(b"\x0c", b"\\u000b") + b'\r\n{"text": "x", "label": "b"}\r\n')  # fmt: skip
    assert read_labels(file) == ([text, "x"], ["a", "b"])


@pytest.mark.parametrize("value", [[0, 1], "0", 1.0, True])
def test_layers_heads_and_positions_are_integers(opened, value):
    for call, name in (
        (lambda: taetpu.attention_maps(opened, "the fox", layer=value), "layer"),
        (lambda: taetpu.attention_maps(opened, "the fox", layer=0, head=value), "head"),
        (lambda: taetpu.embed(opened, "the fox", layer=value), "layer"),
        (lambda: check_position(value, 3), "position"),
        (lambda: read_token(opened, value, "target") if value != "0" else check_position(value, 3), None),
    ):
        with pytest.raises(UserError) as caught:
            call()
        assert repr(value) in caught.value.problem
        assert name is None or caught.value.path == (name,)


@pytest.mark.parametrize("options", [("sample", "--prompt"), ("norms", "--text"), ("logit-lens", "--text")])
def test_a_text_that_is_not_unicode_is_refused(trained, monkeypatch, options):
    monkeypatch.chdir(trained)
    command, option = options
    result = CliRunner().invoke(app, ["lens", command, "small/baseline/0", option, "a\udcff", "--root", "runs"])
    assert isinstance(result.exception, UserError)
    assert "U+DCFF (at index 1)" in result.exception.problem


def test_control_characters_are_escaped_on_terminals_alone(capsys):
    text = "a\x1b[2J\x07\r\u202eb\tc\n"
    assert escape_controls(text) == "a\\x1b[2J\\x07\\r\\u202eb\tc\n"
    print_sample(text, end="")
    assert capsys.readouterr().out == text
    main, other = pty.openpty()
    code = "from taetpu.cli.output import print_sample, print_table; "
    code += f"print_sample({text!r}); print_table([{{'a': {text!r}}}])"
    subprocess.run([sys.executable, "-c", code], stdout=other, check=True, env={**os.environ, "NO_COLOR": "1"})
    os.close(other)
    shown = os.read(main, 10_000).decode()
    os.close(main)
    assert "\x07" not in shown
    assert "\x1b[2J" not in shown
    assert shown.count("a\\x1b[2J\\x07\\r\\u202eb") == 2
