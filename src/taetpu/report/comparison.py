"""Terms of an arm's comparison: its baseline, and the budget that is equal."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

Results = Mapping[str, Any]
"""The content of `results.json`."""
Costs = Mapping[str, Mapping[str, float | None]]
"""Measured costs by arm; see `stats.costs`."""
NOT_TIMED: Costs = MappingProxyType({})
LENGTH = {"train.steps", "train.epochs"}
MATCHED = {"flops": "training FLOPs", "params": "parameters", "time": "training time"}
TIME_TOLERANCE = 0.1
"""Relative difference in training time above which a match by time is reported as off."""


def matched_to(arm: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return an arm's matches: for each the arm that it is `of`, what it is matched `by`, and the changes."""
    role = arm["role"]
    return [*([role["match"]] if "match" in role else []), *role.get("also", ())]


def comparison_terms(arm: Mapping[str, Any], results: Results, costs: Costs = NOT_TIMED) -> str:
    """Return the terms of an arm's comparison where they differ from the default: match, tuning, other baseline.

    If the study matches any arms, the others are described as compared at equal steps.
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
    """Return a remark if actual training times differ, since `time` is matched by a timing before the first run."""
    ours, theirs = (costs.get(a["name"], {}).get("train_seconds") for a in (arm, baseline_of(results, arm)))
    share = ours / theirs - 1 if ours and theirs else 0.0
    if abs(share) <= TIME_TOLERANCE:
        return []
    return [f"as timed before training (training took {abs(share):.0%} {'longer' if share > 0 else 'less'})"]


def baseline_of(results: Results, arm: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arm that an arm is compared with; itself for a baseline, the study's baseline if it is missing."""
    arms = {other["name"]: other for other in results["arms"]}
    return arm if arm["against"] is None else arms.get(arm["against"], results["arms"][0])
