"""A failing or missing tracker neither stops training nor changes results."""

import io
import sys

import pytest
from rich.console import Console
from tests.small import TINY

from taetpu.study.progress import StudyProgress
from taetpu.study.run_file import run
from taetpu.train.callbacks import Callback, CallbackList

SHORT = TINY.replace("eval_every: 6", "eval_every: 3") + "seeds: 1\n"
BROKEN = """\
trackers:
  at-open: {kind: breaks, at: open}
  at-log: {kind: breaks, at: log}
  at-finish: {kind: breaks, at: finish}
  keeps: {}
  tensorboard: {}
  wandb: {mode: offline}
  trackio: {}
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The results of the study without a tracker."""
    file = tmp_path_factory.mktemp("plain") / "study.yaml"
    file.write_text(SHORT)
    run(file, root=str(file.parent))
    return (file.parent / "tiny/results.json").read_bytes()


@pytest.fixture
def without_libraries(monkeypatch):
    for name in ("tensorboardX", "wandb", "trackio", "trackio.sqlite_storage"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.slow
def test_failing_trackers_are_disabled_and_training_continues(study, own, without_libraries, results, plain):
    folder, told = study(SHORT + BROKEN)
    missing = "is not installed: run `pip install 'taetpu[trackers]'`"
    assert told.off == {
        "at-open": "OSError: broken at open",
        "at-log": "OSError: broken at log",
        "at-finish": "OSError: broken at finish",
        "tensorboard": f"tensorboardX {missing}",
        "wandb": f"wandb {missing}",
        "trackio": f"trackio {missing}",
    }
    assert results(folder) == plain
    (heard,) = own.values()  # of the one that works, which has it all
    assert [type(part).__name__ for part in heard] == ["TrackedRun", "Row", "Row", "dict"]

    own.clear()  # what failed is tried again by the next process, and nothing else is
    _, told = study(SHORT + "trackers: {keeps: {}, at-finish: {kind: keeps}}\n")
    assert (told.off, told.trained) == ({}, 0)
    (heard,) = own.values()
    assert [type(part).__name__ for part in heard] == ["TrackedRun", "Row", "Row", "dict"]


PLACES = ["log", *(pytest.param(place, marks=pytest.mark.slow) for place in ("open", "finish"))]


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_ctrl_c_in_a_tracker_stops_the_study(study, own, place, results, plain):
    with pytest.raises(KeyboardInterrupt):
        study(SHORT + f"trackers: {{breaks: {{at: {place}, interrupts: true}}}}\n")
    folder, _ = study(SHORT)
    assert results(folder) == plain


@pytest.mark.slow
def test_tracker_that_cannot_write_is_disabled(study, tmp_path):
    (tmp_path / "root/tiny").mkdir(parents=True)
    (tmp_path / "root/tiny/trackers").write_text("a file where a folder should be")
    _, told = study(SHORT + "trackers: tensorboard\n")
    assert list(told.off) == ["tensorboard"]
    assert "NotADirectoryError" in told.off["tensorboard"] or "FileExistsError" in told.off["tensorboard"]


@pytest.mark.slow
def test_wandb_without_an_api_key_does_not_prompt(study, alone, monkeypatch):
    """On a terminal, wandb would prompt for a key."""
    monkeypatch.setenv("NETRC", str(alone / "none"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    _, told = study(SHORT + "trackers: {wandb: {mode: online}}\n")
    assert list(told.off) == ["wandb"]
    assert "no API key" in told.off["wandb"]
    assert "`wandb login`" in told.off["wandb"]


def test_tracker_failure_is_printed_in_one_line(wording):
    out = io.StringIO()
    StudyProgress(Console(file=out)).on_tracker_failed("wandb", "no API key was found")
    assert out.getvalue().count("\n") == 1
    wording(out.getvalue())


def test_a_callback_list_forwards_every_event():
    heard = []

    class Hears(Callback):
        def __getattribute__(self, name):
            return lambda *given: heard.append((name, given))

    events = [name for name in vars(Callback) if not name.startswith("_")]
    assert "on_pack_end" in events
    for name in events:
        getattr(CallbackList(Hears(), Hears()), name)(1, name)
    assert heard == [(name, (1, name)) for name in events for _ in range(2)]
