"""The resume state of one pack: a folder for each of the last checkpoints, by step."""

from dataclasses import dataclass
from pathlib import Path

from taetpu.store.backend import Store
from taetpu.store.damaged import set_aside

KEPT = 2
"""Checkpoints of a pack that are kept, so that a damaged one costs no more than the steps since the one before."""


@dataclass(frozen=True)
class PackFolder:
    """At `<study>/packs/<id>/`.

    Of several processes, the primary one alone calls anything here but `folder`.
    """

    store: Store
    study: str
    id: str

    @property
    def key(self) -> str:
        """The key of the folder."""
        return f"{self.study}/packs/{self.id}"

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
        return self.folder() / str(step) if self.store.fetch(f"{self.key}/{step}") else None

    def keep(self, step: int) -> None:
        """Store the checkpoint that was written to `folder`, and delete all older ones but the last."""
        self.store.keep(f"{self.key}/{step}")
        for old in [known for known in self.steps() if known < step][: 1 - KEPT]:
            self.delete(old)

    def delete(self, step: int) -> None:
        """Delete a checkpoint."""
        self.store.delete(f"{self.key}/{step}")

    def set_aside(self, step: int) -> str:
        """Move a damaged checkpoint to the study's folder `damaged`; where it can be opened there."""
        return set_aside(self.store, self.study, f"{self.key}/{step}")
