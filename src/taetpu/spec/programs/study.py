"""A loaded study whose runs are the user's command."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taetpu.core.errors import UserError
from taetpu.core.identity import SCHEMA, identity
from taetpu.spec.document import format_brief
from taetpu.spec.loaded_study import LoadedStudy
from taetpu.spec.programs.command import Command
from taetpu.spec.programs.inputs import hashed_program
from taetpu.spec.programs.program_config import ProgramConfig
from taetpu.spec.programs.settings import Settings
from taetpu.spec.unresolved_arms import Stage
from taetpu.store.frozen_study import Role


@dataclass(frozen=True)
class ProgramArm:
    """An arm of a program: the baseline with changed settings.

    Attributes:
        overrides: the changed settings, by path.
        settings: all settings of the arm.
        idle: the overrides that equal the baseline's values.
        place: the arm's place in the study file.
    """

    name: str
    overrides: Settings
    settings: Settings
    idle: tuple[str, ...] = ()
    role: Role = field(default_factory=Role)
    stage: Stage = "written"
    place: tuple[str | int, ...] = ()

    def change(self, base: Mapping[str, Any]) -> str:
        """Return the arm's changes to the baseline on one line; empty for the baseline."""
        return ", ".join(
            f"{path}: {format_brief(base[path])} -> {format_brief(value)}"
            for path, value in self.overrides.items()
            if path not in self.idle
        )


@dataclass(frozen=True)
class ProgramRun:
    """A run of an arm with a seed.

    Attributes:
        id: the identity: a hash of the settings, the seed, the command and the content of the inputs.
        data: the digest of the command and the inputs.
    """

    arm: str
    seed: int
    id: str
    settings: Settings
    data: str
    program: Mapping[str, Any]

    @property
    def title(self) -> str:
        """The arm and the seed, for messages."""
        return f"{self.arm} on seed {self.seed}"

    def record(self, place: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of the run's `config.json`. `place` is recorded beside what the identity hashes."""
        config = {"program": dict(self.program), "settings": self.settings}
        about = {"schema": SCHEMA, "arm": self.arm, "seed": self.seed, "id": self.id, "config": config}
        return {**about, "data": self.data, "plugins": [], "place": dict(place)}


@dataclass(frozen=True, kw_only=True, repr=False)
class ProgramStudy(LoadedStudy[ProgramArm]):
    """A study whose runs are the user's command.

    Attributes:
        cwd: the working folder of the program.
        command: the command and its environment.
        base: the baseline's settings.
        inputs: the SHA-256 of each input by its path.
        data: the digest of the command and the inputs.
    """

    program: ProgramConfig
    cwd: Path
    command: Command
    base: Settings
    inputs: Mapping[str, str]
    data: str

    def __repr__(self) -> str:
        """Return the name, the number of arms and seeds, and the primary metric."""
        size = f"arms={len(self.arms)}, seeds={len(self.seeds)}"
        return f"ProgramStudy({self.name!r}, {size}, primary={self.measure.primary!r})"

    def runs(self) -> list[ProgramRun]:
        """Return the runs of all arms with all seeds, arm by arm."""
        return [self.run(arm, seed) for arm in self.arms for seed in self.seeds]

    def run(self, arm: ProgramArm, seed: int) -> ProgramRun:
        """Return the run of an arm with a seed."""
        program = hashed_program(self.program)
        number = identity({"program": program, "settings": arm.settings}, seed, self.data, [])
        return ProgramRun(arm.name, seed, number, arm.settings, self.data, program)

    def explain(self, arm: ProgramArm, error: UserError) -> UserError:
        """Return an error with the place of an arm in the study file."""
        return self.document.locate(error.within(*arm.place))
