"""`taetpu tpu up` in processes of their own: one at a time, and what Ctrl-C leaves is said and found again."""

import os
import signal
import subprocess
import sys

import pytest

from taetpu.cloud.clients import FAKE
from taetpu.cloud.fakes import gce, prices, tpu_rest
from taetpu.cloud.fakes.server import Server
from taetpu.cloud.fakes.tpu import Tpu
from taetpu.cloud.fakes.world import World

UP = ("tpu", "up", "mine", "--type", "v6e-8", "--zone", "us-east5-b", "--yes")


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A fake cloud; commands are given in an empty folder."""
    found = World()
    routes = [*gce.routes(found), *prices.routes(found), *tpu_rest.routes(Tpu(found))]
    with Server(found, routes) as server:
        values = {FAKE: server.address, "XDG_STATE_HOME": str(tmp_path / "state"), "TAETPU_OWNER": "me"}
        values |= {"TAETPU_PROJECT": found.project, "TAETPU_CACHE": str(tmp_path / "cache")}
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("TAETPU_FAKE_CLOUD_GRPC", raising=False)
        monkeypatch.chdir(tmp_path)
        yield found


def taetpu(*words, **how):
    return subprocess.Popen([sys.executable, "-m", "taetpu", *words], stderr=subprocess.PIPE, text=True, **how)


@pytest.mark.slow
def test_one_at_a_time_and_ctrl_c_says_what_may_be_there(world):
    world.polls = 10**6
    with taetpu(*UP) as first:
        assert first.stderr
        said = ""
        while "us-east5-b: PROVISIONING" not in said:
            said += first.stderr.readline()
        with taetpu(*UP) as second:
            _, refused = second.communicate(timeout=60)
        assert second.returncode == 2
        assert f"error: another command (process {first.pid}) is changing the TPU 'mine'" in refused
        first.send_signal(signal.SIGINT)
        _, said = first.communicate(timeout=60)
    assert first.returncode == 130
    hint = "the same command goes on with it, `taetpu tpu down mine` removes it"
    assert f"mine may be in us-east5-b, or come there yet: {hint}" in said
    assert "Traceback" not in said
    world.polls = 1
    for operation in world.operations.values():
        operation.polls = 1
    with taetpu("tpu", "down", "mine", "--yes", env=os.environ) as down:
        assert down.wait(60) == 0
    assert world.left() == []
