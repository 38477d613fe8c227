"""`taetpu status --watch`: the studies at a place, shown until all is done."""

import time

from rich.console import Console, Group
from rich.live import Live

from taetpu.cli.status_model import Watched
from taetpu.cli.status_screen import screen

HINT = 2
"""Lines below the studies: how to end this."""


def watch(place: str, every: float, console: Console | None = None) -> None:
    """Show what is stored at `place`, every so many seconds, until everything is done. Ctrl-C ends it quietly.

    A terminal gets a screen that is drawn anew; anything else the whole as plain text whenever something is new.
    """
    console = console or Console()
    try:
        (_live if console.is_terminal else _printed)(Watched(place), every, console)
    except KeyboardInterrupt:
        return


def _printed(watched: Watched, every: float, console: Console) -> None:
    shown: list[str] = []
    while True:
        watched.look()
        lines = [line.plain for line in screen(list(watched.views.values()), signs=not console.options.ascii_only)]
        if lines != shown:
            print(*([""] if shown else []), *lines, sep="\n", flush=True)
            shown = lines
        if watched.ended:
            return
        time.sleep(every)


def _live(watched: Watched, every: float, console: Console) -> None:
    signs = not console.options.ascii_only
    with Live(console=console, auto_refresh=False) as live:
        while True:
            watched.look()
            views = list(watched.views.values())
            if watched.ended:  # what stays on the terminal may be longer than it
                live.update(Group(*screen(views, signs=signs)))
                return
            hint = ["", f"[dim]every {every:g} s; Ctrl-C ends this and nothing else[/]"]
            live.update(Group(*screen(views, console.height - HINT - 1, signs), *hint), refresh=True)
            time.sleep(every)
