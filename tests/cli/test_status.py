"""`taetpu status`, `list` and `status --watch`: progress and effects of stored studies, without changing them."""

import io
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from tests.forged import unsealed

from taetpu.cli import status as module
from taetpu.cli.status_model import StudyMonitor
from taetpu.cli.status_screen import screen
from taetpu.report import summary
from taetpu.stats import formatting
from taetpu.store.backend import LocalStore


def test_status_before_anything_is_trained(taetpu, here):
    assert taetpu("status") == (0, "no studies under ./runs\n", "")
    assert taetpu("status", "--json").json() == {}
    assert taetpu("list") == (0, "no studies under ./runs\n", "")
    assert taetpu("list", "--root", "nowhere", "--json").json() == []
    assert [p.name for p in here.iterdir()] == ["s.yaml"]


def test_status_and_list_of_one_study_and_of_a_root_of_many(taetpu, here, trained, contents):
    root = here / "root"
    for name in ("small", "other"):
        shutil.copytree(trained[0] / "small", root / name)
    before = contents(root)
    assert list(taetpu("status", root, "--json").json()) == ["other", "small"]
    assert list(taetpu("status", root / "small", "--json").json()) == ["small"]
    rows = taetpu("status", root / "small", "--json").json()["small"]
    table = taetpu("status", root / "small").out.splitlines()
    assert table[0] == "small"
    assert table[1].split() == ["arm", "done", "step", "train/loss", "val/loss"]
    for row, line in zip(rows, table[2:4], strict=True):
        losses = [formatting.number(row[metric], row["places"]) for metric in ("train/loss", "val/loss")]
        assert line.split() == [row["arm"], row["done"], str(row["step"]), *losses]
        assert (row["done"], row["step"]) == ("2/2", 20)
    results = json.loads((root / "small/results.json").read_text())
    arms = results["arms"]
    assert [(row["effect"], row["ci95"]) for row in rows] == [(arm["effect"], arm["ci95"]) for arm in arms]
    assert [row["standing"] for row in rows] == ["baseline", arms[1]["verdict"]]
    assert (table[4], table[5].split()) == ("", ["arm", "effect", "95", "%", "interval", "verdict"])
    assert table[6].split() == [
        "low-lr", summary.format_effect(arms[1], results), *summary.format_interval(arms[1]["ci95"], results).split(),
        arms[1]["verdict"],
    ]  # fmt: skip

    found = taetpu("list", "--root", root, "--json").json()
    assert [(entry["study"], entry["arms"], entry["seeds"], entry["runs"]) for entry in found] == [
        ("other", 2, 2, "4/4"),
        ("small", 2, 2, "4/4"),
    ]
    assert taetpu("list", "--root", root).out.splitlines()[1].split()[:4] == ["other", "2", "2", "4/4"]
    assert contents(root) == before


def test_a_diverged_run_is_shown_and_its_json_is_strict(taetpu, here, trained):
    """One arm's last losses are NaN in the store."""
    from taetpu.store.index import find_study

    root = here / "root"
    shutil.copytree(trained[0], root)
    for run in find_study(root).runs():
        if run.arm == "low-lr":
            run.append(20, 21, {"train/loss": ([21], [float("nan")]), "val/loss": ([21], [float("inf")])})
    unsealed(root / "small")
    row = taetpu("status", root, "--json").json()["small"][1]
    assert (row["train/loss"], row["val/loss"]) == (None, None)
    assert taetpu("status", root).out.splitlines()[3].split()[-2:] == ["nan", "inf"]


