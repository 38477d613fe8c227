"""`taetpu status`, `list` and `status --watch`: progress and effects of stored studies, without changing them."""

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from tests.forged import unsealed
from tests.stats.conftest import made_study
from tests.ui.conftest import Growing

from taetpu.cli import status as module
from taetpu.cli.status_model import StudyMonitor
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
    shown = taetpu("status", root / "small").out.splitlines()
    assert max(map(len, shown)) <= 80
    assert shown[0].startswith("small ━")
    assert shown[0].endswith(" 4/4 runs")
    assert shown[-3].split() == ["arm", "runs", "step", "train/loss", "val/loss", "effect", "verdict"]
    for row, line in zip(rows, shown[-2:], strict=True):
        losses = [formatting.number(row[metric], row["places"]) for metric in ("train/loss", "val/loss")]
        assert line.split()[:5] == [row["arm"], row["runs"], str(row["step"]), *losses]
        assert (row["runs"], row["step"]) == ("2/2", 20)
    results = json.loads((root / "small/results.json").read_text())
    arms = results["arms"]
    assert [(row["effect"], row["ci95"]) for row in rows] == [(arm["effect"], arm["ci95"]) for arm in arms]
    assert [row["standing"] for row in rows] == ["baseline", arms[1]["verdict"]]
    assert shown[-1].split()[5:] == [summary.format_effect(arms[1], results), arms[1]["verdict"]]

    found = taetpu("list", "--root", root, "--json").json()
    assert [(entry["study"], entry["arms"], entry["seeds"], entry["runs"]) for entry in found] == [
        ("other", 2, 2, "4/4"),
        ("small", 2, 2, "4/4"),
    ]
    assert taetpu("list", "--root", root).out.splitlines()[1].split()[:4] == ["other", "2", "2", "4/4"]
    assert contents(root) == before


def test_diverged_run_is_shown_and_json_is_strict(taetpu, here, trained, monkeypatch):
    """One arm's last losses are NaN in the store."""
    from taetpu.store.addresses import find_study

    root = here / "root"
    shutil.copytree(trained[0], root)
    for run in find_study(root).runs():
        if run.arm == "low-lr":
            run.append(20, 21, {"train/loss": ([21], [float("nan")]), "val/loss": ([21], [float("inf")])})
    unsealed(root / "small", monkeypatch)
    row = taetpu("status", root, "--json").json()["small"][1]
    assert (row["train/loss"], row["val/loss"]) == (None, None)
    assert taetpu("status", root).out.splitlines()[-1].split()[3:5] == ["nan", "nan"]


def test_diverged_runs_of_an_arm_are_counted(taetpu, here):
    """An arm without a finished run has a verdict, but no effect."""
    growing = Growing(here / "root")
    for seed in (0, 1):
        growing.train("baseline", seed, 0, 100)
        growing.finish("baseline", seed, 0.3 + seed / 50)
        growing.train("other", seed, 0, 100)
        outcome = {"outcome": "diverged", "diverged_at": 10, "steps": 10, "metrics": {"val/loss": None}}
        growing.run("other", seed).finish({**outcome, "params": 10, "environment": {}})
    study = growing.folder.where
    rows = taetpu("status", study, "--json").json()["toy"]
    assert [(row["arm"], row["diverged"]) for row in rows] == [("baseline", 0), ("other", 2)]
    assert taetpu("status", study).out.splitlines()[-1].endswith(f"{rows[1]['standing']}, 2 diverged")


def test_damaged_study_is_listed_with_its_problem(taetpu, here, trained):
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
    assert "\nsmall ━" in out
    told = taetpu("status", root, "--json").json()
    assert "not valid YAML" in told["other"][0]["problem"]
    assert [row["runs"] for row in told["small"]] == ["2/2", "2/2"]
    done = taetpu("status", root / "other")
    assert done.code == 2
    assert f"where:  {root}/other/study.yaml:1" in done.err


def test_unfinished_study_has_effects_and_no_verdict(taetpu, here, trained, contents, monkeypatch):
    root = here / "root"
    shutil.copytree(trained[0], root)
    file = unsealed(root / "small", monkeypatch) / "study.yaml"
    file.write_text(file.read_text().replace("seeds:\n- 0\n- 1\n", "seeds:\n- 0\n- 1\n- 2\n", 1))
    before = contents(root)
    rows = taetpu("status", root / "small", "--json").json()["small"]
    finished = json.loads((root / "small/results.json").read_text())["arms"][1]
    assert [row["standing"] for row in rows] == ["baseline", "interim"]
    assert (rows[1]["runs"], rows[1]["effect"], rows[1]["ci95"]) == ("2/3", finished["effect"], finished["ci95"])
    out = taetpu("status", root / "small").out
    assert "4/6 runs" in out
    assert "95 % interval" in out
    low, high = formatting.interval(finished["ci95"], rows[1]["places"]).split(" to ")
    assert low in out
    assert high in out
    assert not [verdict for verdict in ("better", "worse", "inconclusive", "equivalent") if verdict in out]
    assert contents(root) == before


@pytest.fixture
def under_way(here: Path, trained) -> tuple[Path, Iterator[None]]:
    """A root, and an iterator that trains the study's second arm by one step at a time."""
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
    """Return the step after which a file of a run is written."""
    if file.parent.name in ("metrics", "times"):
        return int(file.stem.partition("-")[2])
    return {"config.json": 0, "result.json": 10**9}.get(file.name, 10**6)


