"""Matched arms: an arm once more, given as much as the baseline has, of parameters, FLOPs or time.

At equal steps, which is how arms are trained otherwise, an arm that computes more per token may win by that alone. Beside
such an arm `match` puts one that is trained for fewer or more steps, or is made narrower or wider, until both have the same.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from taetpu.core.errors import UserError
from taetpu.spec.candidates import Candidate, bounded
from taetpu.spec.design import Arm, Study
from taetpu.spec.loading import derived
from taetpu.train.count import flops_per_token, num_params

WHAT = {"flops": "training FLOPs", "params": "parameters", "time": "training time"}
CLOSE = 0.01  # arms that differ by less than this share are as good as matched

Seconds = Callable[[Arm], float]
"""What a step of one run of an arm takes."""


def matched(study: Study, seconds: Seconds, known: Mapping[str, Any]) -> list[Arm]:
    """The matched arms of a study, for each kind of matching that it asks for.

    Args:
        seconds: asked for `match: time` alone, and only of arms that are not `known`.
        known: steps of time-matched arms, by name, as they were measured and frozen before.

    Raises:
        UserError: an arm cannot be matched.
    """
    arms = {arm.name: arm for arm in study.arms}
    found = []
    for kind in study.match:
        for arm in study.arms:
            baseline = arms[arm.role.get("against", study.arms[0].name)]
            if arm is not baseline:
                found += _matched(study, kind, arm, baseline, seconds, known)
    return found


def _matched(
    study: Study, kind: str, arm: Arm, baseline: Arm, seconds: Seconds, known: Mapping[str, Any]
) -> Iterator[Arm]:
    name = bounded(f"{arm.name}@{kind}")
    if kind == "params":
        changes = narrowed(study, arm, baseline)
    elif name in known:
        changes = {"train.steps": known[name]} if known[name] else {}
    else:
        changes = lengthened(study, arm, baseline, (lambda a: flops_a_step(study, a)) if kind == "flops" else seconds)
    if not changes:
        return
    if "train.steps" in changes and "epochs" in study.base.get("train", {}):
        changes["train.epochs"] = None
    overrides = {**{p: v for p, v in arm.overrides.items() if p not in changes}, **changes}
    origins = {**arm.origins.places, **dict.fromkeys(changes, ("match",))}
    role = {**arm.role, "against": baseline.name, "match": {"of": arm.name, "by": kind, **changes}}
    yield derived(study, Candidate(name, overrides, origins, crossed=True, role=role))


def steps_of(study: Study, arm: Arm) -> int:
    return arm.config.train.total_steps(study.source(arm).num_windows)


def flops_a_step(study: Study, arm: Arm) -> float:
    source = study.source(arm)
    tokens = arm.config.train.batch_size * source.seq_len
    return tokens * flops_per_token(arm.config.model, source.vocab_size, source.seq_len)


def lengthened(study: Study, arm: Arm, baseline: Arm, cost: Seconds) -> dict[str, Any]:
    """As many steps as the baseline's cost pays for; nothing where that is what the arm has, or it has its own length."""
    if {"train.steps", "train.epochs"} & set(arm.overrides) - {"train.epochs"} and "match" not in arm.role:
        return {}
    steps = max(1, round(steps_of(study, baseline) * cost(baseline) / cost(arm)))
    return {} if abs(steps / steps_of(study, arm) - 1) < CLOSE else {"train.steps": steps}


def narrowed(study: Study, arm: Arm, baseline: Arm) -> dict[str, Any]:
    """The inner size of the feed-forward networks with which an arm has the baseline's number of parameters.

    Raises:
        UserError: no size gives that number.
    """
    goal, now = size(study, baseline, baseline), size(study, arm, arm)
    if abs(now / goal - 1) < CLOSE:
        return {}
    path = "model.ffn.hidden"
    try:
        one, two = (size(study, arm, derived(study, _with(arm, {path: inner}))) for inner in (1, 2))
    except UserError as error:
        raise _refused(arm, f"its feed-forward network has no inner size: {error.problem}") from None
    inner = 1 + round((goal - one) / (two - one)) if two > one else 0
    if inner < 1:
        raise _refused(arm, f"even without a feed-forward network it has more than the baseline's {goal:,}")
    return {path: inner}


def size(study: Study, arm: Arm, config_of: Arm) -> int:
    source = study.source(arm)
    return num_params(config_of.config.model, source.vocab_size, source.seq_len)


def _with(arm: Arm, changes: Mapping[str, Any]) -> Candidate:
    overrides = {**{p: v for p, v in arm.overrides.items() if p not in changes}, **changes}
    return Candidate(arm.name, overrides, {**arm.origins.places, **dict.fromkeys(changes, ("match",))}, crossed=True)


def _refused(arm: Arm, why: str) -> UserError:
    problem = f"arm {arm.name!r} cannot be given the baseline's number of parameters: {why}"
    return arm.explain(UserError(problem, remedy="match: flops, or leave match out"))
