"""`python -m taetpu.cloud.fakes.tunnel INSTANCE`: what `gcloud compute start-iap-tunnel INSTANCE 22 --listen-on-stdin`
is on the real cloud. Joins stdin and stdout to the sshd of a machine of the fakes.
"""

import http.client
import json
import os
import socket
import sys
import threading
from urllib.parse import quote, urlsplit


def find(instance: str) -> tuple[str, int]:
    """Where the sshd of a machine listens, by the fake cloud's word.

    Raises:
        OSError: nobody answers, or there is no such machine.
    """
    server = urlsplit(os.environ["TAETPU_FAKE_CLOUD"]).netloc
    connection = http.client.HTTPConnection(server, timeout=10)
    connection.request("GET", f"/fake/hosts/{quote(instance, safe='')}")
    reply = connection.getresponse()
    told = json.loads(reply.read())
    if reply.status != 200:
        raise OSError(told["error"]["message"])
    return told["address"], told["port"]


def main() -> int:
    try:
        ends = socket.create_connection(find(sys.argv[1]), timeout=10)
    except OSError as error:
        sys.stderr.write(f"tunnel: {error}\n")
        return 1
    ends.settimeout(None)
    ends.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else each answer waits 40 ms for the next
    threading.Thread(target=_send, args=(ends,), daemon=True).start()
    while data := ends.recv(65536):
        os.write(1, data)
    return 0


def _send(ends: socket.socket) -> None:
    while data := os.read(0, 65536):
        ends.sendall(data)
    ends.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    sys.exit(main())
