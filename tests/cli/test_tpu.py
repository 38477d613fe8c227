"""`taetpu tpu zones | up | list | down | gc | cost`: plans, confirmations, gcloud lines, affected machines."""

import os
import re
import shutil
import subprocess
import time

import pytest
from tests.cli.commands import commands
from tests.cli.terminal import CTRL_C, on_terminal
from tests.fake_google.cloud import FakeGoogle
from tests.fake_google.compute import INSTANCES

UP = ["tpu", "up", "lab", "--type", "v6e-8", "--zone", "us-east5-b", "--spot"]
V5E = ["tpu", "up", "lab", "--type", "v5e-8", "--zone", "us-west4-a"]


def instance(cloud: FakeGoogle, name: str, owner: str = "me", hours: float = 1.0, zone: str = "us-east5-b") -> None:
    """Add an instance without a host to the fake cloud."""
    labels = {"taetpu-owner": owner, "taetpu-expires": str(int(time.time() + hours * 3600))} if owner else {}
    link = f"{cloud.server.address}/compute/v1/projects/{cloud.world.project}/zones/{zone}"
    cloud.world.table(INSTANCES)[zone, name] = {
        "name": name, "zone": link, "selfLink": f"{link}/instances/{name}", "status": "RUNNING", "labels": labels,
        "machineType": f"{link}/machineTypes/ct6e-standard-8t", "networkInterfaces": [{"networkIP": "10.0.0.2"}],
        "scheduling": {"provisioningModel": "SPOT"},
    }  # fmt: skip


@pytest.fixture
def machines(shared_google: FakeGoogle):
    """Two machines of this user, one of them expired, one of another user, and one without an owner."""
    instance(shared_google, "mine")
    instance(shared_google, "old", hours=-1.0)
    instance(shared_google, "theirs", owner="you", hours=-1.0)
    instance(shared_google, "foreign", owner="")
    shared_google.world.calls.clear()
    yield shared_google
    shared_google.world.table(INSTANCES).clear()


def names(cloud: FakeGoogle) -> set[str]:
    return {name for _, name in cloud.world.table(INSTANCES)}


# --- help ------------------------------------------------------------------------------------------------------------


def each_command(group: dict, path: tuple[str, ...] = ()):
    for name, one in group.items():
        if hasattr(one, "commands"):
            yield (*path, name), one
            yield from each_command(one.commands, (*path, name))
        else:
            yield (*path, name), one


@pytest.mark.parametrize("group", ["tpu", "dev", "bucket", "image"])
def test_help_of_a_group_is_complete(taetpu, group):
    shown = taetpu(group, "--help").out
    assert "..." not in shown.partition("Commands:")[2], "a first line is cut off"
    for path, one in each_command(commands()):
        if path[0] == group:
            assert one.help, path
            assert all(param.help for param in one.params), path


def test_help_names_no_removed_features():
    gone = re.compile(r"fake.cloud|consent|docker engine|registry client|pytorch image|--backend|--stack|\.env\b", re.I)
    for path, one in each_command(commands()):
        texts = [one.help or "", *(getattr(param, "help", "") or "" for param in one.params)]
        assert not [text for text in texts if gone.search(text)], path


# --- zones -----------------------------------------------------------------------------------------------------------


def test_zones_are_listed_cheapest_first_without_network(taetpu, monkeypatch):
    monkeypatch.setenv("PATH", "")
    told = taetpu("tpu", "zones", "--type", "v6e-8", "--spot", "--json").json()
    rates = [row["usd_per_hour"] for row in told["zones"]]
    assert rates == sorted(rates)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", told["dated"])
    shown = taetpu("tpu", "zones", "--type", "v6e-8").out
    assert max(map(len, shown.splitlines())) <= 80
    assert told["dated"] in shown


