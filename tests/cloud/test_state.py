"""What is remembered of a stack: whole or not at all, held by one command at a time, and what it has cost."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from taetpu.cloud.state import Record, Records, Refusal, Used, folder
from taetpu.core.errors import UserError

IDENTITY = {"type": "v6e-8", "disk_gb": 200, "external_ip": False}
HOUR = 3600.0


@pytest.fixture
def records(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return Records("p")


def test_it_lies_where_the_xdg_rules_put_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert folder() == tmp_path / "taetpu"
    monkeypatch.setenv("XDG_STATE_HOME", "")
    monkeypatch.setenv("HOME", "/home/ada")
    assert str(folder()) == "/home/ada/.local/state/taetpu"


def test_what_is_written_is_read_again(records):
    refusals = (Refusal("a-b1-c", "v6e-8", "spot", 1.5, "Stockout"),)
    record = Record(
        "p", "lab", IDENTITY, ("a", "b"), 10.0, 20.0, 1.25, 3.0, refusals, ("job",), Used("s", 1.0, 2.5, 3, 1, "x", 4.5)
    )
    records.write(record)
    assert records.read("lab") == record
    assert records.read("other") == Record("p", "other")
    records.write(Record("p", "another"))
    assert (records.stacks(), Records("q").stacks()) == (["another", "lab"], [])


def test_an_older_record_that_lacks_a_field_is_read(records):
    records.write(Record("p", "lab", IDENTITY, ("a",)))
    path = records.folder / "lab.json"
    data = json.loads(path.read_text())
    del data["until"], data["jobs"], data["used"]
    path.write_text(json.dumps(data))
    assert records.read("lab") == Record("p", "lab", IDENTITY, ("a",))


WHOLE = asdict(Record("p", "lab", IDENTITY, ("a",)))


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '"lab"', "\x00\x01", '{"project": "p", "stack": "lab", "zones": "us-east5-b"}',
     json.dumps(WHOLE | {"since": "yesterday"}), json.dumps(WHOLE | {"refusals": [{"zone": "a"}]}),
     json.dumps(WHOLE | {"zones": [1]}), json.dumps(WHOLE)[:-9]],
)  # fmt: skip
def test_a_damaged_one_is_told_with_its_file_and_what_to_do(records, text):
    records.write(Record("p", "lab"))
    path = records.folder / "lab.json"
    path.write_text(text)
    with pytest.raises(UserError) as told:
        records.read("lab")
    assert (told.value.problem, told.value.file) == ("this record of a TPU is damaged", path)
    assert told.value.remedy == (
        "delete it: `taetpu tpu list` finds machines by their labels, without it; the hours and dollars that its study "
        "has used are forgotten with it"
    )
    path.unlink()
    assert records.read("lab") == Record("p", "lab")


def test_bytes_that_are_no_text_are_damage_too(records):
    records.write(Record("p", "lab"))
    (records.folder / "lab.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(UserError, match="damaged"):
        records.read("lab")


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "taetpu").write_text("a file is in the way")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    records = Records("p")
    with pytest.raises(UserError, match="cannot write"):
        records.write(Record("p", "lab"))
    with pytest.raises(UserError, match="cannot write"), records.held("lab"):
        raise AssertionError("it was held")


def test_a_command_holds_a_stack_and_no_other(records):
    with records.held("lab"):
        with pytest.raises(UserError) as told, records.held("lab"):
            raise AssertionError("it was held twice")
        assert told.value.problem == f"another command (process {os.getpid()}) is changing the TPU 'lab'"
        with records.held("other"):
            pass
    with records.held("lab"):
        pass


def test_what_a_killed_process_held_is_free(records):
    script = "import os, sys; from taetpu.cloud.state import Records\nwith Records('p').held('lab'): os._exit(9)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 9
    assert (records.folder / "lab.lock").read_text().strip().isdecimal()
    with records.held("lab"):
        assert (records.folder / "lab.lock").read_text() == f"{os.getpid()}\n"


def test_zones_are_remembered_until_nothing_is_left_there():
    record = Record("p", "lab").asking("a", IDENTITY).asking("b", IDENTITY).asking("a", IDENTITY)
    assert record.zones == ("b", "a")
    assert record.gone("b", 0.0).zones == ("a",)
    assert record.gone("c", 0.0) == record
    refused = record.refused(Refusal("a", "v6e-8", "spot", 1.0, "Stockout"))
    assert (refused.zones, [r.zone for r in refused.refusals]) == (("b",), ["a"])


def test_the_last_refusal_of_the_same_counts():
    record = Record("p", "lab")
    first = Refusal("a", "v6e-8", "spot", 1.0, "Stockout")
    others = [replace(first, type="v6e-1"), replace(first, provisioning="on-demand"), replace(first, zone="b")]
    for refusal in [first, *others, replace(first, at=2.0, why="Quota")]:
        record = record.refused(refusal)
    assert record.refusals == (*others, replace(first, at=2.0, why="Quota"))


def test_cost_runs_from_when_it_was_ready_to_its_end():
    record = Record("p", "lab").asking("a", IDENTITY)
    assert record.cost(5 * HOUR) is None
    record = record.ready("a", IDENTITY, 2.0, 10 * HOUR, 14 * HOUR)
    assert record.cost(11.5 * HOUR) == 3.0
    assert record.cost(100 * HOUR) == 8.0, "it has deleted itself by then"
    assert record.cost(9 * HOUR) == 0.0, "the clock was set back"
    again = record.ready("a", IDENTITY, None, 12 * HOUR, 16 * HOUR)
    assert (again.since, again.usd_per_hour, again.until) == (10 * HOUR, 2.0, 16 * HOUR)
    assert replace(record, usd_per_hour=None).cost(11 * HOUR) is None


def test_what_earlier_machines_cost_is_added_up_once():
    record = Record("p", "lab").ready("a", IDENTITY, 2.0, 0.0, 4 * HOUR).gone("a", HOUR)
    assert (record.spent, record.since, record.zones) == (2.0, None, ())
    assert record.gone("a", 2 * HOUR).spent == 2.0
    record = record.asking("b", IDENTITY).gone("b", 3 * HOUR)
    assert record.spent == 2.0, "it was never ready"
    record = record.ready("b", IDENTITY, None, 3 * HOUR, None).gone("b", 9 * HOUR)
    assert record.spent == 2.0, "at no rate that is known"
    record = record.ready("b", IDENTITY, 1.0, 3 * HOUR, None).gone("a", 4 * HOUR)
    assert (record.spent, record.since) == (2.0, 3 * HOUR), "another zone's end is not its own"


def test_hours_of_lost_machines_count_from_when_the_study_began_to_their_end():
    record = replace(Record("p", "lab"), used=Used("s", since=HOUR)).ready("a", IDENTITY, 2.0, 0.0, 4 * HOUR)
    once = record.gone("a", 3 * HOUR).used
    assert record.used_at(3 * HOUR) == Used("s", HOUR, hours=2.0, usd=4.0), "it counts while it is there, too"
    assert once == Used("s", HOUR, hours=2.0, lost=1, usd=4.0), "it was there an hour before the study"
    late = record.gone("a", 100 * HOUR)
    assert late.used == Used("s", HOUR, hours=3.0, lost=1, usd=6.0), "it has deleted itself by then"
    assert late.gone("a", 101 * HOUR).used == late.used
    assert late.asking("b", IDENTITY).gone("b", 102 * HOUR).used == late.used, "it was never ready"
    again = late.ready("b", IDENTITY, 2.0, 200 * HOUR, None).gone("b", 201 * HOUR)
    assert again.used == Used("s", HOUR, hours=4.0, lost=2, usd=8.0)
    unpriced = late.ready("b", IDENTITY, None, 200 * HOUR, None).gone("b", 201 * HOUR).used
    assert unpriced == Used("s", HOUR, hours=4.0, lost=2, usd=None), "at no rate that is known"
