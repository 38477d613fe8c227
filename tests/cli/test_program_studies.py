"""`taetpu plan`, `run --check` and other commands on studies whose runs are a program."""

import json
import shutil
from pathlib import Path

import pytest
from tests.program_studies import TRAIN, write_study
from typer.testing import CliRunner

from taetpu.cli import export_jobs
from taetpu.cli.main import app
from taetpu.core.errors import Failed, UserError
from taetpu.spec.programs.loading import load_program_study
from taetpu.study.programs.trial import try_baseline


@pytest.fixture
def cli(monkeypatch, tmp_path):
    """`cli(*words)`: run a command in this process, and return its output; errors are raised."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TAETPU_ROOT", raising=False)

    def call(*words):
        done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=True)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.output

    return call


def test_a_plan_shows_the_command_and_what_each_arm_changes_in_it(cli, tmp_path):
    planned = json.loads(cli("plan", write_study(tmp_path), "--json"))
    assert planned["command"][1:] == ["train.py", "--lr=0.1", "--bias=False", "--seed=0"]
    assert [(arm["name"], arm["adds"], arm["drops"]) for arm in planned["arms"]] == [
        ("baseline", [], []), ("high", ["--lr=0.5"], ["--lr=0.1"]),
    ]  # fmt: skip
    assert (planned["left"], planned["at_once"]) == (4, 1)
    assert not (tmp_path / "runs").exists()


def test_a_plan_can_be_made_on_a_machine_without_the_gpus(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    file = write_study(tmp_path, program={"each": {"gpus": 1}})
    planned = json.loads(cli("plan", file, "--json"))
    assert planned["at_once"] == 0
    assert "1 GPU," in planned["lacks"]
    assert planned["lacks"] in " ".join(cli("plan", file).split())
    with pytest.raises(UserError) as caught:
        cli("run", file)
    assert caught.value.path == ("program", "each", "gpus")


def test_a_check_shows_what_was_read_and_stores_nothing(cli, tmp_path):
    trial = json.loads(cli("run", write_study(tmp_path), "--check", "--json").partition("{")[2].join(["{", ""]))
    assert trial["reported"] == {"loss": 3}
    assert trial["problem"] == ""
    assert Path(trial["program"]).is_absolute()
    assert not (tmp_path / "runs").exists()


def test_a_check_says_what_is_missing(cli, tmp_path):
    file = write_study(tmp_path, "print('val 3')")
    with pytest.raises(Failed) as caught:
        cli("run", file, "--check")
    assert "'loss'" in str(caught.value)


def test_a_check_names_the_interpreter_that_lacks_a_module(cli, tmp_path):
    command = ["python3", "train.py", "--{key}={value}", "--seed={seed}"]
    file = write_study(tmp_path, "import missing_library", program={"command": command})
    with pytest.raises(Failed) as caught:
        cli("run", file, "--check")
    assert shutil.which("python3") in str(caught.value)
    assert "`command`" in str(caught.value)


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (["run", "--on", "tpu"], "--on"),
        (["run", "--on", "ray"], "program"),
        (["run", "--on", "ray", "--check"], "--check"),
        (["run", "--pack", "2"], "--pack"),
        (["run", "--profile", "3"], "--profile"),
        (["run", "--root", "gs://bucket/x"], "--root"),
        (["plan", "--tpu", "v5e-8"], "--tpu"),
        (["plan", "--diff", "high"], "--diff"),
        (["export", "kueue", "--tpu", "v6e-8", "--image", "i", "--root", "gs://b/x"], "program"),
        (["data", "show"], "program"),
    ],
)
def test_options_and_commands_that_need_a_model_are_refused(cli, tmp_path, words, path):
    if words[:2] == ["data", "show"]:
        pytest.importorskip("jax")
    file, number = write_study(tmp_path), 2 if words[0] in ("export", "data") else 1
    with pytest.raises(UserError) as caught:
        cli(*words[:number], file, *words[number:])
    assert caught.value.path[0] == path
    assert caught.value.remedy


@pytest.mark.slow
def test_status_names_failed_attempts_and_their_output(cli, tmp_path):
    fails = "'--lr=0.5' in sys.argv and os.path.exists('broken') and sys.exit(7)\nsettings ="
    file = write_study(tmp_path, TRAIN.replace("settings =", fails, 1))
    (tmp_path / "broken").touch()
    for _ in range(2):
        with pytest.raises(Failed):
            cli("run", file)
    baseline, high = json.loads(cli("status", "tiny", "--json"))["tiny"]
    assert "failed" not in baseline
    assert [(attempt["seed"], attempt["attempt"], attempt["how"]) for attempt in high["failed"]] == [
        (0, 2, "exit code 7"), (1, 2, "exit code 7"),
    ]  # fmt: skip
    shown = cli("status", "tiny")
    for attempt in high["failed"]:
        assert attempt["log"] in shown
        assert Path(attempt["log"]).exists()
    assert shown.count("exit code 7") == 2
    assert cli("status", "tiny/high/1").count("exit code 7") == 1
    (tmp_path / "broken").unlink()
    cli("run", file)
    assert all("failed" not in row for row in json.loads(cli("status", "tiny", "--json"))["tiny"])
    assert "exit code" not in cli("status", "tiny")


def test_a_plan_says_which_effects_can_be_detected(cli, tmp_path):
    noise = TRAIN.replace('Random(settings["seed"])', 'Random(settings["seed"] + settings["lr"])')  # differs by arm
    file = write_study(tmp_path, noise, seeds=5)
    planned = json.loads(cli("plan", file, "--noise", "0.01", "--effect", "0.02", "--json"))["resolution"]
    assert planned["resolves"] == pytest.approx(0.01 * planned["resolves_sd"])
    assert planned["flops"] is None
    assert f"{planned['seeds']} seeds" in cli("plan", file, "--noise", "0.01", "--effect", "0.02")
    cli("run", file)
    measured = json.loads(cli("plan", file, "--json"))["resolution"]
    assert measured["noise_from"] == "measured"
    assert 0 < measured["noise"] < 0.05
    with pytest.raises(UserError) as caught:
        cli("plan", file, "--noise", "-1")
    assert caught.value.path == ("noise",)


def test_slurm_jobs_run_shares_of_a_program(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(export_jobs, "LOCAL", ())
    cli("export", "slurm", write_study(tmp_path), "--shards", "2", "--root", tmp_path / "shared")
    script = (tmp_path / "tiny.slurm.sh").read_text()
    assert "--shard" in script
    assert "study.yaml" in script


def test_models_of_programs_are_not_opened(cli, tmp_path):
    cli("run", write_study(tmp_path, TRAIN, seeds=1))
    with pytest.raises(UserError) as caught:
        cli("lens", "sample", "tiny/baseline/0")
    assert "baseline" in str(caught.value.file)


def test_a_check_that_ends_a_slow_program_names_its_limit(tmp_path):
    study = load_program_study(write_study(tmp_path, "import time\ntime.sleep(60)"))
    assert "0.5 s," in try_baseline(study, seconds=0.5).problem