def test_invalid_names_are_refused_with_the_nearest_valid_ones(taetpu, monkeypatch):
    monkeypatch.setenv("TAETPU_PROJECT", "my-project")
    for words, near in [
        (["tpu", "zones", "--type", "v6f-8"], "v6e"),
        (["tpu", "up", "--type", "v6e-9"], "v6e-8"),
        (["tpu", "up", "--type", "v6e-8", "--zone", "useast5b"], "us-east5-b"),
        (["tpu", "up", "--type", "v6e-8", "--api", "gcee"], "gce"),
        (["tpu", "up", "Lab", "--type", "v6e-8"], "lower-case"),
    ]:
        code, _, err = taetpu(*words)
        assert code == 2, err
        assert near in err.partition("remedy:")[2], err


# --- up --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_up_without_a_terminal_prints_the_plan_and_creates_nothing(taetpu, machines):
    code, out, err = taetpu(*UP)
    assert (code, out) == (2, "")
    for part in ("create lab", "v6e-8", "us-east5-b", "$10.80/h", "$43.20 in 4 h", "spot", "--yes"):
        assert part in err
    assert max(map(len, err.splitlines())) <= 80
    assert machines.world.changes() == []


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "code"), [("n\n", 1), (CTRL_C, 130)], ids=["no", "ctrl-c"])
def test_declining_and_ctrl_c_change_nothing(machines, tmp_path, answer, code):
    ended, shown = on_terminal(tmp_path, UP, answer)
    assert ended == code, shown
    assert "nothing was changed" in shown
    assert "Traceback" not in shown
    assert machines.world.changes() == []


@pytest.mark.slow
def test_machine_above_max_usd_is_refused(taetpu, machines):
    code, _, err = taetpu(*UP, "--max-usd", "10", "--yes")
    assert code == 2
    assert "$43.20" in err
    assert "--max-hours 0.9" in err
    assert machines.world.changes() == []


@pytest.mark.slow
@pytest.mark.parametrize("words", [UP, V5E], ids=["gce", "tpu-api"])
def test_pasted_lines_of_a_dry_run_create_and_delete_the_machine(process, google: FakeGoogle, words: list[str]):
    paste(process(*words, "--dry-run").out)
    assert google.left()
    assert process(*words).code == 0, "it is found, and no question is asked"
    assert [one["name"] for one in process("tpu", "list", "--json").json()] == ["lab"]
    created = [call for call in google.world.changes() if call.name.endswith((".create", ".insert"))]
    assert len(created) == 1
    paste(process("tpu", "down", "lab", "--dry-run").out)
    assert google.left() == []


def paste(lines: str) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "CLOUDSDK_CORE_PROJECT"}
    done = subprocess.run(["bash", "-e"], input=lines, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- list, cost, gc, down --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_all_machines_are_listed_with_owner_and_end(taetpu, machines):
    rows = {one["name"]: one for one in taetpu("tpu", "list", "--json").json()}
    assert set(rows) == {"mine", "old", "theirs", "foreign"}
    assert rows["theirs"]["labels"]["taetpu-owner"] == "you"
    shown = taetpu("tpu", "list").out
    assert max(map(len, shown.splitlines())) <= 80
    assert re.search(r"foreign .* unknown +unknown", shown)


@pytest.mark.slow
def test_cost_covers_own_machines_until_deletion(taetpu, machines):
    rows = {one["name"]: one for one in taetpu("tpu", "cost", "--json").json()}
    assert set(rows) == {"mine", "old"}
    assert rows["mine"]["usd_per_hour"] == pytest.approx(10.8)
    assert rows["mine"]["usd_at_most"] == pytest.approx(10.8, rel=0.01)
    assert rows["old"]["usd_at_most"] is None
    assert "mine" in taetpu("tpu", "cost").out


@pytest.mark.slow
def test_gc_deletes_only_own_expired_machines(taetpu, machines):
    code, out, _ = taetpu("tpu", "gc", "--dry-run")
    assert code == 0
    assert [line.split()[4] for line in out.splitlines()[1:]] == ["old"]
    code, _, err = taetpu("tpu", "gc")
    assert code == 2
    assert "--yes" in err
    assert machines.world.changes() == []
    assert taetpu("tpu", "gc", "--yes").code == 0
    assert names(machines) == {"mine", "theirs", "foreign"}


@pytest.mark.slow
def test_down_deletes_only_own_machines(taetpu, machines):
    for name, owner in (("theirs", "you"), ("foreign", "unknown owner")):
        code, _, err = taetpu("tpu", "down", name, "--yes")
        assert code != 0
        assert owner in err
    assert machines.world.changes() == []
    assert taetpu("tpu", "down", "mine").code == 2
    assert taetpu("tpu", "down", "mine", "--yes").code == 0
    assert names(machines) == {"old", "theirs", "foreign"}


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "code"), [("n\n", 1), (CTRL_C, 130)], ids=["no", "ctrl-c"])
def test_down_requires_confirmation(machines, tmp_path, answer, code):
    ended, shown = on_terminal(tmp_path, ["tpu", "down", "mine"], answer)
    assert ended == code, shown
    assert "delete mine" in shown
    assert machines.world.changes() == []


