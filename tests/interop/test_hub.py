"""Models of the hub, from a server on this machine."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import huggingface_hub
import pytest
from tests.interop.cases import VOCAB, theirs
from tests.suites import first_by_default

from taetpu.core.errors import UserError
from taetpu.interop.hub import download_model
from taetpu.interop.huggingface import import_folder

COMMIT = "a" * 40


class Hub(BaseHTTPRequestHandler):
    """The answers to requests for lists of files and for files. `server.models` has files by model and name."""

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def log_message(self, *_):
        pass

    def answer(self, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requested.append(path)
        parts = path.removeprefix("/api/models/").strip("/").split("/")
        name = "/".join(parts[:2])
        if name == "their/gated":
            self.send(b"", 403, {"X-Error-Code": "GatedRepo"})
        elif name not in self.server.models:
            self.send(b"", 404, {"X-Error-Code": "RepoNotFound"})
        elif len(parts) > 3 and parts[3] not in ("main", "step3000", COMMIT):
            self.send(b"", 404, {"X-Error-Code": "RevisionNotFound"})
        else:
            files = self.server.models[name]
            if not path.startswith("/api/"):
                content = files["/".join(parts[4:])]
                about = {"ETag": f'"{len(content)}"', "X-Repo-Commit": COMMIT}
                self.send(content, 200, about, body)
                return
            listed = [
                {"type": "file", "path": file, "size": len(data), "oid": str(len(data))} for file, data in files.items()
            ]
            found = listed if parts[2:3] == ["tree"] else {"id": name, "sha": COMMIT, "siblings": []}
            self.send(json.dumps(found).encode(), 200, {"Content-Type": "application/json"})

    def send(self, content: bytes, status: int, headers: dict, body: bool = True) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(content)


@pytest.fixture
def impatient(monkeypatch):
    """Requests that fail are repeated without a pause."""
    monkeypatch.setattr(huggingface_hub.utils._http.time, "sleep", lambda _: None)


@pytest.fixture
def hub(tmp_path, monkeypatch, impatient):
    """A hub with `their/model`, `their/shards` and `their/pickle`; the value is the list of requested paths."""
    model = theirs("mistral")
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "shards", max_shard_size="8KB")
    folders = {
        name: {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("one", "shards")
    }
    assert len(folders["shards"]) > 3
    folders["one"]["generation_config.json"] = json.dumps({"eos_token_id": [3, 4]}).encode()
    unused = {"pytorch_model.bin": b"pickle", "consolidated.safetensors": b"other", "README.md": b"#"}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.requested = []
    server.models = {
        "their/model": {**folders["one"], **unused},
        "their/shards": {**folders["shards"], **unused},
        "their/pickle": {"config.json": folders["one"]["config.json"], "pytorch_model.bin": b"pickle"},
        "their/data": {"README.md": b"#"},
    }
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    place = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", place)
    files = f"{place}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    yield server.requested
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("name", ["their/model", "their/shards"])
def test_only_the_files_of_a_model_are_downloaded(hub, name):
    folder = download_model(name, "step3000")
    made = import_folder(folder)
    assert (made.family.model_type, made.vocab_size) == ("mistral", VOCAB)
    assert made.special_tokens == ({"eos_token_id": [3, 4]} if name == "their/model" else {})
    assert any("/tree/step3000" in path for path in hub)
    files = {path.rpartition("/")[2] for path in hub if "/resolve/" in path}
    assert files == {file.name for file in folder.iterdir()}
    assert "config.json" in files
    assert not files & {"pytorch_model.bin", "consolidated.safetensors", "README.md"}


REFUSED = [
    ("their/other", None, r"'their/other' is neither .*\n  remedy: Correct the name"),
    ("their/model", "step1", r"no revision 'step1'\n  where:  their/model\n  remedy: Use .*branch, tag"),
    ("their/gated", None, r"restricted\n  where:  their/gated\n  remedy: Accept its terms"),
    ("their/pickle", "main", r"in pytorch_model.bin, a pickle, .*\n  where:  their/pickle@main\n  remedy: Convert it"),
    ("their/data", None, r"no config.json\n  where:  their/data\n  remedy: Use .* transformers"),
]


@pytest.mark.parametrize(("name", "revision", "text"), first_by_default(REFUSED))
def test_models_of_the_hub_that_are_refused(hub, name, revision, text):
    with pytest.raises(UserError, match=text):
        download_model(name, revision)
    assert not any("/resolve/" in path for path in hub)


def test_without_a_network(monkeypatch, tmp_path, impatient):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    text = r"the hub cannot be reached: .*\n  where:  their/model\n  remedy: Check the network, and HF_HUB_OFFLINE"
    with pytest.raises(UserError, match=text):
        download_model("their/model")


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    text = r"(?s)'their/model'.* huggingface_hub.* pip install 'taetpu\[hub"
    with pytest.raises(UserError, match=text):
        download_model("their/model")
