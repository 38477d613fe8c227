"""Each example of a program runs as a study at tiny size. Those whose library is not installed are only planned."""

import importlib.util
import math
import os
import sys
from pathlib import Path

import pytest
import yaml

from taetpu.core.errors import UserError
from taetpu.spec.programs.loading import load_program_study
from taetpu.study.programs.running import run_program_file

EXAMPLES = Path(__file__).parents[2] / "examples" / "programs"
EXAMPLE_FILES = {
    "bash/compress": {"words": 1000},
    "nanogpt/nanogpt": {"max_iters": 2},
    "trainer/trainer": {"max_steps": 2},
    "hydra/hydra": {},
    "lightning/lightning": {"epochs": 1},
}
"""The examples, with changes that make them small."""
LIBRARIES = {"trainer/trainer": "accelerate", "hydra/hydra": "hydra", "lightning/lightning": "lightning"}


@pytest.fixture(autouse=True)
def python_is_that_of_the_tests(monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def read_example(name: str, base: dict) -> dict:
    """Return a study with the baseline, one arm and one seed, which are enough to run the program."""
    study = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    study["program"]["cwd"] = str(EXAMPLES / name.partition("/")[0])
    return {**study, "seeds": 1, "arms": dict([*study["arms"].items()][:1]), "base": study["base"] | base}


def states() -> dict[Path, int]:
    """Return when each file of the examples was changed."""
    return {file: file.stat().st_mtime_ns for file in EXAMPLES.rglob("*") if "__pycache__" not in str(file)}


@pytest.mark.parametrize("name", EXAMPLE_FILES)
def test_an_example_can_be_planned(name):
    study = load_program_study(EXAMPLES / f"{name}.yaml")
    assert study.name
    assert len(study.arms) == 3
    assert all(arm.change(study.base) for arm in study.arms[1:])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if "bash" not in name else []) for name in EXAMPLE_FILES]
)
def test_an_example_runs(name, tmp_path):
    if importlib.util.find_spec(library := LIBRARIES.get(name, "sys")) is None:
        pytest.skip(f"{library} is not installed")
    before = states()
    outcome = run_program_file(read_example(name, EXAMPLE_FILES[name]), root=str(tmp_path))
    assert not outcome.failed
    values = [run["value"] for arm in outcome.results["arms"] for run in arm["runs"]]
    assert len(values) == 2
    assert all(map(math.isfinite, values))
    assert states() == before


def test_the_shown_example_lacks_only_its_program():
    with pytest.raises(UserError) as raised:
        load_program_study(EXAMPLES / "torchtitan" / "torchtitan.yaml")
    assert raised.value.path == ("program", "cwd")
