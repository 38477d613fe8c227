"""taetpu without the extra `[gcp]`: what needs no cloud works, and what does says what to install."""

import json
import subprocess
import sys

import pytest

EACH = """
import contextlib, io, json, sys
# As if they were not installed; google.protobuf is another matter, which orbax needs.
sys.modules.update(dict.fromkeys(["google.api_core", "google.auth", "google.cloud", "google.rpc", "grpc", "requests"]))
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
CLOUD = [
    "tpu list", "tpu up --type v6e-8 --yes", "tpu up --type v6e-8 --dry-run", "tpu status", "tpu ssh", "tpu sync",
    "tpu run ls", "tpu logs", "tpu stop", "tpu clean", "tpu cost", "tpu gc", "tpu down", "tpu zones --type v6e-8",
    "bucket create my-bucket --region us-east5 --yes", "bucket status my-bucket", "bucket delete my-bucket --yes",
    "image build --region us-east5", "image push --region us-east5", "image list --region us-east5",
    "image delete --all --region us-east5", "dev mount s.yaml", "dev run s.yaml", "dev scrap s.yaml", "dev sync",
    "dev run-all s.yaml", "dev fake-cloud -- true", "list --root gs://my-bucket/x", "status gs://my-bucket/x",
]  # fmt: skip
HERE = ["chips", "list", "plan s.yaml", "catalog", "tpu --help", "doctor --init"]


@pytest.mark.slow
def test_every_command_says_what_to_install_or_works(here, monkeypatch):
    monkeypatch.setenv("TAETPU_PROJECT", "my-project")
    monkeypatch.delenv("TAETPU_FAKE_CLOUD", raising=False)
    commands = json.dumps([words.split() for words in [*CLOUD, *HERE]])
    done = subprocess.run([sys.executable, "-c", EACH, commands], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert {words: told[words][0] for words in HERE} == dict.fromkeys(HERE, 0)
    for words in CLOUD:
        code, said = told[words]
        assert (code, said.splitlines()[-1]) == (2, "  remedy: pip install 'taetpu[gcp]'"), (words, said)
        assert "this needs Google's libraries, and google" in said
