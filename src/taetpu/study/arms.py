"""The arms of a study, at each stage of their making."""

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

    Written and generated arms come from the study file, those matched by FLOPs and parameters from its data as well.
    Arms matched by time and tuned arms follow from what the study has measured so far.

    Args:
        study: as loaded from its file.
        steps: the steps of arms matched by time, as `matching.time_matched_steps` returns them.
        tuning: the best values of each arm, as `tuning.choose_values` returns them.

    Raises:
        UserError: an arm cannot be matched or tuned.
    """
    arms = _with_matched(study, match_sizes(study))
    if steps:
        known = study.changed(arms=arms)
        arms = _with_matched(known, match_times(known, steps))
    return (*arms, *tuned_arms(study.changed(arms=arms), tuning)) if tuning else arms


def _with_matched(study: Study, matched: Iterable[Arm]) -> tuple[Arm, ...]:
    """Return the arms of a study with matched ones.

    A matched arm whose config and baseline are those of another arm is not added, so that no run or comparison counts
    twice. The role of the other arm then records under `also` what else it is matched by.
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
