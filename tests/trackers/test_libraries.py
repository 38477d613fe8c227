"""The real libraries receive the stored values of every run and step, also after interruptions."""

from pathlib import Path

import numpy as np
import pytest
from tests.small import STUDY
from tests.trackers import reading

from taetpu.store.flat_config import flatten_config
from taetpu.train.callbacks import Callback

pytestmark = pytest.mark.slow

ALL = """\
trackers:
  tensorboard:
  wandb: {project: tests, mode: offline, tags: [one]}
  trackio: {project: NAME}
"""


class Stopping(Callback):
    """Press Ctrl-C when the runs are evaluated at a step."""

    def __init__(self, step):
        self.step = step

    def on_evaluate(self, step, run, values):
        if step == self.step:
            raise KeyboardInterrupt


@pytest.fixture(params=[pytest.param("at once", marks=pytest.mark.slow), "stopped"])
def tracked(request, study, alone):
    name = request.param.replace(" ", "-")
    text = STUDY + ALL.replace("NAME", name)
    if request.param == "stopped":
        for step in (10, 20):  # before anything is stored, and with a half of it stored
            with pytest.raises(KeyboardInterrupt):
                study(text, callback=Stopping(step))
    folder, told = study(text)
    assert told.off == {}
    assert len(folder.runs()) == 4
    return folder, alone / "TRACKIO_DIR" / f"{name}.db"


def test_every_library_receives_the_stored_values(tracked):
    folder, database = tracked
    of_trackio = reading.trackio(database)
    for run in folder.runs():
        flat = flatten_config(run.config()["config"])

        (file,) = Path(folder.where, "trackers/tensorboard", run.arm).glob(f"{run.seed}-*/*")
        found = reading.tensorboard(file)
        assert found.pop("outcome") == {20: "finished"}
        assert found.pop("settings")[0] == "\n".join(f"{name}: {value}" for name, value in flat.items())
        for name, value in reading.final(run).items():
            assert found.pop(name) == {20: float(np.float32(value))}
        assert len([found.pop(name) for name in list(found) if name.startswith("_hparams_/")]) == 3
        assert found == reading.stored(run, cut=lambda value: float(np.float32(value)))

        (left,) = [
            config | {"points": points, "summary": summary}
            for points, config, summary in map(
                reading.wandb, Path(folder.where, "trackers/wandb/wandb").glob("offline-run-*")
            )
            if config["name"] == f"{run.arm}/{run.seed}"
        ]
        assert left["points"] == reading.stored(run)
        assert left["group"] == "small"
        assert {name: left[name] for name in flat} == flat
        shown = {"outcome": "finished", **reading.final(run)}
        assert {name: left["summary"][name] for name in shown} == shown

        found = of_trackio.pop(f"{run.arm}/{run.seed}")
        assert found.pop("outcome") == {20: "finished"}
        for name, value in reading.final(run).items():
            assert found.pop(name) == {20: value}
        assert found == reading.stored(run)
    assert of_trackio == {}
    assert len(list(Path(folder.where, "trackers/wandb/wandb").glob("offline-run-*"))) == 4
