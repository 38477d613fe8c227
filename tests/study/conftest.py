import pytest
from tests.small import STUDY

import taetpu
from taetpu.spec.loading import load_study
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.run import Options, run_study
from taetpu.train.callbacks import Callback
from taetpu.train.layout import parse_packing


class Interrupting(Callback):
    """Raises `KeyboardInterrupt` in an event, from a given step on."""

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
    """Return `study(yaml=STUDY, root="root", callback=None, pack="auto")`, which runs a study.

    It returns the outcome and the study's folder.
    """

    def run(text=STUDY, root="root", callback=None, pack="auto"):
        file = tmp_path / "study.yaml"
        file.write_text(text)
        loaded = load_study(file)
        folder = StudyFolder(open_store(tmp_path / root), loaded.name)
        return run_study(loaded, folder, callback or Callback(), Options(packing=parse_packing(pack))), folder

    return run


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Return the outcome of a run of `STUDY` and its root. Tests that change the root copy it first."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "study.yaml").write_text(STUDY)
    return taetpu.run(folder / "study.yaml", root=str(folder / "root")), folder / "root"


@pytest.fixture
def text():
    return STUDY


@pytest.fixture
def interrupting():
    return Interrupting
