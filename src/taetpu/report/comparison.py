"""On which terms an arm is compared: with what, and given as much of what."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

Results = Mapping[str, Any]
"""The content of `results.json`."""
Costs = Mapping[str, Mapping[str, float | None]]
"""By arm what was timed: see `stats.costs`."""
NOT_TIMED: Costs = MappingProxyType({})
LENGTH = {"train.steps", "train.epochs"}
MATCHED = {"flops": "training FLOPs", "params": "parameters", "time": "training time"}
TIME_TOLERANCE = 0.1
"""An arm was not trained for as long as its baseline where the times differ by more than this share."""


def matched_to(arm: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What an arm is matched by, each with the arm that it is `of` and what matching changes; often nothing."""
    role = arm["role"]
    return [*([role["match"]] if "match" in role else []), *role.get("also", ())]


def comparison_terms(arm: Mapping[str, Any], results: Results, costs: Costs = NOT_TIMED) -> str:
    """How an arm is compared, as far as that is not how the study's first arms are: at equal what, at its best, at
    which scale. A study that matches arms says of the others that they are compared at equal steps.
    """
    role, found = arm["role"], []
    if by := [match["by"] for match in matched_to(arm)]:
        found.append(f"at equal {' and '.join(MATCHED[kind] for kind in by)}")
        found += _time_mismatch(arm, results, costs) if "time" in by else []
    elif arm["against"] and not LENGTH & set(arm["diff"]) and any(map(matched_to, results["arms"])):
        found.append("at equal steps")
    if "tuned" in role:
        found.append("each at its best")
    if arm["against"] not in (None, results["arms"][0]["name"]) and "tuned" not in role:
        found.append(f"against {arm['against']}")
    return ", ".join(found)


def _time_mismatch(arm: Mapping[str, Any], results: Results, costs: Costs) -> list[str]:
    """Equal time is equal by a timing before the first run; what training then took may be far from it."""
    ours, theirs = (costs.get(a["name"], {}).get("train_seconds") for a in (arm, baseline_of(results, arm)))
    share = ours / theirs - 1 if ours and theirs else 0.0
    if abs(share) <= TIME_TOLERANCE:
        return []
    return [f"as timed beforehand (training itself took {abs(share):.0%} {'longer' if share > 0 else 'less'})"]


def baseline_of(results: Results, arm: Mapping[str, Any]) -> Mapping[str, Any]:
    """What an arm is compared with; a baseline itself, or the study's own where that is not there."""
    arms = {other["name"]: other for other in results["arms"]}
    return arm if arm["against"] is None else arms.get(arm["against"], results["arms"][0])
