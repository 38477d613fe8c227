"""Runs whose source says that they have not ended, which is reported once for all of them."""

import warnings
from pathlib import Path

from taetpu.core.errors import DataWarning
from taetpu.programs.folders.tree import printable

MAX_SHOWN = 3


class UnfinishedRuns:
    """Collects runs that have not finished."""

    def __init__(self) -> None:
        self._runs: list[tuple[Path, str]] = []

    def add(self, run: Path, state: str) -> None:
        """Add a run, with what its source says about its state."""
        self._runs.append((run, state))

    def warn(self) -> None:
        """Warn about the runs that were added, if any."""
        if self._runs:
            shown = ", ".join(f"{printable(str(run))} ({state})" for run, state in self._runs[:MAX_SHOWN])
            more = f" and {len(self._runs) - MAX_SHOWN} more" if len(self._runs) > MAX_SHOWN else ""
            warnings.warn(
                f"some runs have not finished, and their last reported values count: {shown}{more}",
                DataWarning,
                stacklevel=2,
            )
