"""Models of synthetic tasks read and show the symbols of their task."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import taetpu
from taetpu.cli.main import app
from taetpu.core.errors import UserError

STUDY = """\
study: sums
base:
  task: {kind: long-addition, seq_len: 13, eval_size: 8}
  model: {dim: 8, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 2, batch_size: 4}
seeds: 1
"""
IDS = [12, 1, 2, 10, 3, 11]


@pytest.fixture(scope="module")
def sums(tmp_path_factory):
    folder = tmp_path_factory.mktemp("symbols")
    (folder / "sums.yaml").write_text(STUDY)
    taetpu.run(folder / "sums.yaml", root=str(folder / "runs"))
    return folder


def sample(folder, prompt):
    done = CliRunner().invoke(
        app, ["lens", "sample", "sums/baseline/0", "--prompt", prompt, "--json", "--root", str(folder / "runs")]
    )
    return done.exception or json.loads(done.stdout)[0]


@pytest.mark.slow
def test_symbols_and_numbers_of_tokens_are_the_same_input(sums):
    opened = taetpu.open_run("sums/baseline/0", root=sums / "runs")
    np.testing.assert_array_equal(opened.encode("<bos>12+3=").ids, opened.encode(IDS).ids)
    assert opened.decode(IDS) == "<bos> 1 2 + 3 ="
    measured = [taetpu.perplexity(opened, [text]).losses for text in ("<bos> 1 2", IDS[:3])]
    np.testing.assert_array_equal(*measured)
    assert sample(sums, "<bos>12+3=")["text"] == sample(sums, " ".join(map(str, IDS)))["text"]


@pytest.mark.slow
def test_a_symbol_that_the_task_lacks_is_named(sums):
    error = sample(sums, "<bos>12-3=")
    assert isinstance(error, UserError)
    assert "'-3='" in error.problem
    assert "+" in str(error.remedy)
