"""The arms of a study at each stage: written, generated, matched and tuned."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from taetpu.spec.resolved_study import Arm, Study
from taetpu.study.matching import match_sizes, match_times
from taetpu.study.tuning import tuned_arms


def list_arms(
    study: Study, steps: Mapping[str, int] | None = None, tuning: Mapping[str, Any] | None = None
) -> tuple[Arm, ...]:
    """Return the arms of a study, the baseline first, each with its `stage`.

    Written and generated arms come from the study file. Arms matched by FLOPs or parameters also depend on the study's
    data. Time-matched arms and tuned arms depend on measurements. They are included only if `steps` and `tuning`,
    respectively, are given.

    Args:
        study: the study as loaded from its file.
        steps: the result of `matching.time_matched_steps`.
        tuning: the result of `tuning.choose_values`.

    Raises:
        UserError: if an arm cannot be matched or tuned.
    """
    arms = _with_matched(study, match_sizes(study))
    if steps:
        known = study.changed(arms=arms)
        arms = _with_matched(known, match_times(known, steps))
    return (*arms, *tuned_arms(study.changed(arms=arms), tuning)) if tuning else arms


def _with_matched(study: Study, matched: Iterable[Arm]) -> tuple[Arm, ...]:
    """Return the arms of a study followed by the matched arms.

    A matched arm is not added if an existing arm has the same config and baseline, so that no run or comparison counts
    twice. Instead, the match is added to the entry `also` in the existing arm's `role`.
    """
    arms = list(study.arms)
    for new in matched:
        against = study.against(new)
        twin = next((i for i, a in enumerate(arms) if a.config == new.config and study.against(a) is against), None)
        if twin is None:
            arms.append(new)
        else:
            role = arms[twin].role
            arms[twin] = replace(arms[twin], role={**role, "also": [*role.get("also", ()), new.role["match"]]})
    return tuple(arms)