def test_a_damaged_study_is_listed_with_its_problem(taetpu, here, trained):
    root = here / "root"
    for name in ("small", "other"):
        shutil.copytree(trained[0] / "small", root / name)
    (root / "other/study.yaml").write_text("study: [")
    found = taetpu("list", "--root", root, "--json").json()
    assert [bool(entry["problem"]) for entry in found] == [True, False]
    assert "not valid YAML" in found[0]["problem"]
    assert taetpu("list", "--root", root).code == 0
    code, out, err = taetpu("status", root)
    assert (code, err) == (0, "")
    assert f"  where:  {root}/other/study.yaml:1" in out
    assert "\nsmall\n" in out
    told = taetpu("status", root, "--json").json()
    assert "not valid YAML" in told["other"][0]["problem"]
    assert [row["done"] for row in told["small"]] == ["2/2", "2/2"]
    done = taetpu("status", root / "other")
    assert done.code == 2
    assert f"where:  {root}/other/study.yaml:1" in done.err


def test_an_unfinished_study_gets_effects_and_no_verdict(taetpu, here, trained, contents):
    root = here / "root"
    shutil.copytree(trained[0], root)
    file = unsealed(root / "small") / "study.yaml"
    file.write_text(file.read_text().replace("seeds:\n- 0\n- 1\n", "seeds:\n- 0\n- 1\n- 2\n", 1))
    before = contents(root)
    rows = taetpu("status", root / "small", "--json").json()["small"]
    finished = json.loads((root / "small/results.json").read_text())["arms"][1]
    assert [row["standing"] for row in rows] == ["baseline", "interim"]
    assert (rows[1]["done"], rows[1]["effect"], rows[1]["ci95"]) == ("2/3", finished["effect"], finished["ci95"])
    lines = taetpu("status", root / "small").out.splitlines()
    assert lines[4].startswith("interim effects of finished runs")
    assert lines[5].split() == ["arm", "effect", "95", "%", "interval"]
    assert lines[6].startswith("low-lr  +")
    assert not [line for line in lines if any(verdict in line for verdict in ("better", "worse", "inconclusive"))]
    assert contents(root) == before


@pytest.fixture
def under_way(here: Path, trained) -> tuple[Path, Iterator[None]]:
    """A study whose second arm is trained one step at a time, whenever the second thing is asked for its next."""
    root = here / "root"
    shutil.copytree(trained[0], root)
    study, kept = root / "small", here / "kept"
    shutil.move(study / "results.json", here / "results.json")
    shutil.move(study / "runs/low-lr", kept)
    files = sorted((file for file in kept.rglob("*") if file.is_file()), key=_order)
    steps = sorted({_order(file) for file in files})

    def train() -> Iterator[None]:
        for step in steps:
            for file in (file for file in files if _order(file) == step):
                place = study / "runs/low-lr" / file.relative_to(kept)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, place)
            if step == steps[-1]:
                shutil.copy(here / "results.json", study)
            yield

    return root, train()


def _order(file: Path) -> int:
    """When a file of a run is written."""
    if file.parent.name in ("metrics", "times"):
        return int(file.stem.partition("-")[2])
    return {"config.json": 0, "result.json": 10**9}.get(file.name, 10**6)