@pytest.fixture
def training(under_way, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of `under_way`. A step is trained whenever `--watch` sleeps."""
    root, train = under_way
    monkeypatch.setattr(module.time, "sleep", lambda seconds: next(train, None))
    return root


def test_watch_without_a_terminal_prints_the_final_state_once(taetpu, training: Path) -> None:
    code, out, err = taetpu("status", training / "small", "--watch")
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert out.count("/4 runs") == out.count(" 4/4 runs") == 1
    results = json.loads((training / "small/results.json").read_text())
    arm = results["arms"][1]
    row = out.splitlines()[-1].split()
    assert row[:3] == ["low-lr", "2/2", "20"]
    assert row[5:7] == [summary.format_effect(arm, results), arm["verdict"]]
    assert float(row[4]) == pytest.approx(arm["mean"], abs=0.51 * 10 ** -len(row[4].partition(".")[2]))


def test_progress_of_a_pack_in_training_has_step_speed_and_memory(under_way) -> None:
    root, train = under_way
    monitor = StudyMonitor(str(root))
    seen = [line for _ in train for study in monitor.update() for line in study.packs()]
    found = [line for line in seen if line.startswith("pack 1/1 (4 runs): step 10 of 20, ")]
    assert found
    assert ", memory " in found[0]


def test_watch_reads_each_segment_once(under_way, monkeypatch: pytest.MonkeyPatch) -> None:
    root, train = under_way
    asked: list[str] = []
    read = LocalStore.read
    monkeypatch.setattr(LocalStore, "read", lambda store, key: asked.append(key) or read(store, key))
    monitor = StudyMonitor(str(root))
    monitor.update()
    asked.clear()
    for _ in train:
        if list(root.rglob("low-lr/*/result.json")):
            break  # the analysis reads the segments too
        monitor.update()
    segments = [key for key in asked if "/metrics/" in key]
    assert len([key for key in segments if "low-lr" in key]) >= 4
    assert len(segments) == len(set(segments))


def test_watch_on_a_terminal_keeps_the_last_screen(training: Path) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=24, record=True)
    module.watch_studies(StudyMonitor(str(training / "small")), console)
    written = out.getvalue()
    assert "Ctrl-C" in written
    last = console.export_text().rpartition("Ctrl-C")[2].rstrip().splitlines()[1:]
    assert last[-1].startswith("low-lr")
    assert [line for line in last if len(line) > 80] == []


def test_ctrl_c_ends_watch_quietly(taetpu, under_way, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module.time, "sleep", interrupt)
    assert taetpu("status", under_way[0], "--watch") == (0, "", "")


def test_watch_of_a_finished_study_prints_once_and_writes_nothing(taetpu, trained, contents) -> None:
    before = contents(trained[0])
    done = taetpu("status", trained[0], "--watch")
    assert done.code == 0
    assert done.out.count("4/4 runs") == 1
    assert contents(trained[0]) == before


def test_watch_rejects_json_and_missing_studies(taetpu, trained, here: Path) -> None:
    assert "--watch and --json" in taetpu("status", trained[0], "--watch", "--json").err
    assert taetpu("status", "nowhere", "--watch").code == 2
    assert taetpu("status", "--watch") == (0, "no studies under ./runs\n", "")


def test_watch_shows_the_problem_of_a_damaged_study(here: Path, trained) -> None:
    for name in ("small", "other"):
        shutil.copytree(trained[0] / "small", here / "root" / name)
    file = here / "root/other/study.yaml"
    kept = file.read_text()
    monitor, console = StudyMonitor(str(here / "root")), Console(file=io.StringIO(), width=80, record=True)
    for damage in ("study: [", "study: other\n"):
        file.write_text(damage)
        damaged, whole = monitor.update()
        assert str(file) in damaged.feed.problem
        assert (damaged.ended, whole.ended) == (False, True)
        console.print(module.render([damaged, whole], console))
        text = console.export_text()
        assert "/root/other" in "".join(text.split())
        assert "4/4 runs" in text
    file.write_text(kept)
    assert [study.ended for study in monitor.update()] == [True, True]


def test_a_tuned_study_ends_once_its_tuning_is_recorded(here: Path) -> None:
    plan = {"arms": ("baseline", "other", "baseline@tuned", "other@tuned")}
    folder = made_study(here / "root", {arm: {0: 3.0, 1: 3.1} for arm in ("baseline", "other")}, **plan)
    monitor = StudyMonitor(str(here / "root"))
    (study,) = monitor.update()
    assert (study.feed.problem, study.done, study.total, study.ended) == ("", 4, 4, False)
    tuning = {"values": {}, "seeds": [2], "arms": {arm: {"trials": {}, "best": None, "edge": []} for arm in ("other",)}}
    folder.write_study({**folder.read_study(), "tuning": tuning}, replace=True)
    (study,) = monitor.update()
    assert (study.feed.problem, study.ended) == ("", True)


def test_render_fits_80_columns_and_prints_ascii_on_ascii_terminals(trained, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long name is wrapped, and a study that trains many packs has a line for each."""
    (study,) = StudyMonitor(str(trained[0])).update()
    study.name = study.feed.study["arms"][0] = "an-arm-whose-name-is-longer-than-a-line-of-a-terminal-" * 2
    study.feed.results["arms"][0]["name"] = study.name
    monkeypatch.setattr(type(study), "packs", lambda study: ["pack 1/120 (4,000 runs): step 1,000,000 of 9,000,000"])
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(file=out, width=80)
    console.print(module.render([study], console))
    out.flush()
    lines = out.buffer.getvalue().decode().splitlines()
    assert len(lines) > 5
    assert max(len(line) for line in lines[2:]) <= 80
