"""The metadata server of a virtual machine, with the entries that taetpu and Google's libraries read.

Paths, headers and `wait_for_change` are as in https://cloud.google.com/compute/docs/metadata/querying-metadata.
"""

import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

ROOT = "/computeMetadata/v1/"
FLAVOR = "Metadata-Flavor"
TOKEN = "fake-token"


class Metadata:
    """The server of one machine, in threads, from its making to `close`."""

    def __init__(self, instance: str, zone: str, project: str, attributes: Mapping[str, str]):
        self.entries = {
            "instance/name": instance,
            "instance/zone": f"projects/0/zones/{zone}",
            "instance/preempted": "FALSE",
            "instance/network-interfaces/0/ip": "127.0.0.1",
            "instance/service-accounts/default/email": "default",
            "instance/service-accounts/default/scopes": "https://www.googleapis.com/auth/cloud-platform",
            "instance/service-accounts/default/token": json.dumps(
                {"access_token": TOKEN, "expires_in": 3599, "token_type": "Bearer"}
            ),
            "project/project-id": project,
        } | {f"instance/attributes/{name}": text for name, text in attributes.items()}
        self.version, self.closed = 1, False
        self.changed = threading.Condition()
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def address(self) -> str:
        """As `GCE_METADATA_HOST` has it."""
        return f"127.0.0.1:{self.http.server_address[1]}"

    def put(self, path: str, text: str) -> None:
        """Change an entry; who waits for a change is answered."""
        with self.changed:
            self.entries[path] = text
            self.version += 1
            self.changed.notify_all()

    def read(self, path: str, query: Mapping[str, str]) -> tuple[str | None, int]:
        """An entry and the version of all; with `wait_for_change` not before something has changed."""
        with self.changed:
            if query.get("wait_for_change") == "true":
                seen = int(query.get("last_etag", self.version))
                seconds = float(query.get("timeout_sec", "600"))
                self.changed.wait_for(lambda: self.version != seen or self.closed, seconds)
            return self.entries.get(path), self.version

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        self.http.shutdown()
        self.http.server_close()


def _handler(metadata: Metadata) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            split = urlsplit(self.path)
            if split.path == "/":  # how Google's libraries ask whether this is a machine of theirs
                return self.reply(200, "computeMetadata/\n", 0)
            if self.headers.get(FLAVOR) != "Google":
                return self.reply(403, "Missing Metadata-Flavor:Google header.", 0)
            path = split.path.removeprefix(ROOT).rstrip("/")
            text, version = metadata.read(path, dict(parse_qsl(split.query)))
            return self.reply(404, "", version) if text is None else self.reply(200, text, version)

        def reply(self, status: int, text: str, version: int) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header(FLAVOR, "Google")
            self.send_header("ETag", str(version))
            kind = "application/json" if text.startswith("{") else "application/text"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(ConnectionError):  # who waited has been killed
                self.wfile.write(body)

    return Handler
