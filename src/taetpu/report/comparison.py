"""Terms of an arm's comparison, i.e. the baseline, matched budgets and tuning."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

Results = Mapping[str, Any]
"""The content of `results.json`."""
Costs = Mapping[str, Mapping[str, float | None]]
"""Measured costs by arm, as returned by `stats.costs.read_costs`."""
NOT_TIMED: Costs = MappingProxyType({})
LENGTH = {"train.steps", "train.epochs"}
MATCHED = {"flops": "training FLOPs", "params": "parameters", "time": "training time"}
TIME_TOLERANCE = 0.1
"""Relative difference in training time above which the terms of an arm matched by time mention the difference."""


def matched_to(arm: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the matches of an arm.

    Each match has `of` (the arm that was trained again), `by` (a key of `MATCHED`) and the matched settings by path.
    """
    role = arm["role"]
    return [*([role["match"]] if "match" in role else []), *role.get("also", ())]


def comparison_terms(arm: Mapping[str, Any], results: Results, costs: Costs = NOT_TIMED) -> str:
    """Return those terms of an arm's comparison that differ from the default: matches, tuning or another baseline.

    If the study has matched arms, an unmatched arm is described as compared at equal steps, unless it changes the
    training length.
    """
    role, found = arm["role"], []
    if by := [match["by"] for match in matched_to(arm)]:
        found.append(f"at equal {' and '.join(MATCHED[kind] for kind in by)}")
        found += _time_mismatch(arm, results, costs) if "time" in by else []
    elif arm["against"] and not LENGTH & set(arm["diff"]) and any(map(matched_to, results["arms"])):
        found.append("at equal steps")
    if "tuned" in role:
        found.append("both tuned" if arm["against"] else "tuned")
    if arm["against"] not in (None, results["arms"][0]["name"]) and "tuned" not in role:
        found.append(f"against {arm['against']}")
    return ", ".join(found)


def _time_mismatch(arm: Mapping[str, Any], results: Results, costs: Costs) -> list[str]:
    """Return a remark if the actual training time differs from the baseline's training time.

    The times may differ because arms are matched by `time` with a timing before the first run.
    """
    ours, theirs = (costs.get(a["name"], {}).get("train_seconds") for a in (arm, baseline_of(results, arm)))
    share = ours / theirs - 1 if ours and theirs else 0.0
    if abs(share) <= TIME_TOLERANCE:
        return []
    return [f"as timed before training (training took {abs(share):.0%} {'longer' if share > 0 else 'less'})"]


def baseline_of(results: Results, arm: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the baseline of an arm.

    A baseline is its own baseline. If the baseline is not in the results, the first arm is returned.
    """
    arms = {other["name"]: other for other in results["arms"]}
    return arm if arm["against"] is None else arms.get(arm["against"], results["arms"][0])
