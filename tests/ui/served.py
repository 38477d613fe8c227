"""The live page's server in a thread of the test."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from taetpu.ui.page_data import Root
from taetpu.ui.server import Server

TOKEN = "secret"


@contextmanager
def serving(root, port: int = 0) -> Iterator[int]:
    """A server at a port of 127.0.0.1; 0 is a free one."""
    config = uvicorn.Config(
        Server(Root(str(root)), TOKEN).app(), port=port, log_level="error", timeout_graceful_shutdown=1
    )
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run)
    thread.start()
    try:
        while not running.started:
            assert thread.is_alive()
        yield running.servers[0].sockets[0].getsockname()[1]
    finally:
        running.should_exit = True
        thread.join(10)
