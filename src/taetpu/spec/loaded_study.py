"""What loaded studies of models and of programs have in common."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from taetpu.spec.document import Document
from taetpu.spec.measure import Measure
from taetpu.spec.tuning import Tuning
from taetpu.store.frozen_study import PlannedContrast, PlannedGoal, StudyDesign

A = TypeVar("A", bound=Any)
"""The type of an arm."""


@dataclass(frozen=True, kw_only=True, repr=False)
class LoadedStudy(Generic[A]):
    """A study that was loaded from a file.

    Attributes:
        file: The study file; None for a study from a dictionary.
        arms: All arms. The baseline comes first.
        design: The designs of the arms (see `spec.designs.described`).
        tune: The tuning of the arms; None without tuning.
        trackers: The trackers by name (see `taetpu.trackers`).
        contrasts: The contrasts by name, with the arms that they compare (see `spec.contrasts.plan_contrasts`).
        goal: The goal (see `spec.goal.plan_goal`); None without one.
        across: The settings of `across`, by the name of what they change.
    """

    name: str
    file: Path | None
    arms: tuple[A, ...]
    seeds: tuple[int, ...]
    measure: Measure
    document: Document
    design: StudyDesign = field(default_factory=StudyDesign)
    tune: Tuning | None = None
    trackers: dict[str, Any] = field(default_factory=dict)
    contrasts: dict[str, PlannedContrast] = field(default_factory=dict)
    goal: PlannedGoal | None = None
    across: dict[str, list[str]] = field(default_factory=dict)

    def changed(self, **fields: Any) -> Self:
        """Return a copy of the study with the given fields replaced."""
        return replace(self, **fields)

    def against(self, arm: A) -> A:
        """Return the baseline that an arm is compared with. In a ladder, each scale has a separate baseline."""
        name = arm.role.get("against", self.arms[0].name)
        return next(other for other in self.arms if other.name == name)
