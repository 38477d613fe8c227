"""Names of a model's parts: necessary, redundant or compensated, from three experiments on each part.

Each experiment says whether the absence of the part hurts, is equivalent, or is unclear. These words are the verdicts
of the study's own model: `worse`, `equivalent` and `inconclusive`.

A name needs all three experiments. `necessary` is a wrong name only if at least one of three false verdicts of worse is
given, each with a probability of at most alpha; so its probability is at most alpha as well (a test of an intersection
of claims needs no correction; Berger 1982, Multiparameter hypothesis testing and acceptance sampling). The same holds
for `redundant` and `compensated`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from taetpu.stats.arm_changes import format_changes
from taetpu.stats.results import Experiment, JudgedEffect, Part
from taetpu.store.frozen_study import Role, Way

WAYS: tuple[Way, ...] = ("without", "removed", "healed")
"""The three experiments: trained without the part, removed after training, removed and healed."""
UNCHANGED, CONTINUED = "unchanged", "continued"
"""The arms with which `removed` and `healed` are compared."""
WORDS = {"worse": "hurts", "equivalent": "equivalent", "better": "helps", "inconclusive": "unclear"}
"""What the absence of a part does, by verdict."""
NAMES: dict[tuple[str, ...], str] = {
    ("hurts", "hurts", "hurts"): "necessary",
    ("equivalent", "equivalent", "equivalent"): "redundant",
    ("equivalent", "hurts", "equivalent"): "compensated",
}
"""The name of a part, by the words of its three experiments."""
UNCLEAR = "unclear"


def arms_with_own_noise(roles: Mapping[str, Role]) -> set[str]:
    """Return the arms whose noise differs from that of other arms by design.

    The models of `removed` and `healed` arms share the training of the model that they are compared with. What is left
    is how much the effect of the removal varies between seeds, which grows with the effect.
    """
    return {arm for arm, role in roles.items() if role.get("way") in WAYS[1:]}


def name_part(words: Sequence[str]) -> str | None:
    """Return the name of a part from the words of its three experiments, in the order of `WAYS`.

    The name is `unclear` if any experiment is unclear, and None for a pattern without a name.
    """
    return UNCLEAR if UNCLEAR in words else NAMES.get(tuple(words))


def judge_components(roles: Mapping[str, Role], judged: Mapping[str, JudgedEffect]) -> list[Part]:
    """Return a row for each part of a component study.

    Args:
        roles: The role of each arm.
        judged: The effect and verdict of each arm.
    """
    parts: dict[str, dict[Way, Experiment]] = {}
    for arm, role in roles.items():
        if (part := role.get("part")) and "way" in role and arm in judged:
            result = judged[arm]
            says = WORDS.get(result["verdict"] or "", UNCLEAR)
            cell: Experiment = {"arm": arm, "effect": result["effect"], "ci95": result["ci95"], "says": says}
            parts.setdefault(part, {})[role["way"]] = cell
    return [
        {"part": part, "name": name_part([cells[way]["says"] for way in WAYS]),
         "without": cells["without"], "removed": cells["removed"], "healed": cells["healed"]}
        for part, cells in parts.items()
        if set(cells) == set(WAYS)
    ]  # fmt: skip


def format_component_arm(role: Role, changes: Mapping[str, Any], base: Mapping[str, Any], steps: int) -> str:
    """Format the change of an arm of a component study: the removal, and when it is made.

    Args:
        role: The role of the arm.
        changes: The changes of the arm, by path. Those of training only say how the experiment is made.
        base: The baseline's config.
        steps: The number of steps after the removal.
    """
    removal = {path: value for path, value in changes.items() if not path.startswith("train.")}
    if not removal:
        again = "evaluated again" if role.get("against") == UNCHANGED else f"trained for {steps} more steps"
        return f"the trained baseline, {again}"
    when = {"removed": " after training", "healed": f" after training, then {steps} more steps"}
    return format_changes(removal, base) + when.get(role.get("way", ""), "")
