"""Arms matched to their baseline by training FLOPs, training time or number of parameters.

Without matching, all arms are trained for the same number of steps, so an arm may be better only because it computes
more per token. `match` adds a variant of the arm that is trained for fewer or more steps, or is narrower or wider.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from taetpu.core.errors import UserError, change_errors, locate_errors
from taetpu.spec.loading import derive_arm
from taetpu.spec.resolved_study import Arm, Study
from taetpu.spec.unresolved_arms import bounded
from taetpu.store.frozen_study import MatchKind, MatchRole, Role
from taetpu.train.callbacks import Callback
from taetpu.train.layout import AUTO, default_layout
from taetpu.train.model_cost import num_params
from taetpu.train.step_time import measure_step, step_workload
from taetpu.train.training_flops import training_flops_per_token

TOLERANCE = 0.01
"""Relative difference between the costs of an arm and its baseline below which the arm is not matched."""
LENGTH = ("train.steps", "train.epochs")
INNER = "model.ffn.hidden"
INNER_SIZE = (INNER, "model.ffn.mult")


def match_sizes(study: Study) -> Iterator[Arm]:
    """Yield the arms matched by FLOPs and by parameters, if the study requests them.

    An arm that sets its number of steps is not matched by FLOPs. An arm that sets the width of its feed-forward
    networks is not matched by parameters.

    Raises:
        UserError: if an arm cannot be matched.
    """
    for arm in study.arms:
        if "flops" in study.match and _may_change(study, arm, LENGTH):
            yield from _lengthened(study, arm, "flops", affordable_steps(study, arm, flops_per_step))
        if "params" in study.match and _may_change(study, arm, INNER_SIZE):
            yield from _narrowed(study, arm)


def match_times(study: Study, steps: Mapping[str, int]) -> Iterator[Arm]:
    """Yield the arms matched by time.

    Args:
        study: the study.
        steps: the result of `time_matched_steps`.

    Raises:
        UserError: if an arm cannot be matched.
    """
    for arm in study.arms:
        if arm.name in steps:
            yield from _lengthened(study, arm, "time", steps[arm.name])


def time_matched_steps(study: Study, seconds: Callable[[str], float], known: Mapping[str, int]) -> dict[str, int]:
    """Return, for each arm, the number of steps that can be trained in the training time of the arm's baseline.

    Args:
        study: the study.
        seconds: a function that measures the seconds per step of an arm. It is called for arms that are not in `known`,
            and for their baselines.
        known: the numbers of steps that an earlier run of the study found.
    """
    measured: dict[str, float] = {}

    def cost(study: Study, arm: Arm) -> float:
        if arm.name not in measured:
            measured[arm.name] = seconds(arm.name)
        return measured[arm.name]

    return {arm.name: known.get(arm.name) or affordable_steps(study, arm, cost) for arm in arms_to_time(study)}


def arms_to_time(study: Study) -> list[Arm]:
    """Return the arms that the study matches by time."""
    asked = study.arms if "time" in study.match else ()
    return [arm for arm in asked if arm.stage != "matched" and _may_change(study, arm, LENGTH)]


def seconds_per_step(study: Study, name: str, callback: Callback) -> float:
    """Return the measured seconds per train step of one run of an arm. The timed pack contains only runs of this arm.

    Raises:
        UserError: if there are several processes.
    """
    runs = tuple(run for run in study.runs() if run.arm == name)
    work = step_workload(runs, study.sources.prepare(runs[0].config))
    callback.on_step_timing(name)
    layout = default_layout(work, AUTO)
    with change_errors(study.document.locate), locate_errors("match"):
        return measure_step(work, layout) / layout.width


def _may_change(study: Study, arm: Arm, paths: tuple[str, ...]) -> bool:
    """Return whether an arm is not a baseline and its overrides of these paths equal those of its baseline."""
    baseline = study.against(arm)
    return arm is not baseline and not any(arm.overrides.get(p) != baseline.overrides.get(p) for p in paths)


def _matched(study: Study, arm: Arm, kind: MatchKind, changes: Mapping[str, Any]) -> Iterator[Arm]:
    baseline = study.against(arm)
    role: Role = {**arm.role, "against": baseline.name, "match": MatchRole(of=arm.name, by=kind, **changes)}
    try:
        matched = derive_arm(study, arm, bounded(f"{arm.name}@{kind}"), changes, "matched", role)
    except UserError as error:
        raise _refused(study, arm, kind, error.problem) from None
    if matched.config != baseline.config:
        yield matched


def _refused(study: Study, arm: Arm, kind: str, why: str) -> UserError:
    problem = f"arm {arm.name!r} cannot be matched by {kind}: {why}"
    instead = ", or use `match: flops`, which needs no inner size" if kind == "params" else ""
    remedy = f"Remove the arm or this matching{instead}."
    return study.document.locate(UserError(problem, path=("match",), remedy=remedy))


# --- by length: FLOPs and time ---------------------------------------------------------------------------------------


def steps_of(study: Study, arm: Arm) -> int:
    """Return the number of optimizer steps of each run of an arm."""
    return arm.config.train.total_steps(study.source(arm).num_windows)


def flops_per_step(study: Study, arm: Arm) -> float:
    """Return the FLOPs of a train step of one run of an arm."""
    source = study.source(arm)
    tokens = arm.config.train.batch_size * source.seq_len
    return tokens * training_flops_per_token(arm.config, source)


def affordable_steps(study: Study, arm: Arm, cost: Callable[[Study, Arm], float]) -> int:
    """Return the number of steps that make an arm cost as much as its baseline. `cost` returns the cost of a step."""
    baseline = study.against(arm)
    return max(1, round(steps_of(study, baseline) * cost(study, baseline) / cost(study, arm)))


def _lengthened(study: Study, arm: Arm, kind: MatchKind, steps: int) -> Iterator[Arm]:
    if abs(steps / steps_of(study, arm) - 1) >= TOLERANCE:
        epochs = {"train.epochs": None} if arm.config.train.epochs is not None else {}
        yield from _matched(study, arm, kind, {"train.steps": steps, **epochs})


# --- by width: parameters --------------------------------------------------------------------------------------------


def _narrowed(study: Study, arm: Arm) -> Iterator[Arm]:
    """Yield the arm with the feed-forward inner size that gives the number of parameters closest to the baseline's."""
    goal = num_arm_params(study, study.against(arm))
    if abs(num_arm_params(study, arm) / goal - 1) < TOLERANCE:
        return

    def params_at(inner: int) -> int:
        try:
            return num_arm_params(study, derive_arm(study, arm, arm.name, {INNER: inner}, "matched", arm.role))
        except UserError as error:
            why = f"its feed-forward networks have no inner size ({error.problem})"
            raise _refused(study, arm, "params", why) from None

    params_1, params_2 = params_at(1), params_at(2)
    if params_2 == params_1:
        raise _refused(study, arm, "params", f"{INNER} does not change the number of parameters")
    inner = 1 + round((goal - params_1) / (params_2 - params_1))
    if inner < 1:
        least = f"with the narrowest feed-forward networks, it still has {params_1:,} parameters"
        raise _refused(study, arm, "params", f"{least}, but the baseline has {goal:,}")
    yield from _matched(study, arm, "params", {INNER: inner})


def num_arm_params(study: Study, arm: Arm) -> int:
    """Return the number of parameters of an arm's model."""
    source = study.source(arm)
    return num_params(arm.config.model, source.interface, source.seq_len)
