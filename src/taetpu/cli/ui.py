"""`taetpu ui`: the live page."""

from pathlib import Path
from typing import Annotated

import typer

from taetpu.cli.options import Root, integer


def ui(
    folder: Annotated[str | None, typer.Argument(metavar="DIR", help="A study's folder, or a root of many.")] = None,
    root: Root = None,
    port: Annotated[int, integer(help="Where to listen on 127.0.0.1; 0 takes a free one.")] = 8765,
) -> None:
    """The live page: studies in a browser, as they train.

    Shows progress, curves as they come and effects so far. Reads the store, and nothing else.

    Example: taetpu ui runs
    """
    import getpass
    import secrets
    import socket

    from taetpu.core.errors import UserError
    from taetpu.store.backend import default_root
    from taetpu.store.gcs_client import parse_address

    try:
        import uvicorn

        from taetpu.ui.pages import Root as Place
        from taetpu.ui.server import Server
    except ImportError as error:
        remedy = "pip install 'taetpu[ui]'"
        raise UserError(f"the live page needs {error.name}, which is not installed", remedy=remedy) from None
    place = folder or default_root(root)
    if folder and parse_address(folder) is None and not Path(folder).expanduser().is_dir():
        raise UserError("there is no such folder", file=place, remedy="`taetpu list --root DIR` shows what is there")
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        problem = f"cannot listen at port {port}: {getattr(error, 'strerror', None) or error}"
        raise UserError(problem, path=("port",), remedy="another one with --port, or --port 0 for any") from None
    port, token = listener.getsockname()[1], secrets.token_urlsafe(16)
    typer.echo(f"live page: http://127.0.0.1:{port}/?token={token}")
    typer.echo(f"over ssh:  ssh -L {port}:127.0.0.1:{port} {getpass.getuser()}@{socket.gethostname()}   Ctrl-C ends it")
    config = uvicorn.Config(Server(Place(str(place)), token).app(), log_level="warning", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])
