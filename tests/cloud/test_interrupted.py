"""`up` and `down` cut short at any moment, and given twice at once: nothing is lost, nothing is made twice."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.cloud.reconciling import EACH, NAME, NEXT, ZONE, cloud

from taetpu.cloud.fakes.world import Fault
from taetpu.cloud.reconcile import remains
from taetpu.core.errors import UserError

HOLD = """
import sys
from taetpu.cloud.state import Records
with Records("fake-project").held(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=EACH, ids=lambda kind: kind.name)
def place(request, tmp_path):
    """By REST alone: Ctrl-C within a call of gRPC leaves a lock of its library taken, for whichever thread of this
    process collects the channel as garbage."""
    with cloud(request.param, tmp_path, grpc=False) as made:
        yield made
    assert made.world.twice == []


def test_ctrl_c_at_any_call_of_up_leaves_what_the_next_command_finds(place):
    number, told = 0, 0
    while True:
        number += 1
        with place.world.pressing(len(place.world.calls) + number):
            try:
                place.up()
            except KeyboardInterrupt:
                there = place.world.alive()
                assert {zone for _, zone in there} <= {*place.record.zones}, number
                hint = f"the same command goes on with it, `taetpu tpu down {NAME}` removes it"
                said = remains(place.cloud, NAME).endswith(hint)
                assert said == bool(place.record.zones)
                told += said
            else:
                break
        if number % 2:  # the next command may be either
            assert place.up().zone == ZONE
        place.down()
        assert (place.world.left(), place.hosts.up, place.record.zones) == ([], [], ()), number
    assert number > 8
    assert told > 4


def test_ctrl_c_at_any_call_of_down_leaves_what_the_next_one_removes(place):
    number = 0
    while True:
        place.up()
        number += 1
        with place.world.pressing(len(place.world.calls) + number):
            try:
                place.down()
            except KeyboardInterrupt:
                assert {zone for _, zone in place.world.alive()} <= {*place.record.zones}, number
            else:
                break
        place.down()
        assert (place.world.left(), place.hosts.up, place.record.zones) == ([], [], ()), number
    assert number > 4


def test_killed_before_anything_was_written_of_what_was_made(place):
    """The record says where something was asked for; that it was made, nobody wrote down."""
    place.world.faults.append(Fault(place.kind.create, None, moment="after"))
    place.world.on[place.kind.create] = lambda: os.kill(os.getpid(), signal.SIGINT)
    with place.world.pressing(0), pytest.raises(KeyboardInterrupt):
        place.up()
    place.world.faults.clear()
    assert place.record.zones == (ZONE,)
    machine = place.up(NEXT)
    assert (machine.zone, place.record.zones) == (ZONE, (ZONE,))
    place.down()
    assert place.world.left() == []


def test_without_any_record_what_a_killed_command_made_is_found_by_its_labels(place, tmp_path):
    place.world.on[place.kind.create] = lambda: os.kill(os.getpid(), signal.SIGINT)
    with place.world.pressing(0), pytest.raises(KeyboardInterrupt):
        place.up()
    for file in tmp_path.rglob("*.json"):
        file.unlink()
    assert place.up(NEXT).zone == ZONE
    place.down()
    assert place.world.left() == []


def test_of_two_at_once_one_is_refused_and_told_which_process_is_at_it(place):
    environment = {**os.environ, "XDG_STATE_HOME": str(place.cloud.records.folder.parents[1])}
    command = [sys.executable, "-c", HOLD, NAME]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        for refused in (place.up, place.down):
            with pytest.raises(UserError) as told:
                refused()
            assert told.value.problem == f"another command (process {other.pid}) is changing the TPU '{NAME}'"
            assert told.value.remedy == "wait for it, or stop it and try again"
        assert place.world.calls == []
        assert place.up(name="other").name == "other", "which is another one"
        other.kill()
        other.wait()
    assert place.up().name == NAME, "a killed process holds nothing"


def test_two_at_once_make_one_machine(place):
    place.world.polls = 20

    def one(_):
        try:
            return place.up().zone
        except UserError as error:
            return error.problem.partition(" (")[0]

    with ThreadPoolExecutor(2) as threads:
        results = sorted(threads.map(one, range(2)))
    assert results == ["another command", ZONE]
    assert place.world.alive() == [(NAME, ZONE)]
