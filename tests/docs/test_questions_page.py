"""Every example of docs/questions.md: studies load and have the arms that answer the question, and commands run."""

import io
import json
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import taetpu
from taetpu.cli.main import app
from taetpu.spec.loading import load_study
from taetpu.study.arm_stages import ArmStages

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/questions.md").read_text()
FILES = dict(re.findall(r"^```(?:yaml|csv)\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
STUDIES = [name for name in FILES if name.endswith(".yaml")]
COMMANDS = re.findall(r"^taetpu (.*)$", PAGE, re.MULTILINE)
ALONE = ("rope", "ffn", "norm")
ARMS = {
    "change.yaml": ["no-rope"],
    "parts.yaml": [*(f"without-{name}" for name in (*ALONE, "all")), *(f"without-all-but-{name}" for name in ALONE)],
    "crossing.yaml": ["norm=none", "position=none", "norm=none,position=none"],
    "smallest.yaml": [f"baseline@dim={dim}" for dim in (4, 8, 24, 32, 48, 64)],
    "elsewhere-tasks.yaml": [
        *("no-rope", "baseline@sort", "no-rope@sort", "baseline@induction", "no-rope@induction"),
    ],
    "robust.yaml": ["relu", "baseline@init=fan-in", "relu@init=fan-in", "baseline@lr=0.003", "relu@lr=0.003"],
    "larger.yaml": ["no-rope", *(f"{arm}@dim={dim}" for arm in ("baseline", "no-rope") for dim in (16, 64))],
    "best-rates.yaml": ["no-rope"],
    "budget.yaml": ["deep", "deep@flops", "deep@params"],
    "worthwhile.yaml": ["no-rope", *(f"{arm}@dim={dim}" for arm in ("baseline", "no-rope") for dim in (16, 48, 64))],
    "solves.yaml": ["no-rope"],
    "soon.yaml": ["no-rope"],
    "before.yaml": ["no-skips"],
}
ANSWERS = {
    "parts.yaml": "leave_one_out",
    "crossing.yaml": "factorial",
    "elsewhere-tasks.yaml": "tasks",
    "robust.yaml": "across",
    "larger.yaml": "ladder",
}
"""The analysis in the results of a study that answers the question."""
SHORT = ["train.steps=4", "train.batch_size=4", "task.eval_size=8", "train.sample=none"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with all files of the page."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TAETPU_ROOT", raising=False)
    return tmp_path


def call(line: str, *more: str) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        app([*shlex.split(line), *more], standalone_mode=False)
    return out.getvalue()


def sets() -> list[str]:
    return [word for value in SHORT for word in ("--set", value)]


def test_every_example_is_one_of_this_test():
    assert ARMS.keys() == {*STUDIES}
    assert PAGE.count("```yaml") == len(STUDIES)
    assert len(COMMANDS) == PAGE.count("\ntaetpu ") == 10


def test_every_question_is_in_the_table_of_the_page():
    listed = dict(re.findall(r"^\| \[(.*?)\]\(#(.*?)\)", PAGE, re.MULTILINE))
    questions = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    assert [*listed] == questions
    assert [*listed.values()] == [re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in questions]


@pytest.mark.parametrize("name", ARMS)
def test_a_study_has_the_arms_that_answer_the_question(name, here):
    study = load_study(name)
    study.runs()
    assert sorted(arm.name for arm in ArmStages.of(study).matched.arms[1:]) == sorted(ARMS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ARMS if name != "smallest.yaml"])
def test_a_study_is_trained_and_has_its_answer(name, here):
    steps = {"soon.yaml": ["train.steps=40"], "before.yaml": []}.get(name, SHORT[:1])
    short = [*steps, *SHORT[1:]]
    outcome = taetpu.run(name, short, root="runs")
    assert not outcome.failed
    results = outcome.results
    assert results["final"]
    assert {arm["name"] for arm in results["arms"]} >= {*ARMS[name]}
    assert results["designs"].keys() >= {ANSWERS[name]} if name in ANSWERS else True
    assert bool(results["tuning"]) == (name == "best-rates.yaml")


@pytest.mark.slow
def test_the_smallest_is_searched(here):
    line = next(line for line in COMMANDS if "--search" in line)
    call(line, *sets())
    results = json.loads((here / "runs/smallest/results.json").read_text())
    assert results["goal"]["goal"]["minimise"] == "params" if "goal" in results["goal"] else results["goal"]


@pytest.mark.slow
def test_the_parts_of_a_trained_model_are_judged(here):
    first, second = (line for line in COMMANDS if "parts.yaml" in line)
    call(first, *sets())
    assert "rope" in call(second, *sets())


@pytest.mark.slow
def test_the_costs_of_a_change_are_shown(here):
    first, second = (line for line in COMMANDS if "soon" in line)
    call(first, *(f"{word}0" if "steps" in word else word for word in sets()), "--root", "runs")
    assert "no-rope" in call(second, "--root", "runs", "--rounds", "1", "--seconds", "0.01")


@pytest.mark.slow
def test_the_study_between_two_architectures_is_written_and_loads(here):
    call(next(line for line in COMMANDS if line.startswith("new between ")))
    arms = {arm.name for arm in load_study("between.yaml").arms}
    assert arms > {"with-qk_norm", "with-all-but-qk_norm", "with-all"}
    assert [line.split()[0] for line in COMMANDS if "between" in line] == ["new", "run", "new"]


def test_the_table_of_results_is_judged(here):
    call(next(line for line in COMMANDS if line.startswith("judge")), "--root", "runs")
    results = json.loads((here / "runs/results/results.json").read_text())
    verdicts = {arm["name"]: arm["verdict"] for arm in results["arms"]}
    assert verdicts == {"base": None, "wide": "better", "deep": "inconclusive"}


@pytest.mark.slow
def test_the_number_of_seeds_is_planned(here):
    line = next(line for line in COMMANDS if line.startswith("plan"))
    assert "power" in call(line)
