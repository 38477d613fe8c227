"""What a study may report of runs that choose by validation data: only data by which no run chose."""

from collections.abc import Sequence

from taetpu.core.errors import UserError
from taetpu.optim.selection import observers, selectors
from taetpu.spec.goal import GoalConfig
from taetpu.spec.measure import Measure
from taetpu.spec.resolved_study import Arm

BUDGETS = ("flops", "time")
"""The quantities in `match` that a run which stops does not use up."""


def check_reported(measure: Measure, match: Sequence[str], arms: Sequence[Arm], goal: GoalConfig | None = None) -> None:
    """Raise `UserError` if a study reports data by which a run chooses, or matches the budgets of runs that may stop.

    Args:
        measure: How arms are compared.
        match: The quantities in which arms are matched.
        arms: All arms.
        goal: The goal; None without one.
    """
    choosing = [(arm, slot, part) for arm in arms for slot, part in selectors(arm.config.train).items()]
    if choosing:
        arm, slot, part = choosing[0]
        why = f"train.{slot}: {part.kind} of arm {arm.name!r} chooses by validation data"
        reported = [(measure.primary, ("measure", "primary"))]
        if goal is not None:
            reported += [(goal.metric, ("goal", "metric"))] if goal.metric else []
            reported += [(each.metric, ("goal", "tasks", name, "metric")) for name, each in goal.tasks.items()]
        for name, contrast in measure.contrasts.items():
            reported += [(contrast.spread, ("measure", "contrasts", name, "spread"))] if contrast.spread else []
        for metric, path in reported:
            split, _, name = metric.partition("/")
            if split.partition("@")[0] == "val":
                remedy = f"Use test/{name}, or remove train.{slot}."
                raise UserError(f"{metric!r} is compared, but {why}", path=path, remedy=remedy)
        for number, table in enumerate(measure.post_hoc):
            if table.split != "test":
                problem = f"table {table.name!r} is measured on {table.split!r}, but {why}"
                raise UserError(problem, path=("measure", "post_hoc", number, "split"), remedy="Set split: test.")
    stopping = [arm for arm in arms if "stop" in observers(arm.config.train)]
    for number, quantity in enumerate(match):
        if stopping and quantity in BUDGETS:
            problem = (
                f"arms are matched by {quantity}, but runs of arm {stopping[0].name!r} may stop before it is spent"
            )
            raise UserError(problem, path=("match", number), remedy=f"Remove {quantity}, or set train.stop: never.")
