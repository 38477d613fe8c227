"""`taetpu run`: output, exit codes, interruptions, reused runs, XLA flags."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest
from tests.cli.commands import wrong
from tests.forged import forged
from tests.small import TINY
from tests.suites import by_default

from taetpu.store.addresses import find_study


def test_run_ends_with_verdicts_and_the_path_of_the_report(trained):
    root, done = trained
    assert [line.split()[0] for line in done.out.splitlines() if line.startswith(("baseline", "low-lr"))] == [
        "baseline",
        "low-lr",
    ]
    *_, page, first, second = done.out.splitlines()
    for command in (first.removeprefix("next: "), second.strip()):
        assert command.startswith("taetpu ")
        assert wrong(command) == ""
    page = Path(page.removeprefix("report: "))
    assert (root.parent / page).resolve() == root / "small/report/index.html"
    assert "<html" in (root.parent / page).read_text()
    assert max(map(len, done.out.splitlines())) <= 80


@pytest.mark.slow
@pytest.mark.parametrize("where", by_default(["option", "environment", "default"], "default"))
def test_root_comes_from_option_environment_or_default(taetpu, here, monkeypatch, where, trained):
    """A finished study is found at the root, so that nothing is trained."""
    place = here / ("runs" if where == "default" else where)
    shutil.copytree(trained[0], place)
    if where == "environment":
        monkeypatch.setenv("TAETPU_ROOT", str(place))
    done = taetpu("run", "s.yaml", *(("--root", place) if where == "option" else ()))
    assert (done.code, done.err) == (0, "")
    assert (place / "small/results.json").read_bytes() == (trained[0] / "small/results.json").read_bytes()
    assert [p.name for p in here.iterdir() if p.is_dir()] == [place.name]


def test_json_output_equals_stored_results(taetpu, trained):
    stored = json.loads((trained[0] / "small/results.json").read_text())
    assert taetpu("run", "s.yaml", "--root", trained[0], "--json").json() == stored
    assert taetpu("report", trained[0] / "small", "--json").json() == stored


def test_failed_runs_are_reported_and_exit_with_3(taetpu, here, monkeypatch):
    """Building the program fails, as on a machine with too little memory."""

    def no_memory(*_, **__):
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr("taetpu.train.program_cache.Program", no_memory)
    code, out, err = taetpu("run", "s.yaml")
    assert code == 3
    assert "pack of 4 runs failed: RuntimeError: RESOURCE_EXHAUSTED: out of memory" in err
    assert "in no_memory" in err  # where it was raised
    assert "4 runs failed" in err.splitlines()[-1]
    assert "baseline" in out
    assert taetpu("status", "runs/small", "--json").json()["small"][0]["runs"] == "0/2"


LONG = ("s.yaml", "--set", "train.steps=300000", "--set", "train.eval_every=50", "--set", "train.checkpoint=eval")


def interrupted(here: Path, said: str) -> str:
    """Press Ctrl-C once the run has printed a text. Return its stderr."""
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
        try:
            heard += process.communicate(timeout=20)[1]
        except subprocess.TimeoutExpired:  # jax's callback of the garbage collector swallowed it: press Ctrl-C again
            process.send_signal(signal.SIGINT)
            heard += process.communicate(timeout=60)[1]
            heard = re.sub(
                r"Exception ignored in: <function _xla_gc_callback.*?\nKeyboardInterrupt[^\n]*\n", "", heard, flags=re.S
            )
    assert process.returncode == 130
    return heard


@pytest.mark.slow
def test_ctrl_c_exits_with_130_and_the_same_command_resumes(taetpu, here):
    heard = interrupted(here, "  step 100: ")
    assert "repeat the command" in heard.splitlines()[-1]
    assert "Traceback" not in heard

    half = taetpu("status", "runs/small", "--json").json()["small"]
    assert [row["arm"] for row in half] == ["baseline", "low-lr"]
    for row in half:
        assert row["runs"] == "0/2"
        assert 100 <= row["step"] < 300000
        assert 0 < row["val_sample/loss"] < 10
    assert taetpu("list", "--json").json()[0]["runs"] == "0/4"
    heard = interrupted(here, "resuming from step ")
    reached = int(heard.partition("resuming from step ")[2].split()[0])
    assert reached >= 100
    assert reached % 50 == 0
    assert "Traceback" not in heard


@pytest.mark.slow
def test_refuted_reused_runs_exit_with_3_and_are_not_kept(taetpu, here, trained):
    shutil.copytree(trained[0], here / "theirs")
    for run in find_study(here / "theirs").runs():
        forged(run)
    done = taetpu("run", "s.yaml", "--root", "ours", "--reuse", "theirs", "--audit", "0.01")
    assert done.code == 3
    assert "to verify them: 1" in done.err
    assert "trained again:\n  " in done.err
    assert "without --reuse" in done.err.splitlines()[-1]
    assert "1/4" in taetpu("list", "--root", "ours").out


@pytest.mark.slow
def test_the_report_counts_reused_runs(taetpu, here, trained):
    done = taetpu("run", "s.yaml", "--root", "ours", "--reuse", trained[0], "--audit", "0")
    assert done.code == 0
    said = "Reused from other studies: 4 runs; trained again as a check: 0."
    assert said in " ".join(done.out.split())
    assert said in (here / "ours/small/report/index.html").read_text()
    assert said in (here / "ours/small/report/report.md").read_text()


def test_an_audit_above_1_is_rejected(taetpu):
    done = taetpu("run", "s.yaml", "--reuse", "root", "--audit", "5")
    assert done.code == 2
    assert "`audit` must be from 0 to 1, got 5.0" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("command", ["plan", "run"])
def test_an_unknown_flag_is_rejected_with_its_name(taetpu, command):
    done = taetpu(command, "s.yaml", "--xla-flags", "--xla_no_such_flag=1")
    assert done.code == 2
    assert re.match(r"error: jaxlib \S+ has no flag --xla_no_such_flag=1\n  where:  --xla-flags", done.err)
    assert "remedy" in done.err


@pytest.mark.parametrize("command", [("plan", "s.yaml"), ("plan", "s.yaml", "--diff", "low-lr"), ("run", "s.yaml")])
def test_jax_that_does_not_start_is_a_user_error(taetpu, monkeypatch, command):
    def start():
        raise AssertionError

    monkeypatch.setattr(jax, "devices", start)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    done = taetpu(*command)
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert "JAX_PLATFORMS=cuda" in done.err.splitlines()[0]
    assert "remedy: Unset JAX_PLATFORMS" in done.err


@pytest.mark.nightly
def test_flags_are_kept_with_every_result_and_dumps_with_the_study(here, process):
    (here / "s.yaml").write_text(TINY)
    flag = "--xla_cpu_enable_fast_math=false"
    done = process("run", "s.yaml", "--root", "root", "--xla-flags", flag, "--dump", "--profile", "2")
    assert done.code == 0, done.err
    results = list((here / "root").glob("tiny/runs/*/*/result.json"))
    assert results
    assert all(json.loads(file.read_text())["environment"]["xla_flags"] == [flag] for file in results)
    (folder,) = (here / "root").glob("tiny/dumps/*")
    told = re.sub(r"\s+", " ", done.out + done.err)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert f"dumps: {len(files)} files" in told
    assert any(".jit_advance." in path.name for path in files)
    assert "profile of 2 steps" in told
