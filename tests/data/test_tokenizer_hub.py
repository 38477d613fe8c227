"""Tokenizers of the hub, read by the hub's own client from a server on this machine (`HF_ENDPOINT`)."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.interop.test_hub import COMMIT, Hub
from tests.tokenizer_files import train_bpe

PAGE = (Path(__file__).parents[2] / "docs" / "tokenizers.md").read_text()
TEXT = "To be, or not to be.\n" * 9
FILE = train_bpe(TEXT).to_str().encode()
PROGRAM = """\
import json, sys
from pathlib import Path
from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError

for settings in json.loads(sys.argv[1]):
    try:
        tokenizer = build_component("tokenizer", {"kind": "hub", **settings}).prepare("To be", Path())
        answer = {"ids": tokenizer.encode("To be").tolist(), **tokenizer.origin}
    except UserError as error:
        answer = {"problem": error.problem, "path": error.path, "remedy": error.remedy}
    print(json.dumps(answer))
"""


class Models(Hub):
    """A hub that also has a model for which the client needs a token."""

    def answer(self, body: bool) -> None:
        path = self.path.removeprefix("/api/models").removeprefix("/")
        if path.startswith("their/private"):
            self.send(b"", 401, {"X-Error-Message": "Invalid username or password."})
        elif "tokenizer.json" in path and path.startswith("their/pieces"):
            self.send(b"", 404, {"X-Error-Code": "EntryNotFound"})
        else:
            super().answer(body)


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """Return a function that reads tokenizers in another process, with one cache, and returns the answers."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Models)
    server.requested = []
    other = {"config.json": b"{}", "model.safetensors": b"", "tokenization_custom.py": b"raise SystemExit"}
    server.models = {
        "their/model": {"tokenizer.json": FILE, **other},
        "their/damaged": {"tokenizer.json": FILE[:200]},
        "their/pieces": {"tokenizer.model": b"\n"},
    }
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    home = tmp_path_factory.mktemp("hub")

    def answers(*cases, **environment):
        address = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(home), "HF_TOKEN": ""}
        command = [sys.executable, "-W", "error", "-c", PROGRAM, json.dumps(cases)]
        place = {**os.environ, **address, **environment}
        done = subprocess.run(command, env=place, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    answers.requested = server.requested
    yield answers
    server.shutdown()
    thread.join()
    server.server_close()


def test_only_the_tokenizer_is_downloaded_and_the_commit_is_known(ask):
    ((name, revision),) = re.findall(r"{kind: hub, name: (\S+), revision: (\S+)}", PAGE)
    main, tag = ask({"name": name, "revision": revision}, {"name": "their/model", "revision": "step3000"})
    assert main == tag
    assert (main["commit"], main["sha256"]) == (COMMIT, hashlib.sha256(FILE).hexdigest())
    assert main["ids"] == train_bpe(TEXT).encode("To be").ids
    assert {path.rpartition("/")[2] for path in ask.requested if "/resolve/" in path} == {"tokenizer.json"}
    again, missing = ask({"name": "their/model"}, {"name": "their/other"}, HF_HUB_OFFLINE="1")
    assert again == main
    assert "HF_HUB_OFFLINE" in missing["remedy"]
    assert "https://huggingface.co/their/other/resolve/main/tokenizer.json" in missing["remedy"]
    assert "{kind: file, path: tokenizer.json}" in missing["remedy"]


def test_models_that_are_refused(ask):
    names = ("their/absent", "their/gated", "their/private", "their/pieces", "their/damaged", "not a name")
    absent, gated, private, pieces, damaged, invalid, revision = ask(
        *({"name": name} for name in names), {"name": "their/model", "revision": "step1"}
    )
    for answer, problem, remedy in (
        (absent, "their/absent", "Correct the name"),
        (gated, "their/gated", "hf auth login"),
        (private, "their/private", "hf auth login"),
        (pieces, "their/pieces", "kind: sentencepiece"),
        (damaged, "tokenizer.json", "again"),
        (invalid, "'not a name'", "Correct the name"),
        (revision, "'step1'", "branch"),
    ):
        assert problem in answer["problem"]
        assert remedy in answer["remedy"]
        assert answer["path"] == ["name"]
