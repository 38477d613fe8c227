"""Contrasts of a study (`measure.contrasts`): comparisons beyond "arm minus baseline".

A comparison is the mean of some arms minus the mean of other arms. A spread asks how much a metric varies over the
values of one setting, and compares this variation between the values of another setting.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import field_validator, model_validator

from taetpu.core.config import Config
from taetpu.core.errors import UserError, check_known, locate_errors, suggest
from taetpu.core.short_paths import value_at
from taetpu.spec.document import format_brief
from taetpu.store.frozen_study import PlannedContrast

BASELINE = "baseline"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
COMPARISON, SPREAD = ("compare", "to"), ("spread", "over", "by")
EXAMPLES = "Write {compare: ARM, to: ARM} (or lists of arms), or {spread: val/loss, over: PATH, by: PATH}."


class ContrastConfig(Config):
    """A contrast: `compare` and `to`, or `spread`, `over` and `by`."""

    compare: tuple[str, ...] = ()
    """Arms whose mean is compared: a name, or a list of names."""
    to: tuple[str, ...] = ()
    """Arms with whose mean they are compared: a name, or a list of names."""
    spread: str | None = None
    """Metric whose standard deviation over the values of `over` is compared."""
    over: str | None = None
    """Path of the setting over whose values the metric varies, e.g. `train.optimizer.lr`."""
    by: str | None = None
    """Path of the setting between whose values the spread is compared, e.g. `model.mixer.qk_norm`."""

    @field_validator("compare", "to", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_form(self) -> "ContrastConfig":
        given = {name for name in (*COMPARISON, *SPREAD) if getattr(self, name)}
        if given not in (set(COMPARISON), set(SPREAD)):
            raise UserError("a contrast is neither a comparison nor a spread", remedy=EXAMPLES)
        if twice := set(self.compare) & set(self.to):
            problem = f"arm {min(twice)!r} is on both sides of the comparison"
            raise UserError(problem, path=("to",), remedy="Remove it from one side.")
        for side in COMPARISON:
            arms = getattr(self, side)
            if len(set(arms)) < len(arms):
                raise UserError("an arm is listed twice", path=(side,), remedy="List each arm once.")
        if self.over is not None and self.by is not None and _plain(self.over) == _plain(self.by):
            problem = f"over and by are the same setting, {self.over}"
            remedy = "Use in by another setting, between whose values the spread is compared."
            raise UserError(problem, path=("by",), remedy=remedy)
        return self


def plan_contrasts(
    contrasts: Mapping[str, ContrastConfig], arms: Sequence[Any], metrics: Sequence[str], base: Mapping[str, Any]
) -> dict[str, PlannedContrast]:
    """Return the contrasts with the arms that they compare, as the analysis plan stores them.

    A spread over more than two values of `by` becomes a contrast for each value except that of the baseline.

    Args:
        contrasts: The contrasts of the study file, by name.
        arms: The arms, each with `name`, `overrides`, and the paths of those without an effect in `idle`.
        metrics: The metrics that every run measures.
        base: The baseline's config with its defaults.

    Returns:
        The contrasts by name.

    Raises:
        UserError: If an arm or a metric does not exist, or arms for a spread are missing. The path of the error is
            that of the contrast in the study file, or below it.
    """
    planned: dict[str, PlannedContrast] = {}
    changes = {arm.name: {path: v for path, v in arm.overrides.items() if path not in arm.idle} for arm in arms}
    for name, contrast in contrasts.items():
        with locate_errors("measure", "contrasts", name):
            if not NAME.fullmatch(name):
                remedy = "Use letters, digits, hyphens and underscores, e.g. a-vs-b."
                raise UserError(f"{name!r} is not a name for a contrast", remedy=remedy)
            if contrast.compare:
                planned |= _comparison(name, contrast, changes)
            else:
                planned |= _spread(name, contrast, changes, metrics, base)
    return planned


def _comparison(name: str, contrast: ContrastConfig, arms: Mapping[str, Any]) -> dict[str, PlannedContrast]:
    for side in COMPARISON:
        for arm in getattr(contrast, side):
            check_known(arm, arms, f"the study has no arm {arm!r}", path=(side,))
    return {name: {"compare": list(contrast.compare), "to": list(contrast.to)}}


def _spread(
    name: str,
    contrast: ContrastConfig,
    arms: Mapping[str, Mapping[str, Any]],
    metrics: Sequence[str],
    base: Mapping[str, Any],
) -> dict[str, PlannedContrast]:
    metric, over, by = str(contrast.spread), _plain(str(contrast.over)), _plain(str(contrast.by))
    if metrics and metric not in metrics:
        raise UserError(f"no run measures {metric!r}", path=("spread",), remedy=suggest(metric, metrics))
    table: dict[str, dict[str, str]] = {}
    for arm, changes in arms.items():
        settings = {_plain(path): value for path, value in changes.items()}
        if set(settings) <= {over, by}:
            level = _title(settings[by]) if by in settings else BASELINE
            table.setdefault(level, {})[_title(settings[over]) if over in settings else BASELINE] = arm
    values = list(dict.fromkeys(value for row in table.values() for value in row))
    for path, levels in ((("over",), values), (("by",), list(table))):
        if len(levels) < 2:
            setting = over if path == ("over",) else by
            problem = f"no arm changes {setting} alone" + (f" or with {by}" if path == ("over",) else "")
            remedy = f"Add arms for its values, e.g. grid: {{{over}: [...], {by}: [...]}}."
            raise UserError(problem, path=path, remedy=remedy)
    for level, row in table.items():
        if missing := [value for value in values if value not in row]:
            where = f"{by}={level}" if level != BASELINE else f"the baseline's {by}"
            value = f"{over}={missing[0]}" if missing[0] != BASELINE else f"the baseline's {over}"
            remedy = f"Cross both settings, e.g. grid: {{{over}: [...], {by}: [...]}}."
            for path, lacks in ((by, level == BASELINE), (over, missing[0] == BASELINE)):
                if lacks and (usual := format_brief(value_at(base, path, ""))):
                    remedy = f"Add {usual}, the baseline's value, to the values of {path} in grid."
            raise UserError(f"no arm has {value} with {where}", remedy=remedy)
    levels = [level for level in table if level != BASELINE]
    return {
        name if len(levels) == 1 else f"{name}={level}": {
            "spread": metric,
            "over": over,
            "by": by,
            "level": level,
            "compare": [table[level][value] for value in values],
            "to": [table[BASELINE][value] for value in values],
        }
        for level in levels
    }


def _plain(path: str) -> str:
    return path.removesuffix(".kind")


def _title(value: Any) -> str:
    """Return the value of a setting as text. A component without further settings is its kind."""
    if isinstance(value, Mapping) and set(value) == {"kind"}:
        value = value["kind"]
    return "none" if value is None else str(value)
