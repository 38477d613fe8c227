"""Without the extra `[gcp]` or gcloud, commands that need it name the remedy, and others work."""

import json
import subprocess
import sys

import pytest
from tests.fake_google.cloud import FakeGoogle

EACH = """
import contextlib, io, json, sys
# As if they were not installed.
sys.modules.update(dict.fromkeys(["google.api_core", "google.auth", "google.cloud", "google.rpc", "requests"]))
from taetpu.cli.main import main
told = {}
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            main()
        except SystemExit as end:
            told[" ".join(words)] = [end.code or 0, said.getvalue()]
print(json.dumps(told))
"""
BUCKET = ["list --root gs://my-bucket/x", "status gs://my-bucket/x"]
HERE = ["chips", "list", "plan s.yaml", "catalog", "tpu --help", "tpu zones --type v6e-8"]
GCLOUD = [
    "tpu list", "tpu up --type v6e-8 --yes", "tpu up --type v5e-8 --yes", "tpu status", "tpu ssh ls", "tpu sync",
    "tpu run ls", "tpu logs", "tpu stop", "tpu clean", "tpu cost", "tpu gc", "tpu down --yes",
    "bucket create my-bucket --region us-east5 --yes", "bucket status my-bucket", "bucket delete my-bucket --yes",
    "image list", "image delete a/b/c:d --yes", "dev mount s.yaml", "dev run s.yaml", "dev scrap s.yaml", "dev sync",
    "dev run-all s.yaml",
]  # fmt: skip
WITH_GOOGLE = ["tpu up --type v6e-8 --zone us-east5-b --yes", "tpu list", "tpu run true", "tpu cost", "tpu down --yes"]


def each(*lines: str) -> dict[str, tuple[int, str]]:
    """Run commands in one process without Google's libraries. Return each exit code and stderr."""
    commands = json.dumps([line.split() for line in lines])
    done = subprocess.run([sys.executable, "-c", EACH, commands], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_only_buckets_require_googles_library(here):
    told = each(*BUCKET, *HERE)
    assert {line: told[line][0] for line in HERE} == dict.fromkeys(HERE, 0), told
    for line in BUCKET:
        code, said = told[line]
        assert code == 2, (line, said)
        assert "pip install 'taetpu[gcp]'" in said.splitlines()[-1], (line, said)


@pytest.mark.slow
def test_machines_work_without_googles_library(here, google: FakeGoogle, monkeypatch):
    monkeypatch.setenv("TAETPU_READY_MINUTES", "2")  # sshd starts slowly beside other tests
    told = each(*WITH_GOOGLE)
    assert {line: code for line, (code, _) in told.items()} == dict.fromkeys(WITH_GOOGLE, 0), told
    assert google.left() == []


@pytest.mark.slow
def test_missing_gcloud_is_reported_by_every_command(here, monkeypatch, tmp_path):
    monkeypatch.setenv("TAETPU_PROJECT", "my-project")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", str(tmp_path))
    for line, (code, said) in each(*GCLOUD).items():
        assert code == 2, (line, said)
        assert "gcloud is not" in said, (line, said)
        assert "https://cloud.google.com/sdk/docs/install" in said.splitlines()[-1], (line, said)
