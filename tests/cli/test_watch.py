"""`taetpu status --watch`: what it shows of a study while it is trained, that it fits the screen, and how it ends."""

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
from taetpu.cli.status_model import ArmView, PackView, StudyMonitor, StudyView
from taetpu.cli.status_screen import block, screen, share_lines, shorten, sparkline
from taetpu.report import summary
from taetpu.store.backend import LocalStore


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


def test_without_a_terminal_each_change_is_printed_once_until_all_is_done(taetpu, training: Path) -> None:
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


def test_what_is_shown_in_between_has_effects_and_intervals_and_no_verdict(under_way) -> None:
    root, train = under_way
    file = unsealed(root / "small") / "study.yaml"
    file.write_text(file.read_text().replace("seeds:\n- 0\n- 1\n", "seeds:\n- 0\n- 1\n- 2\n", 1))
    for _ in train:
        pass
    watched = StudyMonitor(str(root))
    watched.update()
    text = "\n".join(line.plain for line in screen(list(watched.views.values())))
    results = json.loads((root / "small/results.json").read_text())
    assert "4/6 runs" in text
    assert "95 % interval" in text
    assert summary.format_interval(results["arms"][1]["ci95"], results) in text
    assert not [verdict for verdict in ("better", "worse", "inconclusive", "equivalent") if verdict in text]
    assert not watched.ended


def test_what_was_read_is_not_read_again(under_way, monkeypatch: pytest.MonkeyPatch) -> None:
    root, train = under_way
    asked: list[str] = []
    read = LocalStore.read
    monkeypatch.setattr(LocalStore, "read", lambda store, key: asked.append(key) or read(store, key))
    watched = StudyMonitor(str(root))
    assert watched.update()
    for _ in range(3):
        assert not watched.update()
    while next(train, 0) is None and watched.update():
        pass
    segments = [key for key in asked if "/metrics/" in key]
    once = [key for key in segments if segments.count(key) == 1]
    own = [key for key in segments if "low-lr" in key]
    assert own
    assert len(once) > len(own) / 2  # the analysis reads them, too, when a run ends


def test_a_terminal_is_drawn_on_and_keeps_the_last_screen(training: Path) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=24, record=True)
    module.watch_studies(str(training / "small"), 2.0, console)
    written = out.getvalue()
    assert "Ctrl-C" in written
    last = console.export_text().rpartition("Ctrl-C")[2].rstrip().splitlines()[1:]
    assert last[-1].startswith("low-lr")
    assert [line for line in last if len(line) > 80] == []


