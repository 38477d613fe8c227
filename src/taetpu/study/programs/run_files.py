"""The files of a run of a program beside its record: its folder, its output and how each attempt ended.

They are in `<study>/programs/<arm>/<seed>-<id>/`: `folder`, which the program gets as `{folder}`; for attempt 1,
`1.log.gz` with its output and `1.json`, which says how it ended; and `folder-1`, the folder of an interrupted attempt.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taetpu.store.digests import seal, unseal
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder

PROGRAMS = "programs"


@dataclass(frozen=True)
class RunFiles:
    """The files of a run of a program.

    Attributes:
        folder: the study's folder.
        run: the run's record and metrics.
    """

    folder: StudyFolder
    run: RunFolder

    @property
    def key(self) -> str:
        """The key of the files."""
        return f"{self.folder.name}/{PROGRAMS}/{self.run.arm}/{self.run.seed}-{self.run.id}"

    def attempts(self) -> list[int]:
        """Return the numbers of the attempts that were started, in order."""
        names = (key.rpartition("/")[2] for key in self.folder.store.list(self.key, depth=1))
        return sorted(int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdecimal())

    def begin(self, resume: bool) -> int:
        """Record the start of an attempt, and return its number.

        Args:
            resume: whether the program goes on in the folder and with the metrics of an interrupted attempt. Otherwise,
                that folder is moved aside and the metrics are deleted.
        """
        earlier, store = self.attempts(), self.folder.store
        if earlier and not resume:
            if self.path.exists():
                aside = next(n for n in range(earlier[-1], earlier[-1] + 10_000) if not self._aside(n).exists())
                self.path.rename(self._aside(aside))
            store.delete(f"{self.run.key}/metrics")
        number = earlier[-1] + 1 if earlier else 1
        self.write(number, {"began": time.time()})
        self.path.mkdir(exist_ok=True)
        return number

    def write(self, number: int, data: dict[str, Any]) -> None:
        """Store what is known of an attempt."""
        self.folder.store.write(f"{self.key}/{number}.json", seal(data), replace=True)

    def read(self, number: int) -> dict[str, Any]:
        """Return what is known of an attempt."""
        key = f"{self.key}/{number}.json"
        return unseal(self.folder.store.read(key), self.folder.store.where(key))

    @property
    def place(self) -> Path:
        """The local folder that holds the files."""
        return self.folder.store.folder(self.key)

    @property
    def path(self) -> Path:
        """The program's folder."""
        return self.place / "folder"

    def output(self, number: int) -> Path:
        """Return the file with the output of an attempt."""
        return self.place / f"{number}.log.gz"

    def _aside(self, number: int) -> Path:
        return self.place / f"folder-{number}"
