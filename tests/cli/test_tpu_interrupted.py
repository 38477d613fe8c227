"""`taetpu tpu up` in processes of their own: one at a time, and what Ctrl-C leaves is said and found again."""

import os
import re
import signal
import subprocess
import sys

import pytest
from tests.clouds import BUCKET
from tests.small import STUDY

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
    assert "interrupted" not in said, "what is better said is not said twice"
    world.polls = 1
    for operation in world.operations.values():
        operation.polls = 1
    with taetpu("tpu", "down", "mine", "--yes", env=os.environ) as down:
        assert down.wait(60) == 0
    assert world.left() == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda one: one.name)
def test_who_leaves_a_machine_that_is_ready_is_told_that_it_costs(world, number):
    """Nobody can log into it, so that `up` waits; and then `down` does, for the deletion."""
    with taetpu(*UP) as up:
        before = said_until(up, "waiting until it answers")
        up.send_signal(number)
        _, said = up.communicate(timeout=60)
    assert up.returncode == 128 + number, before + said
    hint = "the same command goes on with it, `taetpu tpu down mine` removes it"
    assert re.fullmatch(rf"(.*\n)*mine is there in us-east5-b and costs \$\d+\.\d\d an hour: {re.escape(hint)}\n", said)
    assert "Traceback" not in said
    assert "interrupted" not in said
    assert world.left() != []
    world.polls = 10**6
    with taetpu("tpu", "down", "mine", "--yes") as down:
        before = said_until(down, "delet")
        while not any(".delete" in call.name for call in world.changes()):
            assert down.poll() is None
        down.send_signal(number)
        _, said = down.communicate(timeout=60)
    assert down.returncode == 128 + number, before + said
    there = "mine may still be there, in us-east5-b, and cost money: the same command goes on"
    assert said.splitlines()[-1] == f"{there}, `taetpu tpu list` shows what is there"
    assert "Traceback" not in said


@pytest.mark.slow
def test_who_leaves_a_study_while_its_machine_is_set_up_is_told_that_it_costs(fake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(STUDY)
    words = ("run", "s.yaml", "--on", "tpu", "--root", f"gs://{BUCKET}/r", "--type", "v6e-8", "--zone", "us-east5-b")
    with taetpu(*words, "--yes") as run:
        before = said_until(run, "waiting until it answers")
        run.send_signal(signal.SIGTERM)
        _, said = run.communicate(timeout=60)
    assert run.returncode == 143, before + said
    there = re.escape("the same command goes on with it, `taetpu tpu down tpu-me-small` removes it")
    line = rf"tpu-me-small is there in us-east5-b and costs \$\d+\.\d\d an hour: {there}"
    assert re.fullmatch(line, said.splitlines()[-1])
    assert "interrupted" not in said
    assert "Traceback" not in said


def said_until(process, words: str) -> str:
    said = ""
    while words not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    return said
