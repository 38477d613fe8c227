"""A server on this machine that speaks the hub's HTTP for datasets, as its client asks it."""

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import huggingface_hub.constants
import huggingface_hub.utils
import pytest

from taetpu.data.remote import buckets, hub

COMMIT = "a" * 40
LARGE = 64
"""Bytes from which a file is stored outside git, so that its SHA-256 is known."""


@dataclass
class State:
    """What the server has, and what it was asked.

    Attributes:
        datasets: the files of each dataset, by name, or by name and revision (`name@revision`).
        commits: the commit of each revision.
        plain: files by the path of their address, for corpora outside the hub.
        refused: status and code of the answer for the names of datasets.
        cuts: after how many bytes the next answers for a file end early, by the file's name.
        wrong: files that have other bytes than the hub says, of the same number.
        gone: paths that are not there.
        pauses: seconds between the parts of an answer, by the file's name.
        requested: the paths that were asked for, with the range if there was one.
    """

    datasets: dict[str, dict[str, bytes]] = field(default_factory=dict)
    commits: dict[str, str] = field(default_factory=lambda: {"main": COMMIT})
    plain: dict[str, bytes] = field(default_factory=dict)
    refused: dict[str, tuple[int, str]] = field(default_factory=dict)
    cuts: dict[str, list[int]] = field(default_factory=dict)
    wrong: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    pauses: dict[str, float] = field(default_factory=dict)
    requested: list[tuple[str, str | None]] = field(default_factory=list)
    address: str = ""

    def files(self, *, asked: str = "/resolve/") -> list[str]:
        """Return the names of the files that were downloaded."""
        return [path.split("/", 6)[-1] for path, _ in self.requested if asked in path]


class Handler(BaseHTTPRequestHandler):
    server: Any

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def log_message(self, *_):
        pass

    def answer(self, body: bool) -> None:
        state: State = self.server.state
        path = unquote(urlsplit(self.path).path)
        if body:
            state.requested.append((path, self.headers.get("Range")))
        if path in state.gone:
            self.send(b"", 404, {}, body)
            return
        if path in state.plain:
            self.send_file(path.rpartition("/")[2], state.plain[path], {}, body)
            return
        api = path.startswith("/api/")
        owner, name, *rest = path.removeprefix("/api").removeprefix("/datasets/").split("/")
        name = f"{owner}/{name}"
        if name in state.refused:
            status, code = state.refused[name]
            self.send(b"", status, {"X-Error-Code": code} if code else {}, body)
            return
        revision, rest = split_revision(rest[1:], state.commits)
        commit = state.commits.get(revision, revision if revision in state.commits.values() else "")
        files = state.datasets.get(f"{name}@{commit}", state.datasets.get(name))
        if files is None:
            self.send(b"", 404, {"X-Error-Code": "RepoNotFound"}, body)
        elif not commit:
            self.send(b"", 404, {"X-Error-Code": "RevisionNotFound"}, body)
        elif not api:
            content = files["/".join(rest)]
            self.send_file(rest[-1], content, {"X-Repo-Commit": commit}, body)
        elif "/tree/" in path:
            folder = "/".join(rest)
            listed = [
                entry(file, content) for file, content in files.items() if not folder or file.startswith(f"{folder}/")
            ]
            if not listed:
                self.send(b"", 404, {"X-Error-Code": "EntryNotFound"}, body)
            else:
                self.send(json.dumps(listed).encode(), 200, {"Content-Type": "application/json"}, body)
        else:
            about = {"id": name, "sha": commit, "siblings": []}
            self.send(json.dumps(about).encode(), 200, {"Content-Type": "application/json"}, body)

    def send_file(self, name: str, content: bytes, about: dict[str, str], body: bool) -> None:
        state: State = self.server.state
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        if name in state.wrong:
            content = content[:-1] + bytes([content[-1] ^ 1])
        start, status = 0, 200
        if (asked := self.headers.get("Range")) and self.headers.get("If-Range", etag) == etag:
            start, status = int(asked.removeprefix("bytes=").rstrip("-")), 206
            about = {**about, "Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
            if start >= len(content):
                self.send(b"", 416, {"Content-Range": f"bytes */{len(content)}"}, body)
                return
        cut = state.cuts[name].pop(0) if body and state.cuts.get(name) else None
        self.send(content[start:], status, {**about, "ETag": etag, "Accept-Ranges": "bytes"}, body, cut)

    def send(self, content: bytes, status: int, headers: dict, body: bool, cut: int | None = None) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            pause = self.server.state.pauses.get(self.path.rpartition("/")[2])
            content = content if cut is None else content[:cut]
            step = len(content) + 1 if pause is None else 2**18
            with contextlib.suppress(ConnectionError):
                for start in range(0, len(content), step):
                    self.wfile.write(content[start : start + step])
                    time.sleep(pause or 0)
        if cut is not None:
            self.close_connection = True


def split_revision(parts: list[str], commits: dict[str, str]) -> tuple[str, list[str]]:
    """Return the revision at the start of a path, which may contain slashes, and the rest of the path."""
    for length in (3, 1):
        if (revision := "/".join(parts[:length])) in commits or revision in commits.values():
            return revision, parts[length:]
    return "/".join(parts[:1]) or "main", parts[1:]


def entry(file: str, content: bytes) -> dict[str, Any]:
    """Return what the hub's tree says about a file."""
    git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    about: dict[str, Any] = {"type": "file", "path": file, "size": len(content), "oid": git}
    if len(content) >= LARGE and not file.endswith(".md"):
        about["lfs"] = {"size": len(content), "oid": hashlib.sha256(content).hexdigest(), "pointerSize": 130}
    return about


@contextlib.contextmanager
def serving(monkeypatch: pytest.MonkeyPatch, folder: Any) -> Iterator[State]:
    """Direct the hub's client and the caches of this process to a server without datasets."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.state = State(address=f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    files = f"{server.state.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.state.address)
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder / "client"))
    monkeypatch.setattr(huggingface_hub.utils._http.time, "sleep", lambda _: None)
    monkeypatch.setenv("TAETPU_CACHE", str(folder / "cache"))
    forget()
    yield server.state
    forget()
    server.shutdown()
    thread.join()
    server.server_close()


def forget() -> None:
    """Forget what this process knows of datasets and buckets, as a new process does."""
    hub.list_files.cache_clear()
    buckets.list_objects.cache_clear()


def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the network away from the hub's client."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    template = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    forget()