def test_ctrl_c_ends_it_quietly(under_way, here: Path) -> None:
    root, _ = under_way
    command = [sys.executable, "-m", "taetpu", "status", str(root), "--watch", "--every", "0.1"]
    with subprocess.Popen(command, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "2/4 runs" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")


def test_a_finished_study_is_shown_once_and_nothing_is_written(taetpu, trained, contents) -> None:
    before = contents(trained[0])
    done = taetpu("status", trained[0], "--watch")
    assert done.code == 0
    assert done.out.count("4/4 runs") == 1
    assert contents(trained[0]) == before


def test_what_cannot_be_watched(taetpu, trained, here: Path) -> None:
    assert "--watch and --json exclude each other" in taetpu("status", trained[0], "--watch", "--json").err
    assert taetpu("status", "nowhere", "--watch").code == 2
    assert taetpu("status", "--watch") == (0, "no studies under ./runs\n", "")
    assert taetpu("status", trained[0], "--watch", "--every", "0").code == 2


def test_a_damaged_study_is_shown_with_its_problem(here: Path, trained) -> None:
    for name in ("small", "other"):
        shutil.copytree(trained[0] / "small", here / "root" / name)
    file = here / "root/other/study.yaml"
    kept = file.read_text()
    watched = StudyMonitor(str(here / "root"))
    for damage in ("study: [", "study: other\n"):
        file.write_text(damage)
        watched.update()
        text = "\n".join(line.plain for line in screen(list(watched.views.values())))
        assert watched.views["other"].problem
        assert "/root/other" in "".join(text.split())
        assert "4/4 runs" in text
        assert not watched.ended
    file.write_text(kept)
    watched.update()
    assert watched.ended


# --- how it fits -----------------------------------------------------------------------------------------------------

LONG = "an-arm-whose-name-does-not-know-how-to-end-and-goes-on-beyond-what-any-screen-can-show-in-a-line"


def arm(i: int, name: str = LONG, said: str = "inconclusive") -> ArmView:
    losses = {"train/loss": 12345.678, "val/loss": 2.5}
    return ArmView(f"{name}-{i}", 16, 16, 1_000_000, losses, "+12345.6789", said, [5, 4, 3.5, 3.2, 3.1, 3.05])


def study(arms: int, name: str = "s", **more) -> StudyView:
    packs = [PackView(i, 120, 4000, 10**6, 10**9, 0.01, "41% of peak") for i in range(5)]
    fields = {"headline": "One of many changes did something. " * 6, "interim": False, "departures": [LONG * 2, "b"]}
    return StudyView(name, [arm(i) for i in range(arms)], packs, **{**fields, **more})


@pytest.mark.parametrize("height", [None, 60, 24, 10, 5, 3, 2, 1])
@pytest.mark.parametrize("studies", [1, 3, 30])
@pytest.mark.parametrize("said", ["inconclusive", "+12345.6789 to +22345.6789", ""])
def test_no_line_is_longer_than_80_columns_and_no_screen_higher_than_it_is(
    height: int | None, studies: int, said: str
) -> None:
    views = [study(40, LONG + str(i), interim="to" in said) for i in range(studies)]
    views = [StudyView(**{**_fields(view), "arms": [arm(i, said=said) for i in range(40)]}) for view in views]
    views[-1] = StudyView(LONG, problem="a problem\n  where:  " + "x" * 200)
    lines = screen(views, height)
    assert max(line.cell_len for line in lines) <= 80
    assert height is None or len(lines) <= height


def _fields(view: StudyView) -> dict:
    return {name: getattr(view, name) for name in view.__dataclass_fields__}


def test_arms_that_do_not_fit_are_summed_up() -> None:
    arms = [arm(i, "arm", "worse" if i == 39 else "inconclusive") for i in range(40)]
    view = StudyView("s", arms, headline="One worse.", interim=False)
    lines = [line.plain for line in block(view, 24, signs=True)]
    assert len(lines) == 24
    assert lines[-1] == "and 20 more arms: 320 of 320 runs done; 1 worse"
    shown = [line for line in lines if line.startswith("arm-")]
    assert len(shown) == 20
    assert [line.plain for line in block(view, 3, signs=True)][-1] == "40 arms: 640 of 640 runs done; 1 worse"


def test_studies_that_do_not_fit_are_summed_up_the_finished_first() -> None:
    views = [study(2, f"s{i}", ended=i < 9) for i in range(10)]
    lines = [line.plain for line in screen(views, 6)]
    assert [line.split()[0] for line in lines if "━" in line] == ["s9"]
    assert lines[-1] == "and 9 more studies: 288 of 288 runs done"


def test_room_is_shared() -> None:
    assert share_lines([3, 30, 4], 20) == [3, 13, 4]
    assert share_lines([30, 30], 21) == [10, 11]
    assert share_lines([], 20) == []


def test_names_lose_their_middle_also_wide_ones() -> None:
    assert shorten("abcdefghij", 10) == "abcdefghij"
    assert shorten("abcdefghijk", 8) == "abc..ijk"
    view = StudyView("研究" * 30, [arm(0, "研究" * 30)])
    assert max(line.cell_len for line in screen([view])) <= 80


def test_a_curve_is_drawn_between_its_least_and_its_most() -> None:
    assert sparkline([8, 1], 5) == "█▁"
    assert sparkline([1, 2, 3, 4, 5, 6, 7, 8], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline(range(1000), 5) == "▁▃▅▆█"
    assert sparkline([2.0, 2.0], 5) == "▁▁"
    assert sparkline([], 5) == ""


def test_without_signs_it_is_ascii() -> None:
    lines = [line.plain for line in screen([study(3)], 24, signs=False)]
    assert all(line.isascii() for line in lines)


def test_a_pack_says_how_long_it_will_take() -> None:
    view = StudyView("s", [arm(0)], [PackView(2, 3, 8, 100, 400, 2.5, "9% of peak"), PackView(3, 3, 1, 0, 400, None)])
    lines = [line.plain for line in screen([view])]
    assert lines[1] == "pack 2/3 (8 runs): step 100 of 400, 2.5 steps/s, 0:02:00 left"
    assert lines[2:4] == ["  device: 9% of peak", "pack 3/3 (1 run): starting"]
