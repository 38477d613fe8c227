"""The other hosts of a slice: one that is idle by itself may be needed by a job on another. Each tells on its internal
address whether it is idle, and none goes for idleness before all are. Nothing known of one counts as not idle.
"""

from __future__ import annotations

import glob
import json
import os
import threading
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from .jobs import BASE

FILE = "neighbours.json"
"""In the home folder of who has set the slice up: `["10.0.0.2:40123", ...]`, this host among them."""
PORT = "port"
"""In the private folder: where this host tells of itself; the same after it has booted again."""


class Neighbours:
    """What is known of all hosts of the slice.

    Args:
        hosts: how many there are.
        own: whether this one is idle.
    """

    def __init__(self, hosts: int, homes: str, own: Callable[[], bool]):
        self.hosts, self.homes, self.own = hosts, homes, own

    def idle(self) -> bool:
        """Whether every host of the slice says that it is."""
        if self.hosts == 1:
            return True
        addresses = self._addresses()
        return len(addresses) == self.hosts and all(map(_says_idle, addresses))

    def serve(self, folder: str) -> None:
        """Tell the others, in a thread, and write down the port."""
        if self.hosts == 1:
            return
        path, own = os.path.join(folder, PORT), self.own

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                body = json.dumps({"idle": own()}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        try:
            with open(path) as file:
                server = ThreadingHTTPServer(("", int(file.read())), Handler)
        except (OSError, ValueError):
            server = ThreadingHTTPServer(("", 0), Handler)
        with open(f"{path}.new", "w") as file:
            file.write(str(server.server_address[1]))
        os.replace(f"{path}.new", path)
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def _addresses(self) -> list[str]:
        for path in glob.glob(os.path.join(self.homes, BASE, FILE)):
            try:
                with open(path) as file:
                    return json.load(file)
            except (OSError, ValueError):
                continue
        return []


def _says_idle(address: str) -> bool:
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{address}/", timeout=5) as reply:
            return json.loads(reply.read()).get("idle") is True
    except (OSError, ValueError):
        return False
