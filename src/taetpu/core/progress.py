"""Progress bars of work that takes seconds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int], None]
"""A function that receives how much is done, and of how much."""


@contextmanager
def show_progress(what: str) -> Iterator[Progress | None]:
    """Yield a function that shows how much is done on a terminal; None without a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