@pytest.fixture
def training(under_way, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of `under_way`; a step is trained whenever `--watch` waits."""
    root, train = under_way
    monkeypatch.setattr(module.time, "sleep", lambda seconds: next(train, None))
    return root


def test_watch_without_a_terminal_prints_each_change_once(taetpu, training: Path) -> None:
    code, out, err = taetpu("status", training / "small", "--watch")
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80
    shown = out.split("\n\n")
    done = [text.splitlines()[0].split()[-2] for text in shown]
    assert (done[0], done[-1]) == ("2/4", "4/4")
    assert done == sorted(done)
    assert len(set(shown)) == len(shown)
    results = json.loads((training / "small/results.json").read_text())
    arm = results["arms"][1]
    *_, before, last = shown
    assert arm["verdict"] not in before
    last_row = last.splitlines()[-1].split()
    assert last_row[:3] == ["low-lr", "2/2", "20"]
    assert last_row[5:7] == [summary.format_effect(arm, results), arm["verdict"]]
    assert float(last_row[4]) == pytest.approx(arm["mean"], abs=1e-4)
    at_ten = next(text for text in shown if "pack 1/1 (4 runs): step 10 of 20" in text)
    assert "\n  device: memory " in at_ten


def test_watch_shows_interim_effects_without_verdicts(under_way) -> None:
    root, train = under_way
    file = unsealed(root / "small") / "study.yaml"
    file.write_text(file.read_text().replace("seeds:\n- 0\n- 1\n", "seeds:\n- 0\n- 1\n- 2\n", 1))
    for _ in train:
        pass
    monitor = StudyMonitor(str(root))
    monitor.update()
    text = "\n".join(line.plain for line in screen(list(monitor.views.values())))
    results = json.loads((root / "small/results.json").read_text())
    assert "4/6 runs" in text
    assert "95 % interval" in text
    assert summary.format_interval(results["arms"][1]["ci95"], results) in text
    assert not [verdict for verdict in ("better", "worse", "inconclusive", "equivalent") if verdict in text]
    assert not monitor.ended


def test_watch_reads_each_segment_once(under_way, monkeypatch: pytest.MonkeyPatch) -> None:
    root, train = under_way
    asked: list[str] = []
    read = LocalStore.read
    monkeypatch.setattr(LocalStore, "read", lambda store, key: asked.append(key) or read(store, key))
    monitor = StudyMonitor(str(root))
    assert monitor.update()
    for _ in range(3):
        assert not monitor.update()
    while next(train, 0) is None and monitor.update():
        pass
    segments = [key for key in asked if "/metrics/" in key]
    once = [key for key in segments if segments.count(key) == 1]
    own = [key for key in segments if "low-lr" in key]
    assert own
    assert len(once) > len(own) / 2  # the analysis reads them, too, when a run ends


def test_watch_on_a_terminal_keeps_the_last_screen(training: Path) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=24, record=True)
    module.watch_studies(str(training / "small"), 2.0, console)
    written = out.getvalue()
    assert "Ctrl-C" in written
    last = console.export_text().rpartition("Ctrl-C")[2].rstrip().splitlines()[1:]
    assert last[-1].startswith("low-lr")
    assert [line for line in last if len(line) > 80] == []


def test_ctrl_c_ends_watch_quietly(under_way, here: Path) -> None:
    root, _ = under_way
    command = [sys.executable, "-m", "taetpu", "status", str(root), "--watch", "--every", "0.1"]
    with subprocess.Popen(command, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "2/4 runs" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")


def test_watch_of_a_finished_study_prints_once_and_writes_nothing(taetpu, trained, contents) -> None:
    before = contents(trained[0])
    done = taetpu("status", trained[0], "--watch")
    assert done.code == 0
    assert done.out.count("4/4 runs") == 1
    assert contents(trained[0]) == before


def test_watch_rejects_json_and_missing_studies(taetpu, trained, here: Path) -> None:
    assert "--watch and --json exclude each other" in taetpu("status", trained[0], "--watch", "--json").err
    assert taetpu("status", "nowhere", "--watch").code == 2
    assert taetpu("status", "--watch") == (0, "no studies under ./runs\n", "")
    assert taetpu("status", trained[0], "--watch", "--every", "0").code == 2


def test_watch_shows_the_problem_of_a_damaged_study(here: Path, trained) -> None:
    for name in ("small", "other"):
        shutil.copytree(trained[0] / "small", here / "root" / name)
    file = here / "root/other/study.yaml"
    kept = file.read_text()
    monitor = StudyMonitor(str(here / "root"))
    for damage in ("study: [", "study: other\n"):
        file.write_text(damage)
        monitor.update()
        text = "\n".join(line.plain for line in screen(list(monitor.views.values())))
        assert monitor.views["other"].problem
        assert "/root/other" in "".join(text.split())
        assert "4/4 runs" in text
        assert not monitor.ended
    file.write_text(kept)
    monitor.update()
    assert monitor.ended
