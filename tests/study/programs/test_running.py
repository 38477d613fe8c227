"""Studies whose runs are a program: run, resumed, refused after changes, reported and verified."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.program_studies import TRAIN, write_study, written

from taetpu.core.errors import UserError
from taetpu.report.summary import notices
from taetpu.stats.verify import verify
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.loading import load_study
from taetpu.study.programs.events import EventLog
from taetpu.study.programs.running import ProgramOptions, run_program_file


@pytest.fixture
def run(tmp_path):
    """`run(lines, **changes)` runs the tiny study in a folder, appends events to `lines`, and returns its outcome."""

    def run_study(lines=None, source=TRAIN, **changes):
        file = write_study(tmp_path, source, **changes)
        events = EventLog(lines.append) if lines is not None else None
        return run_program_file(file, root=str(tmp_path / "runs"), events=events)

    return run_study


def folder_of(tmp_path: Path, name: str = "tiny") -> StudyFolder:
    return StudyFolder(open_store(tmp_path / "runs"), name)


def test_values_are_those_that_the_program_reported_last(run, tmp_path):
    outcome = run()
    values = written(outcome.results)
    assert outcome.whole
    assert values["high"] == pytest.approx([value + 0.4 for value in values["baseline"]])
    assert outcome.results["arms"][1]["effect"] == pytest.approx(0.4)
    assert verify(folder_of(tmp_path)) == []
    assert Path(outcome.report["html"]).exists()


def test_a_program_that_ignores_its_seed_is_noticed(run):
    ignoring = run(source=TRAIN.replace('settings["seed"]', "0")).results
    assert [text for text in notices(ignoring) if "on all seeds" in text]
    using = run(study="other").results
    assert not [text for text in notices(using) if "on all seeds" in text]


def test_finished_runs_are_not_started_again(run):
    run()
    lines = []
    outcome = run(lines, seeds=3)
    assert sum("started" in line for line in lines) == 2
    assert [line.split(":")[0] for line in lines if "started" in line] == ["baseline on seed 2", "high on seed 2"]
    assert outcome.whole


def test_changed_inputs_refuse_finished_runs_by_name(run, tmp_path):
    run()
    before = folder_of(tmp_path).read_study()
    with pytest.raises(UserError) as caught:
        run(source=f"{TRAIN}# edited\n")
    assert caught.value.path == ("program", "inputs")
    assert all(name in caught.value.problem for name in ("train.py", "baseline (seeds 0, 1)", "high (seeds 0, 1)"))
    assert folder_of(tmp_path).read_study() == before


def test_a_program_that_changes_its_source_ends_the_study(run, tmp_path):
    """The first run ends: it began with the source that its record names. No run begins with another one."""
    with pytest.raises(UserError, match=r"train\.py") as caught:
        run(source=f"{TRAIN}open('train.py', 'a').write('# changed')\n")
    assert caught.value.path == ("program", "inputs")
    folder = StudyFolder(open_store(tmp_path / "runs"), "tiny")
    assert [run.status() for run in folder.runs()].count("done") == 1


def test_a_program_may_change_until_a_run_has_finished(run, tmp_path):
    lines = []
    outcome = run(lines, source="import sys; sys.exit('broken')")
    assert len(outcome.failed) == 4
    assert any("exit code 1" in line for line in lines)
    assert any(line.endswith("| broken") for line in lines)
    assert run().whole
    assert {record.id for record in folder_of(tmp_path).runs()} == {
        run["id"] for arm in run().results["arms"] for run in arm["runs"]
    }


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("print('nothing')", "'loss'"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("print('step 1: loss many')", "many"),
    ],
)
def test_runs_without_a_result_fail_with_the_reason(run, source, said):
    lines = []
    outcome = run(lines, source=source, seeds=[7])
    assert len(outcome.failed) == 2
    assert all(run["outcome"] == "unfinished" for arm in outcome.results["arms"] for run in arm["runs"])
    assert any(said in line for line in lines)


def test_nan_is_a_diverged_run(run):
    source = TRAIN.replace("print(f", "print('step 1: loss nan' if settings['lr'] == '0.5' else f")
    outcome = run(source=source)
    outcomes = {arm["name"]: {run["outcome"] for run in arm["runs"]} for arm in outcome.results["arms"]}
    assert outcomes == {"baseline": {"finished"}, "high": {"diverged"}}


def test_a_time_limit_ends_a_run(run):
    lines = []
    outcome = run(lines, source="import time; time.sleep(60)", seeds=1, arms={}, program={"time_limit": 0.5})
    assert len(outcome.failed) == 1
    assert any("time limit" in line for line in lines)


def test_python_and_the_command_run_a_program_without_jax(tmp_path):
    file = write_study(tmp_path, seeds=1)
    code = (
        "import sys, taetpu\n"
        f"outcome = taetpu.run({str(file)!r}, root={str(tmp_path / 'python')!r})\n"
        "assert outcome.whole\n"
        "from taetpu.cli.main import main\n"
        f"sys.argv = ['taetpu', 'run', {str(file)!r}, '--root', {str(tmp_path / 'command')!r}, '--json']\n"
        "try: main()\n"
        "except SystemExit as error: assert not error.code, error.code\n"
        "assert not {'jax', 'jaxlib', 'equinox'} & {name.split('.')[0] for name in sys.modules}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [arm["name"] for arm in json.loads(done.stdout)["arms"]] == ["baseline", "high"]


def test_no_model_of_a_program_is_loaded(tmp_path):
    file = write_study(tmp_path)
    with pytest.raises(UserError) as caught:
        load_study(file)
    assert caught.value.path == ("program",)
    assert "taetpu.run" in (caught.value.remedy or "")


def test_a_program_inherits_no_platform_that_taetpu_chose(run, tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    source = f"import os; open({str(tmp_path / 'seen')!r}, 'a').write(repr(os.environ.get('JAX_PLATFORMS')))\n{TRAIN}"
    run(source=source, seeds=1, arms={})
    assert (tmp_path / "seen").read_text() == "None"


def test_the_report_says_what_is_known_of_a_program(run, tmp_path):
    outcome = run()
    page = Path(outcome.report["markdown"]).read_text() if "markdown" in outcome.report else ""
    text = page + Path(outcome.report["html"]).read_text()
    assert outcome.results["program"]["inputs"] == 1
    assert "train.py" in text
    assert "same weights" not in text
    assert "costs tiny --time" not in text


@pytest.mark.parametrize("word", ["no-such-program", "./train.py"])
def test_a_program_that_cannot_be_started_ends_the_study(run, tmp_path, word):
    lines = []
    with pytest.raises(UserError) as caught:
        run(lines, program={"command": [word, "train.py", "--{key}={value}", "--seed={seed}"]})
    assert caught.value.path == ("program", "command", 0)
    assert caught.value.file == tmp_path / "study.yaml"
    assert not any("started" in line for line in lines)


def test_damaged_runs_are_refused_until_their_programs_run_again(run, tmp_path):
    before = run(program={"resume": True}).results
    record = next(record for record in folder_of(tmp_path).runs() if record.arm == "high")
    file = tmp_path / "runs" / record.key / "result.json"
    file.write_text(file.read_text().replace("1", "2", 1))
    with pytest.raises(UserError) as caught:
        run(program={"resume": True})
    assert "high" in caught.value.problem
    lines = []
    again = run_program_file(
        tmp_path / "study.yaml", root=str(tmp_path / "runs"), events=EventLog(lines.append),
        options=ProgramOptions(retrain_damaged=True),
    )  # fmt: skip
    assert again.results == before
    assert sum(": started" in line for line in lines) == 1


def test_arms_that_the_program_ignores_are_named(run):
    results = run(arms={"bias": {"bias": True}, "high": {"lr": 0.5}}).results
    (notice,) = [text for text in notices(results) if "settings" in text]
    assert "bias" in notice
    assert "high" not in notice
