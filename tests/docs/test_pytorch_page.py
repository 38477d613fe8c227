"""Every block of docs/pytorch.md runs, and its claims about PyTorch and JAX hold."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.docs.test_how_do_i_page import parse

from taetpu.cli.main import app
from taetpu.core.jax_setup import prepare_jax
from taetpu.core.plugins import load_plugins
from taetpu.programs.function_worker import iterate_reports
from taetpu.spec.programs.loading import load_program_study
from taetpu.testing import check_component

PAGE = (Path(__file__).parents[2] / "docs/pytorch.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PYTHON = [text for language, text in BLOCKS if language == "python"]
COMMANDS = [line for language, text in BLOCKS if not language for line in text.splitlines()]
FILES = ("ablate.py", "train.py", "squared_relu.py")
ABLATE, TRAIN, PLUGIN = (next(text for text in PYTHON if text.startswith(f"# {name}")) for name in FILES)
PORT, COMPARE, *FACTS = (text for text in PYTHON if text not in (ABLATE, TRAIN, PLUGIN))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    prepare_jax()
    (tmp_path / "squared_relu.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_parsed(line):
    assert parse(line).split()[1] == line.split()[1]


def test_the_function_trains():
    names = {"__name__": "ablate"}
    exec(ABLATE, names)
    losses = [report["loss"] for report in iterate_reports(names["train"]({"norm": True, "lr": 1e-2}, 0))]
    assert len(losses) == 6
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_the_script_that_calls_the_function_prints_an_outcome(here):
    (here / "ablate.py").write_text(ABLATE.replace("seeds=4", "seeds=1"))
    done = subprocess.run([sys.executable, "ablate.py"], cwd=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("finished") == 3
    assert "Outcome(train" in done.stdout


def test_the_study_of_a_script_is_loaded(here):
    (here / "my_script.py").write_text("")
    (text,) = [text for language, text in BLOCKS if language == "yaml"]
    (here / "study.yaml").write_text(text)
    study = load_program_study(here / "study.yaml")
    assert len(study.runs()) == 15
    assert "my_script.py" in study.inputs


def test_results_of_pytorch_are_judged(here, capsys):
    exec(TRAIN, {})
    (judge,) = [line for line in COMMANDS if " judge " in line]
    app([*shlex.split(judge)[1:], "--root", "runs"], standalone_mode=False)
    results = json.loads((here / "runs/results/results.json").read_text())
    assert [arm["name"] for arm in results["arms"]] == ["plain", "norm"]
    assert results["arms"][1]["verdict"]


def test_the_ported_module_computes_what_the_module_of_pytorch_does(monkeypatch):
    load_plugins([Path("squared_relu.py")])
    loaded = next(module for name, module in sys.modules.items() if name.startswith("taetpu_plugin_squared_relu"))
    assert isinstance(loaded, ModuleType)
    exec(PORT + COMPARE, {"squared_relu": loaded})


@pytest.mark.slow
def test_the_ported_module_passes_its_checks():
    report = check_component("ffn", "my-squared-relu", plugin="squared_relu.py")
    assert {finding.outcome for finding in report.findings} <= {"passed", "note"}


@pytest.mark.parametrize("number", range(1, len(FACTS)))
def test_a_fact_holds(number):
    exec(FACTS[0] + FACTS[number], {})


def test_every_block_is_tested():
    assert len(FACTS) == 6
    assert FACTS[0].startswith("import jax\n")
    exec(FACTS[0], {})
