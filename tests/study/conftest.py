import pytest
from tests.small import STUDY

from taetpu.spec.loading import load_study
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.run import Options, run_study
from taetpu.train.callbacks import Callback
from taetpu.train.layout import parse_packing


class Interrupting(Callback):
    """Raises `KeyboardInterrupt` in one event, from a step on."""

    def __init__(self, event: str, step: int = 0):
        self.event, self.step, self.trained = event, step, 0

    def on_steps(self, step, loss):
        self.trained += 1
        if self.event == "on_steps" and step >= self.step:
            raise KeyboardInterrupt

    def on_evaluate(self, step, run, values):
        if self.event == "on_evaluate" and step >= self.step:
            raise KeyboardInterrupt


@pytest.fixture
def study(tmp_path):
    """`study(yaml=STUDY, root="root", callback=None, pack="auto") -> (Outcome, StudyFolder)`: one `taetpu run`."""

    def run(text=STUDY, root="root", callback=None, pack="auto"):
        file = tmp_path / "study.yaml"
        file.write_text(text)
        loaded = load_study(file)
        folder = StudyFolder(open_store(tmp_path / root), loaded.name)
        return run_study(loaded, folder, callback or Callback(), Options(parse_packing(pack))), folder

    return run


@pytest.fixture
def text():
    return STUDY


@pytest.fixture
def interrupting():
    return Interrupting