@pytest.mark.slow
def test_unknown_machine_is_refused_with_the_nearest_name(taetpu, machines):
    for words in (["tpu", "status", "mime"], ["tpu", "ssh", "--tpu", "mime", "ls"], ["tpu", "logs", "--tpu", "mime"]):
        code, _, err = taetpu(*words)
        assert code == 2
        assert "Did you mean 'mine'" in err


@pytest.mark.slow
def test_no_machine_is_created_without_rsync(taetpu, shared_google, monkeypatch, tmp_path):
    for name in ("gcloud", "ssh", "ssh-keygen"):
        (tmp_path / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, err = taetpu(*UP, "--yes")
    assert code == 2
    assert "error: rsync is not" in err
    assert "apt-get install rsync" in err
    assert names(shared_google) == set()


@pytest.mark.slow
def test_down_keeps_machines_of_others_with_the_same_name(taetpu, shared_google):
    instance(shared_google, "lab")
    instance(shared_google, "lab", owner="", zone="us-east1-d")
    code, out, _ = taetpu("tpu", "down", "lab", "--yes")
    assert code == 0, out
    assert list(shared_google.world.table(INSTANCES)) == [("us-east1-d", "lab")]
    code, _, err = taetpu("tpu", "down", "lab", "--yes")
    assert code == 2
    assert "lab in us-east1-d belongs to" in err
    shared_google.world.table(INSTANCES).clear()


@pytest.mark.slow
def test_zone_without_egress_is_skipped(taetpu, shared_google, monkeypatch):
    monkeypatch.setattr(shared_google.compute, "closed", {"europe-west4"})
    words = ["tpu", "up", "lab", "--type", "v6e-8", "--zone", "us-east5-b"]
    _, _, err = taetpu(*words, "--zone", "europe-west4-a")
    assert "Access in europe-west4" in err
    assert "skipped zones: europe-west4-a" in err
    code, _, err = taetpu(*words[:-1], "europe-west4-a")
    assert code == 2
    assert "not delete itself" in err


def test_missing_or_broken_study_file_is_named(taetpu, shared_google, tmp_path):
    for text, said in (("", "the file is empty"), ("a: [", "not valid YAML"), (None, "no such file")):
        file = tmp_path / "s.yaml"
        file.unlink(missing_ok=True)
        if text is not None:
            file.write_text(text)
        code, _, err = taetpu("run", str(file), "--on", "tpu", "--type", "v6e-8")
        assert code == 2
        assert said in err
        assert "Traceback" not in err


@pytest.mark.slow
def test_invalid_bucket_name_is_rejected(taetpu, shared_google):
    code, _, err = taetpu("bucket", "create", "gs://abc", "--dry-run")
    assert code == 2
    assert "invalid bucket name 'gs://abc'" in err
