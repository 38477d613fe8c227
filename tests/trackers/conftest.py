"""Fixtures: trackers with their real libraries and without a network."""

import socket
from contextlib import suppress
from pathlib import Path

import pytest

from taetpu.core import registry
from taetpu.core.registry import kinds, register
from taetpu.spec.loading import load_study
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.run import run_study
from taetpu.trackers.base import Sink, Tracker
from taetpu.train.callbacks import Callback


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Disable the network by a proxy that must not be contacted, and redirect the libraries' files."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
            patch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        patch.delenv("WANDB_ERROR_REPORTING", raising=False)
        for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR", "TRACKIO_DIR"):
            patch.setenv(name, str(home / name))
        import trackio.sqlite_storage

        patch.setattr(trackio.sqlite_storage, "TRACKIO_DIR", home / "TRACKIO_DIR")  # it may be imported already
        yield home
        proxy.settimeout(0.01)
        asked = []
        with suppress(TimeoutError):
            while True:
                caller, _ = proxy.accept()
                with caller:
                    caller.settimeout(1)
                    asked.append(caller.recv(200))
        assert asked == []


class Told(Callback):
    """Records tracker failures and counts training steps."""

    def __init__(self):
        self.off, self.trained, self.evaluations = {}, 0, 0

    def on_tracker_failed(self, tracker, problem):
        assert tracker not in self.off
        self.off[tracker] = problem

    def on_steps(self, step, loss):
        self.trained += 1


@pytest.fixture
def study(tmp_path):
    """`study(text, root="root", callback=None) -> (StudyFolder, Told)`: one `taetpu run`."""

    def run(text, root="root", callback=None):
        file, callback = tmp_path / "study.yaml", callback or Told()
        file.write_text(text)
        loaded = load_study(file)
        folder = StudyFolder(open_store(tmp_path / root), loaded.name)
        run_study(loaded, folder, callback)
        return folder, callback

    return run


@pytest.fixture
def own(monkeypatch):
    """Register two trackers: `breaks` raises where asked to, `keeps` has one open run at a time."""
    for slot in registry.BUILTIN_MODULES:  # else what is first asked for here would be forgotten after the test
        kinds(slot)
    monkeypatch.setattr(registry, "_KINDS", {slot: dict(known) for slot, known in registry._KINDS.items()})
    kept: dict[str, list] = {}

    class Broken(Sink):
        def __init__(self, tracker):
            self.tracker = tracker
            tracker.reach("open")

        def log(self, rows):
            self.tracker.reach("log")

        def finish(self, result):
            self.tracker.reach("finish")

        def close(self):
            raise OSError("cannot even be closed")

    @register("tracker", "breaks")
    class Breaks(Tracker):
        at: str
        interrupts: bool = False

        def reach(self, place):
            if place == self.at:
                raise KeyboardInterrupt if self.interrupts else OSError(f"broken\nat {place}")

        def open(self, run):
            return Broken(self)

    class Kept(Sink):
        def __init__(self, run):
            self.heard = kept.setdefault(run.name, [])
            self.heard.append(run)

        def log(self, rows):
            self.heard += rows

        def finish(self, result):
            self.heard.append(result)

        def close(self):
            self.heard.clear()

    @register("tracker", "keeps")
    class Keeps(Tracker):
        max_open = 1

        def open(self, run):
            return Kept(run)

    return kept


def results(folder: StudyFolder) -> bytes:
    return Path(folder.where, "results.json").read_bytes()


@pytest.fixture(name="results")
def _results():
    return results
