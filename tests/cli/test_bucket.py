"""`taetpu bucket`: told before it is done, and done only when it was agreed to."""

import json
import os
import subprocess
import sys

import pytest
from tests.clouds import TAKEN

from taetpu.cli.main import main
from taetpu.cloud.clients import Clients
from taetpu.cloud.fakes.server import Server
from taetpu.cloud.fakes.world import World
from taetpu.store.backend import open_store

CREATE = ("bucket", "create", "mine", "--region", "us-east5")


@pytest.fixture
def taetpu(bucket_server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path):
    """`taetpu(*arguments) -> (exit code, output, errors)`, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["taetpu", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def test_made_once_seen_and_deleted(taetpu, world: World):
    code, _, err = taetpu(*CREATE, "--yes")
    assert code == 0
    assert "access by IAM alone (uniform), never public" in err
    assert "empty it costs nothing; then $0.020 a GB and month" in " ".join(err.split())
    assert "made gs://mine; studies go there with --root gs://mine/studies" in err
    code, out, err = taetpu(*CREATE, "--json")
    assert (code, json.loads(out)["region"]) == (0, "us-east5")
    assert "is there already" in err

    Clients(world.project).storage.bucket("mine").blob("runs/s/study.yaml").upload_from_string(b"x" * 2000)
    code, out, _ = taetpu("bucket", "status", "mine")
    assert code == 0
    assert all(word in out for word in ("gs://mine", "us-east5", "me", "2.0 kB", "7 days", "label taetpu-owner=me"))

    code, _, err = taetpu("bucket", "delete", "mine", "--yes")
    assert code == 2
    assert "gs://mine is not empty: 1 objects, 2.0 kB" in err
    assert "--yes --force" in err
    code, _, err = taetpu("bucket", "delete", "mine", "--yes", "--force")
    assert code == 0
    assert "deleted 1 objects" in err
    assert world.left() == []


def test_a_bucket_that_a_study_is_at_work_in_stays(taetpu, world: World):
    taetpu(*CREATE, "--yes")
    root = "gs://mine/runs"
    with open_store(root).claim("s/lock"):
        for force in ([], ["--force"]):
            code, _, err = taetpu("bucket", "delete", "mine", "--yes", *force)
            told = " ".join(err.split())
            assert code == 2
            assert "at work in it, or killed within the last minute: gs://mine/runs/s/lock" in told
            assert f"`taetpu status {root}` shows what it does" in told
        code, _, err = taetpu("bucket", "delete", "mine", "--dry-run")
        assert (code, "a study is at work in it" in err) == (0, True)
        assert world.left() == ["storage.buckets: mine", "storage.objects: mine/runs/s/lock"]
    world.skew = -61
    Clients(world.project).storage.bucket("mine").blob("runs/s/lock").upload_from_string(b"{}")  # its holder died
    world.skew = 0
    code, _, err = taetpu("bucket", "delete", "mine", "--yes", "--force")
    assert code == 0, err
    taetpu(*CREATE, "--yes")
    Clients(world.project).storage.bucket("mine").blob("runs/s/lock").upload_from_string(b"{}")
    assert taetpu("bucket", "delete", "mine", "--yes", "--force", "--at-work")[0] == 0
    assert world.left() == []


def test_its_name_is_written_into_the_settings(taetpu, tmp_path):
    assert taetpu(*CREATE, "--write", "--dry-run")[0] == 0
    assert not (tmp_path / "taetpu.toml").exists()
    path = tmp_path / "taetpu.toml"
    code, _, err = taetpu(*CREATE, "--write", "--yes")  # made
    words = [f"bucket is set in {path}", f"region is set in {path}: us-east5"]
    assert (code, err.splitlines()[-2:]) == (0, words)
    code, _, err = taetpu(*CREATE, "--write", "--yes")  # and then found
    assert (code, err.splitlines()[-1]) == (0, words[0])
    assert path.read_text() == '[cloud]\nregion = "us-east5"\nbucket = "mine"\n'
    path.write_text('[cloud]\nregion = "us-west4"\n')
    taetpu(*CREATE, "--write", "--yes")
    assert path.read_text() == '[cloud]\nbucket = "mine"\nregion = "us-west4"\n', "who has named one keeps it"


def test_dry_runs_change_nothing(taetpu, world: World):
    code, _, err = taetpu(*CREATE, "--dry-run")
    assert code == 0
    assert "dry run: nothing was changed" in err
    assert world.changes() == []
    taetpu(*CREATE, "--yes")
    Clients(world.project).storage.bucket("mine").blob("a").upload_from_string(b"x")
    world.calls.clear()
    code, _, err = taetpu("bucket", "delete", "mine", "--dry-run", "--yes", "--force")
    assert code == 0
    assert "delete gs://mine with 1 objects, 1 B" in err
    assert world.changes() == []


def test_a_region_whose_price_is_not_known_is_told(taetpu):
    _, _, err = taetpu("bucket", "create", "mine", "--region", "asia-east9", "--dry-run")
    told = " ".join(err.split())
    assert "no rate is known for storage in asia-east9: https://cloud.google.com/storage/pricing" in told
    assert "$" not in told


def test_nobody_is_there_to_agree(taetpu, world: World):
    code, _, err = taetpu(*CREATE)
    assert code == 2
    assert "give --yes to do it" in err
    assert world.changes() == []


@pytest.mark.parametrize(("typed", "left"), [("mine", []), ("yes", ["storage.buckets: mine"])])
def test_its_name_has_to_be_typed(taetpu, world: World, typed: str, left: list[str]):
    taetpu(*CREATE, "--yes")
    keyboard, terminal = os.openpty()
    os.write(keyboard, f"{typed}\n".encode())
    command = [sys.executable, "-m", "taetpu", "bucket", "delete", "mine"]
    done = subprocess.run(command, stdin=terminal, capture_output=True, text=True, check=False)
    os.close(keyboard), os.close(terminal)
    assert done.returncode == bool(left), done.stderr
    assert ("nothing was changed" in done.stderr) == bool(left)
    assert "Type 'mine' to agree" in done.stderr
    assert world.left() == left


def test_what_is_not_ours_is_never_deleted(taetpu, world: World):
    Clients(world.project).storage.bucket("theirs").create(location="us")
    world.calls.clear()
    code, _, err = taetpu("bucket", "delete", "theirs", "--yes", "--force")
    assert code == 2
    assert "gs://theirs is not deleted: taetpu did not make it" in err
    code, _, err = taetpu("bucket", "create", TAKEN, "--region", "us-east5", "--yes")
    assert code == 2
    assert "somebody else's" in err
    assert world.changes() == []


def test_apart_from_the_machines(taetpu, monkeypatch):
    monkeypatch.setenv("TAETPU_ZONES", "us-central1-a")
    _, _, err = taetpu(*CREATE, "--dry-run")
    assert "warning: the bucket is in us-east5 and your zones are in us-central1" in err
    monkeypatch.setenv("TAETPU_ZONES", "us-east5-a")
    _, _, err = taetpu("bucket", "create", "mine", "--dry-run")
    assert "warning" not in err
    assert "gs://mine in us-east5" in err


def test_no_bucket(taetpu):
    code, _, err = taetpu("bucket", "status", "mine")
    assert code == 2
    assert "there is no bucket gs://mine" in err
    assert "Traceback" not in err
