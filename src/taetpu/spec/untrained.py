"""Studies of initialisation: `train.steps: 0`, models that are evaluated before their first step."""

from typing import Any

from taetpu.core.errors import UserError
from taetpu.spec.goal import TIMED
from taetpu.spec.resolved_study import Arm
from taetpu.spec.study_spec import StudySpec

STORED = "train.start"
TRAINING_COSTS = ("flops", "memory", TIMED)
"""Costs by which a goal orders candidates and that only training has."""


def check_untrained_arm(arm: Arm, baseline: Arm) -> None:
    """Raise `UserError` if an arm trains in a study of initialisation, or changes only training there.

    An arm without steps in a study that trains is refused too.
    """
    steps, theirs = arm.config.train.steps, baseline.config.train.steps
    if steps != 0 and theirs != 0:
        return
    paths = [path for path in arm.overrides if path.startswith("train.")]
    place = arm.origins.places.get(paths[0], ()) if paths else ()
    if steps != theirs:
        problem = f"arm {arm.name!r} takes {_format(steps)}, and the baseline {_format(theirs)}"
        remedy = "Study initialisation (train.steps: 0) and training in two studies."
        raise UserError(problem, path=place, remedy=remedy)
    if len(paths) == len(arm.overrides) and STORED not in paths:
        problem = f"arm {arm.name!r} changes only training ({', '.join(paths)}), and train.steps is 0"
        raise UserError(problem, path=place, remedy="Remove the arm, or set train.steps above 0.")


def _format(steps: int | None) -> str:
    return "train.epochs" if steps is None else f"{steps} steps"


def training_sections(spec: StudySpec) -> dict[str, Any]:
    """Return the content of the sections of a study file that depend on training, by name."""
    cost = spec.goal.minimise if spec.goal is not None else ""
    return {
        "tune": spec.tune,
        "match": [kind for kind in spec.match if kind != "steps"],
        "measure.reach": spec.measure.reach is not None,
        "measure.worth": spec.measure.worth,
        "goal.minimise": cost if cost in TRAINING_COSTS else "",
    }


def check_untrained_study(baseline: Arm, sections: dict[str, Any]) -> None:
    """Raise `UserError` if a study of initialisation contains a section that depends on training.

    Args:
        baseline: The baseline.
        sections: The result of `training_sections`.
    """
    if baseline.config.train.steps != 0:
        return
    for name, content in sections.items():
        if content:
            value = f": {content}" if isinstance(content, str) else ""
            problem = f"{name}{value} depends on training, and train.steps is 0"
            raise UserError(problem, path=tuple(name.split(".")), remedy=f"Remove {name}, or set train.steps above 0.")
