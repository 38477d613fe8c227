"""Options: a dataclass becomes a command, its command line is derived from it, and some exclude each other."""

from dataclasses import replace
from pathlib import Path

import pytest
import typer

from taetpu.cli.on_tpu import OnTpuOptions
from taetpu.cli.options import StudyOptions, TrainOptions, takes_options, to_argv
from taetpu.cli.run import RunOptions


def parse(words: list[str]) -> RunOptions:
    """Return the options that `taetpu run` reads from a command line."""
    parsed: list[RunOptions] = []

    def run(options: RunOptions) -> None:
        parsed.append(options)

    app = typer.Typer(add_completion=False)
    app.command()(takes_options(run))
    app(words, standalone_mode=False)
    return parsed[0]


DEFAULTS = RunOptions(study=Path("s.yaml"))
TRAIN = {
    "sets": ["train.steps=3", "model.ffn=none"],
    "root": "gs://my-studies/a",
    "pack": "4",
    "until_resolved": True,
    "reuse": ["gs://a/b", "gs://c/d"],
    "audit": 0.25,
    "profile": 3,
    "xla_flags": "--xla_cpu_enable_fast_math=false --xla_a=1",
    "libtpu_args": "--xla_tpu_b=2",
    "dump": True,
    "retrain_damaged": True,
}
TPU = {
    "kind": "v6e-8",
    "zone": ["us-east5-b", "us-west4-a"],
    "spot": True,
    "max_hours": 1.5,
    "idle_minutes": 0,
    "keep": True,
}


def test_defaults_give_an_empty_command_line():
    assert to_argv(DEFAULTS, RunOptions) == []
    assert parse(["s.yaml"]) == DEFAULTS


@pytest.mark.parametrize("field", [*TRAIN, *TPU])
def test_a_command_line_restores_each_option(field):
    options = replace(DEFAULTS, **{field: (TRAIN | TPU)[field]})
    assert parse(["s.yaml", *to_argv(options, RunOptions)]) == options


def test_command_line_contains_the_options_of_one_class_only():
    options = replace(DEFAULTS, **TRAIN, **TPU)
    assert parse(["s.yaml", *to_argv(options, TrainOptions)]) == replace(DEFAULTS, **TRAIN)
    assert parse(["s.yaml", *to_argv(options, OnTpuOptions)]) == replace(DEFAULTS, **TPU)
    assert to_argv(options, StudyOptions) == [
        "--set", "train.steps=3", "--set", "model.ffn=none", "--root", "gs://my-studies/a",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "first", "second"),
    [
        ("--shard 0/2 --on tpu", "--shard", "--on"),
        ("--shard 0/2 --coordinator auto", "--shard", "--coordinator"),
        ("--on ray --coordinator auto", "--on", "--coordinator"),
        ("--on tpu --coordinator auto", "--on", "--coordinator"),
        ("--on tpu --process 0", "--on", "--process"),
        ("--coordinator auto --profile 3", "--profile", "--coordinator"),
        ("--no-wait", "--no-wait", "--shard"),
        ("--address 10.0.0.1:1", "--address", "--on ray"),
        ("--audit 0.5", "--audit", "--reuse"),
        ("--process 0", "--process", "--coordinator"),
        ("--type v6e-8", "--type", "--on tpu"),
        ("--on ray --max-hours 3", "--max-hours", "--on tpu"),
        ("--dry-run", "--dry-run", "--on tpu"),
        ("--on gpu", "'gpu'", "--on tpu"),
    ],
)
def test_options_that_exclude_or_require_each_other(taetpu, here, words, first, second):
    code, out, err = taetpu("run", "s.yaml", *words.split())
    assert (code, out) == (2, "")
    assert first in err.partition("where:")[0]
    assert second in err
    assert "remedy:" in err
    assert [path.name for path in here.iterdir()] == ["s.yaml"]
