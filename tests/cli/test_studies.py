"""`new`, `plan` and `run`: what they print, what they write, and the exit codes of a run."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.small import TINY

from taetpu.spec.loading import load_study


@pytest.mark.parametrize("name", ["my-idea", "a=b,c", "123", "1e3", "null", "2024-99-99"])
def test_a_new_study_can_be_planned_under_its_name(taetpu, here, name):
    code, out, err = taetpu("new", name)
    assert (code, err) == (0, "")
    assert f"wrote {name}.yaml and {name}.py\nnext: taetpu plan {name}.yaml" in out
    study = load_study(here / f"{name}.yaml")
    assert study.name == name
    assert len(study.arms) > 4


@pytest.mark.parametrize("name", ["jax", "taetpu", "JAX", "json", "google", "sitecustomize", "taetpu.yaml"])
def test_a_new_study_hides_no_module(taetpu, here, contents, name):
    before = contents(here)
    code, out, err = taetpu("new", name)
    module = name.removesuffix(".yaml")
    assert (code, out) == (2, "")
    assert f"{module}.py would shadow the Python module {module.lower()}" in err
    assert f"e.g. {module}-study" in err
    assert contents(here) == before
    assert taetpu("new", f"{module}-study").code == 0


@pytest.mark.parametrize("name", ["conftest", "Conftest", "tests", "setup", "noxfile", "test_idea", "idea_test"])
def test_a_new_study_is_no_file_that_tools_run(taetpu, here, contents, name):
    before = contents(here)
    code, out, err = taetpu("new", name)
    assert (code, out) == (2, "")
    assert f"{name}.py" in err
    assert "where:  the argument NAME" in err
    instead = f"study-{name.replace('_', '-')}"
    assert f"e.g. {instead}" in err
    assert contents(here) == before
    assert taetpu("new", instead).code == 0


@pytest.mark.parametrize(
    ("name", "instead"),
    [("", "my-study"), (".", "my-study"), ("..", "my-study"), ("*", "my-study"), ("__init__", "init"), ("a/b", "a-b")],
)
def test_what_is_no_name_is_said_with_one_that_is(taetpu, here, contents, name, instead):
    before = contents(here)
    code, out, err = taetpu("new", name)
    assert (code, out) == (2, "")
    assert f"name {name!r}" in err
    assert "where:  the argument NAME" in err
    assert f"e.g. {instead}" in err
    assert contents(here) == before


def test_a_new_study_may_be_called_as_a_folder_beside_it(taetpu, here):
    (here / "ideas").mkdir()
    (here / "ideas" / "__init__.py").touch()
    assert taetpu("new", "ideas").code == 0


def test_a_new_study_may_be_named_by_its_file(taetpu, here):
    assert "wrote my-idea.yaml and my-idea.py" in taetpu("new", "my-idea.yaml")[1]
    assert load_study(here / "my-idea.yaml").name == "my-idea"


@pytest.mark.slow
def test_the_written_study_is_planned_as_it_stands_and_planning_writes_nothing(taetpu, here, contents):
    taetpu("new", "my-idea")
    before = contents(here)
    done = taetpu("plan", "my-idea.yaml")
    assert (done.code, done.err) == (0, "")
    assert "my-idea: 8 arms x 3 seeds, 300 steps" in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    assert contents(here) == before


def test_the_plan_in_json_is_the_plan_in_the_table(taetpu, here, contents, trained):
    root, _ = trained
    before = contents(root)
    for place, done in ((root, "2/2"), (here / "none", "0/2")):
        plan = taetpu("plan", "s.yaml", "--root", place, "--json").json()
        table = taetpu("plan", "s.yaml", "--root", place).out
        assert [arm["name"] for arm in plan["arms"]] == ["baseline", "low-lr"]
        for arm in plan["arms"]:
            row = next(line for line in table.splitlines() if line.startswith(arm["name"]))
            assert f"{arm['params']:,}" in row
            assert f"{arm['flops_per_token']:,}" in row
            assert arm["change"] in " ".join(table.split())
            assert f"{arm['done']}/{arm['runs']}" == done
            assert done in row
        if done == "2/2":
            assert "nothing is left to train" in table
            assert (plan["packs"], plan["tokens"], plan["flops"]) == ([], 0, 0)
        else:
            assert sum(len(pack["runs"]) for pack in plan["packs"]) == 4
            assert plan["tokens"] == 4 * 20 * 4 * 16
            assert f"to train: {plan['tokens']:,} tokens" in table
    assert contents(root) == before
    assert not (here / "none").exists()


def test_a_run_ends_with_the_verdicts_and_the_path_of_its_report(trained):
    root, done = trained
    assert [line.split()[0] for line in done.out.splitlines() if line.startswith(("baseline", "low-lr"))] == [
        "baseline",
        "low-lr",
    ]
    page = Path(done.out.splitlines()[-1].removeprefix("report: "))
    assert (root.parent / page).resolve() == root / "small/report/index.html"
    assert "<html" in (root.parent / page).read_text()
    assert max(map(len, done.out.splitlines())) <= 80


@pytest.mark.parametrize("where", ["option", "environment", "default"])
def test_the_root(taetpu, here, monkeypatch, where, trained):
    """A finished study, moved to the root in question, is found there: nothing is trained."""
    place = here / ("runs" if where == "default" else where)
    shutil.copytree(trained[0], place)
    if where == "environment":
        monkeypatch.setenv("TAETPU_ROOT", str(place))
    done = taetpu("run", "s.yaml", *(("--root", place) if where == "option" else ()))
    assert (done.code, done.err) == (0, "")
    assert (place / "small/results.json").read_bytes() == (trained[0] / "small/results.json").read_bytes()
    assert [p.name for p in here.iterdir() if p.is_dir()] == [place.name]


def test_a_finished_study_has_nothing_to_trace_and_says_so(taetpu, here, trained):
    shutil.copytree(trained[0], here / "runs")
    done = taetpu("run", "s.yaml", "--profile", "5")
    assert (done.code, done.err.count("--profile traced nothing")) == (0, 1)


def test_numbers_and_nouns_agree(taetpu, here):
    (here / "s.yaml").write_text(TINY + "seeds: 1\n")
    assert "tiny: 1 arm x 1 seed, 6 steps" in taetpu("plan", "s.yaml").out


def test_the_results_in_json_are_those_that_are_stored(taetpu, trained):
    stored = json.loads((trained[0] / "small/results.json").read_text())
    assert taetpu("run", "s.yaml", "--root", trained[0], "--json").json() == stored
    assert taetpu("report", trained[0] / "small", "--json").json() == stored


def test_failed_runs_are_reported_and_exit_with_3(taetpu, here, monkeypatch):
    """The program of the study cannot be built, as when the machine has too little memory."""

    def no_memory(*_, **__):
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr("taetpu.train.program.Program", no_memory)
    code, out, err = taetpu("run", "s.yaml")
    assert code == 3
    assert "pack of 4 runs failed: RuntimeError: RESOURCE_EXHAUSTED: out of memory" in err
    assert "in no_memory" in err  # where it was raised
    assert "4 runs failed" in err.splitlines()[-1]
    assert "baseline" in out
    assert taetpu("status", "runs/small", "--json").json()["small"][0]["done"] == "0/2"


LONG = ("s.yaml", "--set", "train.steps=300000", "--set", "train.eval_every=50", "--set", "train.checkpoint=eval")


def interrupted(here: Path, said: str) -> str:
    """Ctrl-C once the run has said this; gives all it said."""
    run = [sys.executable, "-m", "taetpu", "run", *LONG]
    with subprocess.Popen(run, cwd=here, env=os.environ, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        heard = ""
        while said not in heard:
            line = process.stderr.readline()
            assert line, heard
            heard += line
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        heard += process.communicate(timeout=60)[1]
    assert process.returncode == 130
    return heard


@pytest.mark.slow
def test_ctrl_c_exits_with_130_and_leaves_a_study_half_trained(taetpu, here):
    heard = interrupted(here, "  step 100: ")
    assert heard.endswith("repeat the command to continue from the last checkpoint\n")
    assert "Traceback" not in heard

    half = taetpu("status", "runs/small", "--json").json()["small"]
    assert [row["arm"] for row in half] == ["baseline", "low-lr"]
    for row in half:
        assert row["done"] == "0/2"
        assert 100 <= row["step"] < 300000
        assert 0 < row["val_sample/loss"] < 10
    assert taetpu("list", "--json").json()[0]["runs"] == "0/4"


@pytest.mark.slow
def test_after_ctrl_c_the_same_command_goes_on(here):
    interrupted(here, "  step 100: ")
    heard = interrupted(here, "going on from step ")
    reached = int(heard.partition("going on from step ")[2].split()[0])
    assert reached >= 100
    assert reached % 50 == 0
    assert "Traceback" not in heard
