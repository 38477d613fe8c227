"""Matched arms: an arm once more, given as much as the baseline has, of parameters, FLOPs or time.

At equal steps, which is how arms are trained otherwise, an arm that computes more per token may win by that alone.
Beside such an arm `match` puts one that is trained for fewer or more steps, or is made narrower or wider, until both
have the same.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from taetpu.core.errors import UserError
from taetpu.spec.candidates import bounded
from taetpu.spec.loading import derived
from taetpu.spec.resolved_study import Arm, Study
from taetpu.train.count import num_params
from taetpu.train.flops import training_flops_per_token

CLOSE = 0.01  # arms that differ by less than this share are as good as matched
LENGTH = ("train.steps", "train.epochs")
INNER = "model.ffn.hidden"
INNER_SIZE = (INNER, "model.ffn.mult")

Cost = Callable[[Arm], float]
"""What a step of one run of an arm takes."""


def matched(study: Study) -> Iterator[Arm]:
    """The arms of a study matched by FLOPs and by parameters, as far as it asks for them.

    An arm that says how long it is trained, or how wide its feed-forward networks are, is about that and keeps it.

    Raises:
        UserError: an arm cannot be matched.
    """
    for arm in study.arms:
        if "flops" in study.match and _may_change(study, arm, LENGTH):
            yield from _lengthened(study, arm, "flops", paid_steps(study, arm, lambda a: flops_a_step(study, a)))
        if "params" in study.match and _may_change(study, arm, INNER_SIZE):
            yield from _narrowed(study, arm)


def timed(study: Study, seconds: Cost, known: Mapping[str, int]) -> dict[str, int]:
    """The steps for which each arm is trained in the baseline's time.

    Args:
        seconds: asked only for arms that are not `known`, and their baselines.
        known: what was measured when the study was first run.
    """
    return {arm.name: known.get(arm.name) or paid_steps(study, arm, seconds) for arm in to_time(study)}


def to_time(study: Study) -> list[Arm]:
    """The arms that are to be matched by time."""
    asked = study.arms if "time" in study.match else ()
    return [arm for arm in asked if "match" not in arm.role and _may_change(study, arm, LENGTH)]


def time_matched(study: Study, steps: Mapping[str, int]) -> Iterator[Arm]:
    """The arms of a study matched by time. Raises `UserError` as `matched`."""
    for arm in study.arms:
        if arm.name in steps:
            yield from _lengthened(study, arm, "time", steps[arm.name])


def beside(study: Study, found: Iterable[Arm]) -> Study:
    """A study with its matched arms. One that comes to an arm that is there already is that arm, not another one: its
    role then says under `also` what else it is matched by, and no run or comparison counts twice.
    """
    arms = list(study.arms)
    for new in found:
        against = study.against(new)
        twin = next((i for i, a in enumerate(arms) if a.config == new.config and study.against(a) is against), None)
        if twin is None:
            arms.append(new)
        else:
            role = arms[twin].role
            arms[twin] = replace(arms[twin], role={**role, "also": [*role.get("also", ()), new.role["match"]]})
    return study.changed(arms=tuple(arms))


def matched_name(arm: Arm, kind: str) -> str:
    """What an arm is called when it is matched by `flops`, `params` or `time`."""
    return bounded(f"{arm.name}@{kind}")


def _may_change(study: Study, arm: Arm, paths: tuple[str, ...]) -> bool:
    """Is this for matching to decide? A baseline's is not, nor what an arm sets itself, apart from its scale."""
    baseline = study.against(arm)
    return arm is not baseline and not any(arm.overrides.get(p) != baseline.overrides.get(p) for p in paths)


def _matched(study: Study, arm: Arm, kind: str, changes: Mapping[str, Any]) -> Iterator[Arm]:
    baseline = study.against(arm)
    role = {**arm.role, "against": baseline.name, "match": {"of": arm.name, "by": kind, **changes}}
    try:
        found = derived(study, arm, matched_name(arm, kind), changes, "match", role)
    except UserError as error:
        raise _refused(study, arm, kind, error.problem) from None
    if found.config != baseline.config:
        yield found


def _refused(study: Study, arm: Arm, kind: str, why: str) -> UserError:
    problem = f"arm {arm.name!r} cannot be matched by {kind}: {why}"
    remedy = "leave the arm or this matching out; `match: flops` needs no inner size" if kind == "params" else None
    return study.document.locate(
        UserError(problem, path=("match",), remedy=remedy or "leave the arm or this matching out")
    )


# --- by length: FLOPs and time ---------------------------------------------------------------------------------------


def steps_of(study: Study, arm: Arm) -> int:
    return arm.config.train.total_steps(study.source(arm).num_windows)


def flops_a_step(study: Study, arm: Arm) -> float:
    source = study.source(arm)
    tokens = arm.config.train.batch_size * source.seq_len
    return tokens * training_flops_per_token(arm.config, source)


def paid_steps(study: Study, arm: Arm, cost: Cost) -> int:
    """As many steps of an arm as the baseline's whole training pays for."""
    baseline = study.against(arm)
    return max(1, round(steps_of(study, baseline) * cost(baseline) / cost(arm)))


def _lengthened(study: Study, arm: Arm, kind: str, steps: int) -> Iterator[Arm]:
    if abs(steps / steps_of(study, arm) - 1) >= CLOSE:
        epochs = {"train.epochs": None} if arm.config.train.epochs is not None else {}
        yield from _matched(study, arm, kind, {"train.steps": steps, **epochs})


# --- by width: parameters --------------------------------------------------------------------------------------------


def _narrowed(study: Study, arm: Arm) -> Iterator[Arm]:
    """With the inner size of the feed-forward networks that has the baseline's number of parameters."""
    goal = size(study, study.against(arm))
    if abs(size(study, arm) / goal - 1) < CLOSE:
        return

    def at(inner: int) -> int:
        try:
            return size(study, derived(study, arm, arm.name, {INNER: inner}, "match", arm.role))
        except UserError as error:
            why = f"its feed-forward networks take no inner size ({error.problem})"
            raise _refused(study, arm, "params", why) from None

    one, two = at(1), at(2)
    if two == one:
        raise _refused(study, arm, "params", f"{INNER} does not change its number of parameters")
    inner = 1 + round((goal - one) / (two - one))
    if inner < 1:
        least = f"with the narrowest feed-forward networks it still has {one:,} parameters"
        raise _refused(study, arm, "params", f"{least}, and the baseline {goal:,}")
    yield from _matched(study, arm, "params", {INNER: inner})


def size(study: Study, arm: Arm) -> int:
    source = study.source(arm)
    return num_params(arm.config.model, source.vocab_size, source.seq_len)
