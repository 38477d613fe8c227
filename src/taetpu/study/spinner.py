"""A bar for work that is mostly over at once: it appears where it is not."""

from threading import Timer
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

PATIENCE = 2.0  # seconds


class Waiting:
    """Call it with how much is done, and of how much. The bar appears after `PATIENCE`, on a terminal only."""

    def __init__(self, console: Console, what: str):
        self.bars = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=16), MofNCompleteColumn(),
            console=console, transient=True,
        )  # fmt: skip
        self.bar = self.bars.add_task(what, total=None)
        self.timer = Timer(PATIENCE, self.bars.start)
        self.timer.daemon = True

    def __enter__(self) -> "Waiting":
        if self.bars.console.is_terminal:
            self.timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self.timer.cancel()
        if self.timer.is_alive():  # it is starting the bar just now
            self.timer.join()
        if self.bars.live.is_started:  # it would say an empty line otherwise
            self.bars.stop()

    def __call__(self, done: int, of: int) -> None:
        self.bars.update(self.bar, completed=done, total=of)
