"""taetpu without gcloud and without the extra `[gcp]`: what needs neither works, the others say what to install."""

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
GCLOUD = [
    "tpu list", "tpu up --type v6e-8 --yes", "tpu status", "tpu ssh", "tpu sync", "tpu run ls", "tpu logs", "tpu stop",
    "tpu clean", "tpu cost", "tpu gc", "tpu down", "tpu zones --type v6e-8 --ask",
    "bucket create my-bucket --region us-east5 --yes", "bucket status my-bucket", "bucket delete my-bucket --yes",
    "image build --yes", "image list", "image delete x --yes", "dev mount s.yaml", "dev run s.yaml", "dev scrap s.yaml",
    "dev sync", "dev run-all s.yaml",
]  # fmt: skip
STORE = ["list --root gs://my-bucket/x", "status gs://my-bucket/x"]
EXPORT = "export kueue s.yaml --tpu v6e-8 --image x --root gs://my-bucket/x"
HERE = ["chips", "list", "plan s.yaml", "catalog", "tpu --help", "tpu zones --type v6e-8", EXPORT]


@pytest.mark.slow
def test_every_command_says_what_to_install_or_works(here, monkeypatch):
    monkeypatch.setenv("TAETPU_PROJECT", "my-project")
    monkeypatch.setenv("PATH", "")
    (here / "Dockerfile").write_text("FROM scratch\n")
    commands = json.dumps([words.split() for words in [*GCLOUD, *STORE, *HERE]])
    done = subprocess.run([sys.executable, "-c", EACH, commands], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert {words: told[words] for words in HERE if told[words][0]} == {}
    for words in [*GCLOUD, *STORE]:
        code, said = told[words]
        remedy = "https://cloud.google.com/sdk/docs/install" if words in GCLOUD else "pip install 'taetpu[gcp]'"
        assert (code, said.splitlines()[-1]) == (2, f"  remedy: {remedy}"), (words, said)
