"""Metrics: what a study file may say, how reports become values and curves, and which reports are refused."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.programs.folders.logged import RUNS

from taetpu.core.errors import UserError
from taetpu.programs import metrics
from taetpu.programs.folders.values import Points
from taetpu.programs.metric_sources import check_names, parse_sources
from taetpu.programs.metrics import MetricReader

STORED = Path(__file__).parent / "folders" / "stored"
PATTERN = {"stdout": r"step (?P<step>\S+):(?: loss (?P<loss>\S+))?(?: acc (?P<acc>\S+))?"}


@pytest.fixture
def read(tmp_path):
    """`read(section, output)` returns a reader that has read standard output."""

    def read(section, output="", complete=True, required=()):
        reader = MetricReader(parse_sources(section), tmp_path, required)
        reader.write("stdout", output.encode())
        reader.finish(complete)
        return reader

    return read


def curve(reader, name):
    series = reader.curves[name]
    assert (series.step.dtype, series.value.dtype) == (np.int64, np.float64)
    return dict(zip(series.step.tolist(), series.value.tolist(), strict=True))


# --- the section ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "path", "named"),
    [
        ({}, (), "jsonl"),
        ({"step": "iter"}, (), "jsonl"),
        ({"stdot": "(?P<loss>.)"}, ("stdot",), "'stdout'"),
        ({"stdout": "loss ("}, ("stdout",), "position 5"),
        ({"stdout": ["(?P<loss>.)", r"loss (\S+)"]}, ("stdout", 1), r"loss (\\S+)"),
        ({"stdout": r"(?P<step>\d+)"}, ("stdout",), "(?P<step>"),
        ({"stderr": 3}, ("stderr",), "3"),
        ({"stderr": []}, (), "jsonl"),
        ({"jsonl": ""}, ("jsonl",), "''"),
        ({"jsonl": "/tmp/log"}, ("jsonl",), "{folder}"),
        ({"csv": ["a.csv", "../b.csv"]}, ("csv", 1), "../b.csv"),
        ({"tensorboard": "{folder}/../x"}, ("tensorboard",), "{folder}/../x"),
        ({"json": "stdin"}, ("json",), "stdout"),
        ({"lm-eval": "."}, ("lm-eval",), "tensorboard"),
        ({"csv": "a.csv", "step": 3}, ("step",), "3"),
    ],
)
def test_sections_that_name_no_source_are_refused(section, path, named):
    with pytest.raises(UserError) as raised:
        parse_sources(section)
    assert raised.value.path == path
    assert named in str(raised.value)


def test_all_mistakes_are_reported():
    with pytest.raises(UserError) as raised:
        parse_sources({"stdout": "(", "csv": "/a"})
    assert [error.path for error in raised.value.all_errors] == [("stdout",), ("csv",)]


def test_metrics_that_no_pattern_gives_are_refused_with_the_nearest():
    sources = parse_sources({"stdout": r"(?P<val_loss>\S+)", "stderr": r"(?P<step>\d+) (?P<lr>\S+)"})
    check_names(sources, ["val_loss", "lr"])
    for name, nearest in (("val_los", "'val_loss'"), ("step", "lr, val_loss")):
        with pytest.raises(UserError) as raised:
            check_names(sources, [name])
        assert nearest in raised.value.remedy
        assert f"(?P<{name}>" in raised.value.remedy
    check_names(parse_sources({"stdout": "(?P<loss>.)", "csv": "a.csv"}), ["anything"])


# --- output -----------------------------------------------------------------------------------------------------------


def test_reports_become_values_and_curves(read):
    reader = read(PATTERN, "step 0: loss 3.5\nother\nstep 10: loss 2.5 acc .5\nstep 20: acc 1e-3\n")
    assert reader.last == {"loss": 2.5, "acc": 0.001}
    assert curve(reader, "loss") == {0: 3.5, 10: 2.5}
    assert curve(reader, "acc") == {10: 0.5, 20: 0.001}
    assert (reader.step, reader.changes) == (20, 4)


@pytest.mark.parametrize(
    ("steps", "kept"),
    [
        ([1, 2, 3], [0, 1, 2]),
        ([1, 2, 2], [0, 2]),
        ([1, 9, 5, 7], [0, 2, 3]),
        ([5, 6, 7, 2, 3], [3, 4]),
        ([0, "+1", "2.0"], [0, 1, 2]),
    ],
)
def test_a_step_replaces_those_that_are_not_below_it_and_the_last_report_counts(steps, kept, read):
    reader = read(PATTERN, "".join(f"step {step}: loss {index}.5\n" for index, step in enumerate(steps)))
    assert reader.last == {"loss": len(steps) - 0.5}
    assert curve(reader, "loss") == {int(float(steps[index])): index + 0.5 for index in kept}


def test_values_without_steps_are_numbered(read):
    section = {"stdout": [r"^loss (?P<loss>\S+)", r"^(?P<step>\d+) (?P<acc>\S+)", r"^final (?P<acc>\S+)"]}
    reader = read(section, "loss 3\nloss 2\n7 0.5\nfinal 0.75\n")
    assert curve(reader, "loss") == {1: 3, 2: 2}
    assert curve(reader, "acc") == {7: 0.5}
    assert reader.last == {"loss": 2, "acc": 0.75}


@pytest.mark.parametrize("text", ["nan", "NaN", "inf", "-inf", "Infinity", "+inf"])
def test_values_that_are_not_finite_are_values(text, read):
    reader = read(PATTERN, f"step 1: loss 2\nstep 2: loss {text}\n", required=["loss"])
    assert repr(reader.last["loss"]) == repr(float(text))
    assert repr(curve(reader, "loss")[2]) == repr(float(text))


@pytest.mark.parametrize("text", ["45%", "1,000", "1_0", "tensor(2.5)", "0x1", "1e999", "None"])
def test_values_that_are_no_numbers_are_refused_with_their_line(text, tmp_path):
    reader = MetricReader(parse_sources(PATTERN), tmp_path)
    with pytest.raises(UserError) as raised:
        reader.write("stdout", f"first\nstep 1: loss {text}\n".encode())
    assert (raised.value.file, raised.value.line, raised.value.path) == ("stdout", 2, ("loss",))
    assert repr(text) in raised.value.problem


@pytest.mark.parametrize("step", ["1.5", "x", "nan"])
def test_steps_that_are_no_integers_are_refused(step, read):
    with pytest.raises(UserError) as raised:
        read(PATTERN, f"step {step}: loss 2\n")
    assert (raised.value.line, raised.value.path) == (1, ("step",))
    assert repr(step) in raised.value.problem


def test_a_pattern_sees_one_line_and_its_start_only(read):
    section = {"stdout": r"loss\s+(?P<loss>\d+)"}
    assert read(section, "loss\n3\nloss \r4\r").last == {}
    assert read(section, "x" * 9000 + "loss 3\n").last == {}
    assert read(section, "x" * 8000 + "loss 3\n").last == {"loss": 3}
    assert read(section, "\r10%\r loss 3 \r20%").last == {"loss": 3}


def test_each_stream_has_its_patterns(tmp_path):
    reader = MetricReader(parse_sources({"stdout": "a(?P<a>.)", "stderr": "a(?P<b>.)"}), tmp_path)
    for stream, data in (("stdout", b"a"), ("stderr", b"a2\n"), ("stdout", b"1\n")):
        reader.write(stream, data)
    assert reader.last == {"a": 1, "b": 2}


def test_metrics_that_were_not_reported_are_named_with_the_nearest(read):
    with pytest.raises(UserError) as raised:
        read(PATTERN, "step 1: loss 2\n", required=["los"])
    assert "'los'" in raised.value.problem
    assert "'loss'" in raised.value.remedy
    assert read(PATTERN, "", complete=False, required=["loss"]).last == {}


def test_json_in_the_last_line(read):
    output = 'loss 9\n{"step": 3, "loss": 2.5, "val": {"acc": 0.5, "f1": "nan"}, "name": "x", "ok": true}\n\n'
    reader = read({"json": "stdout"}, output)
    assert reader.last.pop("val.f1") != 0
    assert {name: value for name, value in reader.last.items() if value == value} == {"loss": 2.5, "val.acc": 0.5}
    assert math.isnan(reader.last["val.f1"])
    assert curve(reader, "loss") == {3: 2.5}


@pytest.mark.parametrize(("output", "line"), [("", None), ("a\nb", 2), ("[1]\n", 1), ('{"loss": "x"}', 1)])
def test_a_last_line_that_is_no_json_is_an_error_of_a_program_that_succeeded(output, line, read):
    with pytest.raises(UserError) as raised:
        read({"json": "stdout"}, output, required=["loss"])
    assert (raised.value.file, raised.value.line) == ("stdout", line)
    assert read({"json": "stdout"}, output, complete=False).last == {}


def test_the_number_of_metrics_is_limited(read, monkeypatch):
    monkeypatch.setattr(metrics, "MAX_METRICS", 3)
    with pytest.raises(UserError, match="'d'"):
        read({"json": "stdout"}, '{"a": 1, "b": 2, "c": 3, "d": 4}')


# --- curves -----------------------------------------------------------------------------------------------------------


def test_long_curves_are_thinned_out_evenly_with_their_last_point():
    points = Points(8)
    for step in range(1000):
        points.add("loss", step / 2, step)
        steps = points.curves["loss"].step.tolist()
        assert steps[0] == 0
        assert steps[-1] == step
        assert len(steps) <= 10
        gaps = np.diff(steps[:-1])
        assert (gaps == gaps[:1]).all()
    points.add("loss", 1, 500)
    steps = points.curves["loss"].step.tolist()
    assert steps[-1] == 500
    assert max(steps[:-1]) < 500


# --- files ------------------------------------------------------------------------------------------------------------


def test_jsonl_is_read_while_it_grows(tmp_path):
    reader, file = (
        MetricReader(parse_sources({"jsonl": "{folder}/log.jsonl", "step": "it"}), tmp_path),
        tmp_path / "log.jsonl",
    )
    reader.poll()
    with file.open("w") as opened:
        for index, text in enumerate(
            ('{"it": 1, "loss": 3}\n{"it"', ': 2, "loss": 2', '}\n\n{"it": 3.0, "loss": null}\n')
        ):
            opened.write(text)
            opened.flush()
            reader.poll()
            assert reader.changes == (1, 1, 3)[index]
    reader.finish(complete=True)
    assert [*curve(reader, "loss")] == [1, 2, 3]
    assert math.isnan(reader.last["loss"])


def test_csv_is_read_while_it_grows(tmp_path):
    reader, file = MetricReader(parse_sources({"csv": "log.csv"}), tmp_path), tmp_path / "log.csv"
    lines = [
        '\ufeffstep,phase,loss,"val, loss"\r\n',
        "1,train,3.5,\r\n",
        "2,val,,2.5\r\n",
        'step,phase,loss,"val, loss"\r\n3,train,nan,',
    ]
    with file.open("w", newline="") as opened:
        for line in lines:
            opened.write(line)
            opened.flush()
            reader.poll()
    assert curve(reader, "loss") == {1: 3.5}
    reader.finish(complete=True)
    assert [*curve(reader, "loss")] == [1, 3]
    assert curve(reader, "val, loss") == {2: 2.5}
    assert {*reader.last} == {"loss", "val, loss"}


@pytest.mark.parametrize(
    ("name", "content", "line", "path"),
    [
        ("jsonl", '{"loss": 1}\n{"loss": "x"}\n', 2, ("loss",)),
        ("jsonl", '{"loss": 1}\nloss 2\n', 2, ()),
        ("jsonl", "3\n", 1, ()),
        ("jsonl", '{"step": true, "loss": 1}\n', 1, ("step",)),
        ("csv", "step,loss\n1,2\n2,x\n", 3, ("loss",)),
        ("csv", "step,acc\n1,x\n", 2, ("acc",)),
        ("csv", "step,loss\n1.5,2\n", 2, ("step",)),
        ("csv", "loss,loss\n", 1, ()),
        ("csv", "step,loss\n1,2,3\n", 2, ()),
        ("csv", 'step,loss\n1,"2\n', 2, ()),
    ],
)
def test_damaged_lines_of_files_are_refused_with_their_place(name, content, line, path, tmp_path):
    reader = MetricReader(parse_sources({name: "log"}), tmp_path, ["acc"])
    (tmp_path / "log").write_text(content)
    with pytest.raises(UserError) as raised:
        reader.poll()
    assert (raised.value.file, raised.value.line, raised.value.path) == (tmp_path / "log", line, path)
    reader.finish(complete=False)


def test_a_rewritten_file_is_numbered_from_one_again(tmp_path):
    reader, file = MetricReader(parse_sources({"csv": "log.csv"}), tmp_path), tmp_path / "log.csv"
    for content in ("loss\n3\n2\n", "loss,acc\n3,0\n2,0\n1,1\n"):
        file.write_text(content)
        reader.poll()
    reader.finish(complete=True)
    assert curve(reader, "loss") == {1: 3, 2: 2, 3: 1}
    assert curve(reader, "acc") == {1: 0, 2: 0, 3: 1}


def test_a_file_that_is_missing_is_an_error_of_a_program_that_succeeded(read, tmp_path):
    with pytest.raises(UserError) as raised:
        read({"jsonl": "no.jsonl"})
    assert raised.value.file == tmp_path / "no.jsonl"
    assert read({"jsonl": "no.jsonl"}, complete=False).last == {}


# --- folders ----------------------------------------------------------------------------------------------------------

FOLDERS = {
    "tensorboard": ("torch-2.13.0-tensorboard-2.21.0", "tensorboard"),
    "wandb": ("wandb-0.31.0-offline", "wandb"),
    "lightning": ("lightning-2.6.6", None),
    "trainer": ("transformers-5.23.0", None),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_folders_of_trackers_are_read_while_they_grow(kind, tmp_path, monkeypatch):
    stored, library = FOLDERS[kind]
    if library:
        pytest.importorskip(library)
    monkeypatch.setattr(metrics, "FOLDER_INTERVAL", 0)
    monkeypatch.setattr(metrics, "FOLDER_SHARE", 0)
    reader = MetricReader(parse_sources({kind: "logs"}), tmp_path)
    reader.poll()
    run = sorted(path for path in (STORED / stored).rglob("*") if path.is_dir())[0]
    shutil.copytree(run, tmp_path / "logs" / run.name)
    reader.poll()
    changes = reader.changes
    assert changes == len(reader.last) > 0
    reader.poll()
    reader.finish(complete=True)
    assert reader.changes == changes
    assert reader.curves
    for name, series in reader.curves.items():
        assert reader.last[name] == pytest.approx(series.value[-1], nan_ok=True)
    assert {*map(repr, reader.last.values())} & {repr(run.loss[-1]) for run in RUNS}


def test_a_half_written_folder_is_read_later(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "FOLDER_INTERVAL", 0)
    monkeypatch.setattr(metrics, "FOLDER_SHARE", 0)
    reader = MetricReader(parse_sources({"trainer": "."}), tmp_path, ["loss"])
    state = json.dumps(
        {"global_step": 2, "max_steps": 2, "log_history": [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}]}
    )
    (tmp_path / "trainer_state.json").write_text(state[:30])
    reader.poll()
    assert reader.last == {}
    with pytest.raises(UserError):
        reader.finish(complete=True)
    (tmp_path / "trainer_state.json").write_text(state)
    reader.poll()
    assert curve(reader, "loss") == {1: 3, 2: 2}
    assert reader.step == 2
    reader.finish(complete=True)
