"""Every study in docs/any-program.md is run with tiny programs that have the interfaces which the page assumes."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from taetpu.spec.programs.loading import load_program_study
from taetpu.spec.programs.program_config import Booleans, Lists, ProgramConfig, Values
from taetpu.spec.programs.study_keys import MODEL_KEYS, MODEL_MEASURES
from taetpu.stats.verify import verify
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.programs.running import run_program_file

PAGE = (Path(__file__).parents[2] / "docs" / "any-program.md").read_text()
BLOCKS = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
QUICK = (0, 1, 2, 3)
"""The places of the studies that run by default, one of each program."""
PATTERN = r"step (?P<step>\d+): loss (?P<loss>\S+)"
WRITE = """
import json, sys
for step in (1, 2):
    loss = round(2 / step + float(lr) + float(seed) / 50, 5)
    print(f"step {step}: train loss 1.0, val loss {loss}" if gpt else f"step {step}: loss {loss}", flush=True)
    if log:
        with open(log, "a") as file:
            file.write(json.dumps({"step": step, "loss": loss}) + "\\n")
print("parameters: 1000")
"""
FROM_WORDS = """
import sys
words = dict(word.lstrip("-").split("=", 1) for word in sys.argv[1:] if "=" in word)
seed, gpt, log = words["seed"], "dropout" in words, words.get("log", "")
lr = words.get("lr", words.get("optimizer.lr", words.get("dropout", 0)))
"""
FROM_CONFIG = """
import sys, yaml
config = yaml.safe_load(open(sys.argv[1]))
assert config["model"] == "small" and config["output_dir"]
seed, gpt, log, lr = config["seed"], False, "", config["optimizer"]["lr"]
"""
FROM_SHELL = 'test -d "$OUT" && echo "step 1: loss $LR$SEED"\n'


def write_programs(folder: Path) -> None:
    for place in (folder / "here", folder / "nanoGPT"):
        (place / "config").mkdir(parents=True)
        (place / "config/train_shakespeare_char.py").write_text("")
        (place / "train.py").write_text(FROM_WORDS + WRITE)
        (place / "app.py").write_text(FROM_WORDS + WRITE)
        (place / "from_config.py").write_text(FROM_CONFIG + WRITE)
        (place / "base.yaml").write_text("model: small\noptimizer: {lr: 1.0}\n")
        (place / "train.sh").write_text(FROM_SHELL)


def completed(block: dict[str, Any]) -> dict[str, Any]:
    """Return a block as a whole study: what a short one leaves out is usual."""
    program = {"metrics": {"stdout": PATTERN}, **block["program"]}
    usual = {"study": "s", "measure": {"primary": "loss", "better": "min"}}
    return {**usual, **block, "program": program, "seeds": 2}


@pytest.mark.parametrize("block", [block if place in QUICK else pytest.param(block, marks=pytest.mark.slow)
                                   for place, block in enumerate(BLOCKS)],
                         ids=lambda block: block["program"]["command"][1])  # fmt: skip
def test_each_study_of_the_page_runs(tmp_path, block):
    write_programs(tmp_path)
    file = tmp_path / "here" / "study.yaml"
    file.write_text(yaml.safe_dump(completed(block)))
    outcome = run_program_file(file, root=str(tmp_path / "runs"))
    assert outcome.whole, outcome.failed
    assert outcome.results["complete"]
    assert verify(StudyFolder(open_store(tmp_path / "runs"), outcome.results["study"])) == []


@pytest.mark.slow
def test_the_function_of_the_page_is_studied_as_a_script(tmp_path):
    (script,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (results,) = tmp_path.glob("runs/*/results.json")
    baseline, high = json.loads(results.read_text())["arms"]
    assert high["effect"] < 0, "a higher rate leads to a lower loss"
    assert len(baseline["runs"]) == len(high["runs"]) == 5


def test_the_page_names_all_rules_of_writing_values():
    for rule in ("values", "booleans", "lists"):
        known = {"values": Values, "booleans": Booleans, "lists": Lists}[rule].__args__
        assert {value for value in known if f"`{rule}: {value}`" not in PAGE} <= {"written"}


def test_the_page_names_all_keys_of_programs_and_all_refused_ones():
    assert {name for name in ProgramConfig.model_fields if f"`{name}" not in PAGE and f"{name}:" not in PAGE} == set()
    assert {name for name in MODEL_KEYS if f"`{name}`" not in PAGE} == set()
    assert {name for name in MODEL_MEASURES if f"`measure.{name}`" not in PAGE} == set()


def test_the_first_study_is_loaded_as_the_page_says(tmp_path):
    write_programs(tmp_path)
    file = tmp_path / "here" / "study.yaml"
    file.write_text(yaml.safe_dump(BLOCKS[0]))
    study = load_program_study(file)
    assert study.cwd == tmp_path / "nanoGPT"
    assert {"train.py", "config/train_shakespeare_char.py"} <= set(study.inputs)
    assert study.program.time_limit == 7200
