"""The checkpoints from which the training of a pack resumes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taetpu.store.backend import Store, move_to_damaged
from taetpu.store.digests import seal, unseal
from taetpu.store.errors import NotStored

COMPLETE = "complete"
ORBAX = "_CHECKPOINT_METADATA"
"""A file that Orbax writes into the folder of a complete checkpoint."""
KEPT = 2
"""Number of checkpoints that are kept. If the last checkpoint is damaged, training resumes from the previous one."""


@dataclass(frozen=True)
class PackFolder:
    """The folder `<study>/packs/<id>/`, which contains one folder per checkpoint.

    Several processes may share the folder. Each process writes and reads its own part of a checkpoint. The primary
    process does everything else.
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
        """The path or address of the folder, for display."""
        return self.store.where(self.key)

    def folder(self) -> Path:
        """Create and return the pack's local folder. It contains one folder per checkpoint, named after the step."""
        return self.store.folder(self.key)

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, increasing. Incomplete checkpoints and empty folders are included."""
        key = f"{self.key}/"
        names = {key_of_file.removeprefix(key).partition("/")[0] for key_of_file in self.store.list(self.key)}
        names |= {path.name for path in self.folder().iterdir() if path.is_dir()}
        return sorted(int(name) for name in names if name.isdecimal())

    def is_of_orbax(self, step: int) -> bool:
        """Return whether Orbax wrote a checkpoint, as in earlier versions of taetpu."""
        return self.store.exists(f"{self.key}/{step}/{ORBAX}")

    def part(self, step: int, process: int) -> Path:
        """Create and return a local folder for one process's part of a checkpoint."""
        return self.store.folder(f"{self.key}/{step}/process-{process}")

    def save_part(self, step: int, process: int) -> None:
        """Store the part that was written to `part`."""
        self.store.save_folder(f"{self.key}/{step}/process-{process}")

    def fetch_part(self, step: int, process: int) -> Path | None:
        """Return the local folder with one process's part of a checkpoint; None if the part was never stored.

        Raises:
            Damaged: if a stored file is missing or damaged.
        """
        return self.part(step, process) if self.store.fetch_folder(f"{self.key}/{step}/process-{process}") else None

    def complete(self, step: int, processes: int, about: Mapping[str, Any]) -> None:
        """Commit a checkpoint whose parts are all stored. Of the older checkpoints, keep only the newest.

        Args:
            step: the step of the checkpoint.
            processes: the number of processes that wrote the checkpoint.
            about: values to store with the checkpoint.
        """
        self.store.write(f"{self.key}/{step}/{COMPLETE}", seal({"processes": processes, "about": about}), replace=True)
        for old in [known for known in self.steps() if known < step][: 1 - KEPT]:
            self.delete(old)

    def is_complete(self, step: int) -> bool:
        """Return whether a checkpoint was committed."""
        return self.store.exists(f"{self.key}/{step}/{COMPLETE}")

    def read_complete(self, step: int) -> dict[str, Any] | None:
        """Return the `processes` and `about` values that `complete` stored; None if the checkpoint is not committed.

        Raises:
            Damaged: if the stored document is damaged.
        """
        key = f"{self.key}/{step}/{COMPLETE}"
        return unseal(self.store.read(key), self.store.where(key)) if self.store.exists(key) else None

    def write_mark(self, name: str) -> None:
        """Write an empty marker file. Other processes that find it know that they share this folder."""
        self.store.write(f"{self.key}/mark-{name}", b"")

    def has_mark(self, name: str) -> bool:
        """Return whether a process that shares this folder has written the marker file `name`."""
        try:
            self.store.read(f"{self.key}/mark-{name}")
        except NotStored:
            return False
        return True

    def delete_mark(self, name: str) -> None:
        """Delete the marker file `name`."""
        self.store.delete(f"{self.key}/mark-{name}")

    def delete(self, step: int) -> None:
        """Delete a checkpoint."""
        self.store.delete(f"{self.key}/{step}")

    def move_to_damaged(self, step: int) -> str:
        """Move a damaged checkpoint to the study's folder `damaged`, and return its new path or address."""
        return move_to_damaged(self.store, self.study, f"{self.key}/{step}")
