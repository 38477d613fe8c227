"""A study of two arms and two seeds, trained once for all tests of the lens."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

import taetpu
from taetpu.cli.main import app

STUDY = """\
study: small
base:
  task: {kind: text, source: words.txt, seq_len: 32, tokenizer: {kind: char}}
  model: {dim: 16, num_layers: 2, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 30, batch_size: 8, keep_checkpoints: true, eval_every: 10, optimizer: {kind: adamw, lr: 1e-2}}
seeds: 2
arms:
  nope: {model.position: none}
"""


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """The folder of the study file; the studies' root is its folder `runs`."""
    folder = tmp_path_factory.mktemp("lens")
    (folder / "words.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
    (folder / "small.yaml").write_text(STUDY)
    taetpu.run(folder / "small.yaml", root=str(folder / "runs"))
    return folder


@pytest.fixture(scope="session")
def opened(trained):
    """The first run of the baseline."""
    return taetpu.open_run("small/baseline/0", root=trained / "runs", data_folder=trained)


@pytest.fixture
def lens(trained, monkeypatch):
    """Return a function that runs a command in the study's folder and returns its output."""
    monkeypatch.chdir(trained)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["lens", *arguments, "--root", "runs"])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.output

    return run
