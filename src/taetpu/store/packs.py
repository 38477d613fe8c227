"""The resume state of one pack: a folder for each of the last checkpoints, by step."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taetpu.store.backend import Store, move_to_damaged
from taetpu.store.digests import seal, unseal
from taetpu.store.names import NotStored

COMPLETE = "complete"
KEPT = 2
"""Checkpoints of a pack that are kept, so that a damaged one costs no more than the steps since the one before."""


@dataclass(frozen=True)
class PackFolder:
    """At `<study>/packs/<id>/`.

    Several processes share it. Each writes and reads its own part of a checkpoint; the primary does everything else.
    """

    store: Store
    study: str
    id: str

    @property
    def key(self) -> str:
        """The key of the folder."""
        return f"{self.study}/packs/{self.id}"

    @property
    def where(self) -> str:
        """The folder as a person would open it."""
        return self.store.where(self.key)

    def folder(self) -> Path:
        """A local folder, created, in which each checkpoint has a folder named after its step."""
        return self.store.folder(self.key)

    def steps(self) -> list[int]:
        """The steps with any part of a checkpoint, increasing, among them folders that have lost all their files."""
        key = f"{self.key}/"
        names = {found.removeprefix(key).partition("/")[0] for found in self.store.list(self.key)}
        names |= {path.name for path in self.folder().iterdir() if path.is_dir()}
        return sorted(int(name) for name in names if name.isdecimal())

    def fetch(self, step: int) -> Path | None:
        """The local folder of a checkpoint; None where storing it never ended.

        Raises:
            Damaged: it was stored and is no longer whole.
        """
        return self.folder() / str(step) if self.store.fetch_folder(f"{self.key}/{step}") else None

    def save(self, step: int) -> None:
        """Store the checkpoint that was written to `folder`, and delete all older ones but the last."""
        self.store.save_folder(f"{self.key}/{step}")
        self._delete_older(step)

    def _delete_older(self, step: int) -> None:
        for old in [known for known in self.steps() if known < step][: 1 - KEPT]:
            self.delete(old)

    def part(self, step: int, process: int) -> Path:
        """A local folder, created, for what one of several processes writes of a checkpoint."""
        return self.store.folder(f"{self.key}/{step}/process-{process}")

    def save_part(self, step: int, process: int) -> None:
        """Store what was written to `part`."""
        self.store.save_folder(f"{self.key}/{step}/process-{process}")

    def fetch_part(self, step: int, process: int) -> Path | None:
        """The local folder of one process's part; None where it was never stored.

        Raises:
            Damaged: it was stored and is no longer whole.
        """
        return self.part(step, process) if self.store.fetch_folder(f"{self.key}/{step}/process-{process}") else None

    def complete(self, step: int, processes: int, about: Mapping[str, Any]) -> None:
        """Commit the checkpoint that several processes wrote, and delete all older ones but the last."""
        self.store.write(f"{self.key}/{step}/{COMPLETE}", seal({"processes": processes, "about": about}), replace=True)
        self._delete_older(step)

    def is_complete(self, step: int) -> bool:
        """Whether several processes wrote this checkpoint, and committed it."""
        return self.store.exists(f"{self.key}/{step}/{COMPLETE}")

    def read_complete(self, step: int) -> dict[str, Any] | None:
        """What `complete` was given, `processes` and `about`; None for the checkpoint of one process.

        Raises:
            Damaged: the document is not what was written.
        """
        key = f"{self.key}/{step}/{COMPLETE}"
        return unseal(self.store.read(key), self.store.where(key)) if self.store.exists(key) else None

    def write_mark(self, name: str) -> None:
        """Write an empty file by which other processes see that they share this folder."""
        self.store.write(f"{self.key}/mark-{name}", b"")

    def has_mark(self, name: str) -> bool:
        """Whether a process that shares this folder has written a mark."""
        try:
            self.store.read(f"{self.key}/mark-{name}")
        except NotStored:
            return False
        return True

    def delete_mark(self, name: str) -> None:
        """Delete a mark."""
        self.store.delete(f"{self.key}/mark-{name}")

    def delete(self, step: int) -> None:
        """Delete a checkpoint."""
        self.store.delete(f"{self.key}/{step}")

    def move_to_damaged(self, step: int) -> str:
        """Move a damaged checkpoint to the study's folder `damaged`; where it can be opened there."""
        return move_to_damaged(self.store, self.study, f"{self.key}/{step}")
