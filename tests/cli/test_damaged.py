"""Every command that reads changed, lost or swapped files reports them."""

import json
import shutil
from pathlib import Path

import pytest
from tests.forged import unsealed

pytestmark = pytest.mark.slow


@pytest.fixture
def study(here, trained) -> Path:
    """The folder of a trained study."""
    shutil.copytree(trained[0], here / "root")
    return here / "root/small"


def a_run(study: Path, arm: str = "low-lr") -> Path:
    return next(study.glob(f"runs/{arm}/0-*"))


def swap(study: Path) -> Path:
    """Exchange the folders of two arms."""
    runs = study / "runs"
    (runs / "baseline").rename(runs / "other")
    (runs / "low-lr").rename(runs / "baseline")
    (runs / "other").rename(runs / "low-lr")
    return a_run(study, "baseline")


def swap_seeds(study: Path) -> Path:
    """Exchange the results of two seeds of an arm."""
    one, other = sorted(study.glob("runs/low-lr/*"))
    (one / "result.json").rename(study / "kept")
    (other / "result.json").rename(one / "result.json")
    (study / "kept").rename(other / "result.json")
    return one


def edit_result(study: Path) -> Path:
    """Write a better loss."""
    file = a_run(study) / "result.json"
    result = json.loads(file.read_text())
    result["metrics"]["val/loss"] = 0.5
    file.write_text(json.dumps(result))
    return file


def edit_config(study: Path) -> Path:
    file = a_run(study) / "config.json"
    file.write_text(file.read_text().replace('"log_every": 4', '"log_every": 5'))
    return file


def flip(file: Path) -> Path:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    return file


def lose(path: Path) -> Path:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    return path


CHEAP = {
    "arm folders swapped": swap,
    "results of two seeds swapped": swap_seeds,
    "an edited result": edit_result,
    "an edited record": edit_config,
    "a cut result": lambda study: (file := a_run(study) / "result.json", file.write_bytes(file.read_bytes()[:200]))[0],
    "an empty result": lambda study: (file := a_run(study) / "result.json", file.write_bytes(b""))[0],
    **{
        f"{text} as a result": lambda study, text=text: (f := a_run(study) / "result.json", f.write_text(text))[0]
        for text in ("null", "[]", "{}")
    },
    "no record": lambda study: lose(a_run(study) / "config.json"),
    "no model": lambda study: lose(a_run(study) / "model"),
    "no evaluation": lambda study: lose(a_run(study) / "evaluation.json"),
    "a cut model": lambda study: (file := a_run(study) / "model/model.safetensors", file.write_bytes(b"x"))[0],
    "no first segment": lambda study: lose(a_run(study) / "metrics/0-10.json").parent,
    "no last segment": lambda study: lose(a_run(study) / "metrics/10-20.json").parent,
    "flipped bit in study.yaml": lambda study: flip(study / "study.yaml"),
}


@pytest.mark.parametrize(
    ("what", "command"),
    [
        *((what, "report") for what in CHEAP),
        ("an edited result", "status"),
        ("flipped bit in study.yaml", "status"),
        *(pytest.param(what, "run", marks=pytest.mark.slow) for what in CHEAP),
    ],
)
def test_changed_files_are_refused(taetpu, study, contents, what, command):
    place = CHEAP[what](study)
    before = contents(study / "runs")
    done = taetpu(command, *(("s.yaml", "--root", study.parent) if command == "run" else (study,)))
    assert done.code == 2
    assert str(place) in done.err
    assert "remedy: " in done.err
    assert "Traceback" not in done.err
    assert contents(study / "runs") == before


@pytest.mark.parametrize("name", ["model/model.safetensors", "samples/20.txt", "model/config.json"])
def test_run_and_verify_detect_any_flipped_bit(taetpu, study, contents, name):
    """`report` reads only the files that its numbers depend on."""
    file = flip(a_run(study, "baseline") / name)
    before = contents(study / "runs")
    for given in (("run", "s.yaml", "--root", study.parent), ("report", study, "--verify")):
        done = taetpu(*given)
        assert (done.code, str(file) in done.err) == (2, True)
        assert "--retrain-damaged" in done.err
    assert taetpu("report", study).code == 0
    assert contents(study / "runs") == before


def test_run_without_its_result_is_not_retrained_without_the_option(taetpu, study, contents):
    """The run had ended, so its pack is gone."""
    lose(a_run(study) / "result.json")
    before = contents(study / "runs")
    done = taetpu("run", "s.yaml", "--root", study.parent)
    assert done.code == 2
    assert f"{a_run(study)}: " in done.err
    assert "result.json" in done.err
    assert "--retrain-damaged" in done.err
    assert contents(study / "runs") == before


@pytest.mark.slow
def test_retrain_damaged_trains_a_damaged_run_again(taetpu, study, contents):
    before = contents(study / "runs")
    results = (study / "results.json").read_bytes()
    file = flip(a_run(study) / "model/model.safetensors")
    damaged = file.read_bytes()
    done = taetpu("run", "s.yaml", "--root", study.parent, "--retrain-damaged")
    assert done.code == 0, done.err
    assert f"damaged: {a_run(study)}: " in done.err
    assert str(file) in done.err
    ((aside),) = (study / "damaged").rglob("model.safetensors")
    assert aside.read_bytes() == damaged
    after = contents(study / "runs")
    assert {name for name in before if before[name] != after[name]} <= {n for n in before if "/times/" in n}
    assert (study / "results.json").read_bytes() == results


def test_a_damaged_plan_changes_no_report(taetpu, study):
    before = taetpu("report", study, "--json").json()
    flip(study / "plan.json")
    assert taetpu("report", study, "--json").json() == before
    assert taetpu("status", study).code == 0
    assert taetpu("report", study, "--verify").code == 0


def test_study_without_digests_opens(taetpu, study, contents, monkeypatch):
    unsealed(study, monkeypatch)
    for file in (study / "plan.json", *study.glob("times/*.json")):
        file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "digest"}))
    results = (study / "results.json").read_bytes()
    runs = contents(study / "runs")
    for given in (("run", "s.yaml", "--root", study.parent), ("report", study), ("report", study, "--verify")):
        assert taetpu(*given).code == 0
    assert (study / "results.json").read_bytes() == results
    assert contents(study / "runs") == runs
