import pytest
from tests.small import STUDY

from taetpu.spec.loading import load_study
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.run import Options, run_study
from taetpu.train.callbacks import Watcher
from taetpu.train.layout import parse_packing


class Interrupting(Watcher):
    """Raises at the moment an observer is told of it, as Ctrl-C would."""

    def __init__(self, event: str, step: int = 0):
        self.event, self.step, self.trained = event, step, 0

    def advanced(self, step, loss):
        self.trained += 1
        if self.event == "advanced" and step >= self.step:
            raise KeyboardInterrupt

    def evaluated(self, step, run, values):
        if self.event == "evaluated" and step >= self.step:
            raise KeyboardInterrupt


@pytest.fixture
def study(tmp_path):
    """`study(yaml=STUDY, root="root", watcher=None, pack="auto") -> (Outcome, StudyFolder)`: one `taetpu run`."""

    def run(text=STUDY, root="root", watcher=None, pack="auto"):
        file = tmp_path / "study.yaml"
        file.write_text(text)
        loaded = load_study(file)
        folder = StudyFolder(open_store(tmp_path / root), loaded.name)
        return run_study(loaded, folder, watcher or Watcher(), Options(parse_packing(pack))), folder

    return run


@pytest.fixture
def text():
    return STUDY


@pytest.fixture
def interrupting():
    return Interrupting
