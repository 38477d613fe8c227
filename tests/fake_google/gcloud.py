"""The real gcloud, kept imported: a process that forks for each command, which saves most of a second for each.

Usage, by gcloud's own Python: `gcloud.py ROOT SOCKET`, where ROOT is the folder of its installation and SOCKET the name
of an abstract Unix socket. A client sends its standard streams with its words, environment and folder, and reads the
exit code. When a client ends, so does its command.
"""

import array
import contextlib
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading


def serve(root: str, name: str) -> None:
    sys.path[:0] = [f"{root}/lib", f"{root}/lib/third_party"]
    os.environ["CLOUDSDK_ROOT_DIR"] = root
    importlib.import_module("googlecloudsdk.gcloud_main")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\0" + name)
    listener.listen(64)
    learned, teach = os.pipe()
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([listener, learned, sys.stdin], [], [])
        if sys.stdin in ready:  # closed: who started this has ended
            return
        if learned in ready:
            for module in os.read(learned, 1 << 20).decode().split("\n"):
                with contextlib.suppress(Exception):
                    importlib.import_module(module)
        if listener in ready:
            client, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                run(client, teach)
            client.close()


def run(client: socket.socket, teach: int) -> None:
    """Run one command in this process, then exit."""
    request, streams = receive(client)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = ["gcloud", *request["words"]]
    threading.Thread(target=end_with, args=(client,), daemon=True).start()
    before, code = set(sys.modules), 1
    try:
        code = sys.modules["googlecloudsdk.gcloud_main"].main() or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        client.sendall(str(code).encode())
        if new := sorted(name for name in set(sys.modules) - before if name.startswith(("googlecloudsdk", "google"))):
            os.write(teach, ("\n".join(new) + "\n").encode())
        os._exit(0)


def receive(client: socket.socket) -> tuple[dict, list[int]]:
    streams = array.array("i")
    data, more, _, _ = client.recvmsg(1 << 20, socket.CMSG_SPACE(3 * streams.itemsize))
    for _, _, sent in more:
        streams.frombytes(sent[: len(sent) - len(sent) % streams.itemsize])
    while not data.endswith(b"\n"):
        part = client.recv(1 << 20)
        if not part:  # the client was killed before it had sent its request
            os._exit(137)
        data += part
    return json.loads(data), list(streams)


def end_with(client: socket.socket) -> None:
    """Exit when the client does."""
    with contextlib.suppress(OSError):
        client.recv(1)
    os._exit(137)


if __name__ == "__main__":
    serve(*sys.argv[1:])
