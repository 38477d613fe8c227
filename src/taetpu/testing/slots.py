"""Which checks a slot's components get."""

from collections.abc import Callable

import jax

from taetpu.core.config import Component
from taetpu.data.batches import Task
from taetpu.data.tokenizers import TokenizerConfig
from taetpu.nn.position import PositionConfig
from taetpu.optim.hooks import Hook
from taetpu.optim.metrics import Metric
from taetpu.testing.data import check_task, check_tokenizer
from taetpu.testing.hooks import check_hook
from taetpu.testing.metrics import check_metric
from taetpu.testing.models import check_model
from taetpu.testing.parts import PARTS, check_init, check_parts
from taetpu.testing.report import Checks, Report, Unmet
from taetpu.testing.training import check_optimizer, check_schedule
from taetpu.trackers.base import Tracker

BASES = {
    "position": PositionConfig,
    "hook": Hook,
    "metric": Metric,
    "task": Task,
    "tokenizer": TokenizerConfig,
    "tracker": Tracker,
}
FIELDS = {"norm": ("placement", "'pre' or 'post'"), "optimizer": ("lr", "the peak that the schedule is given")}
METHODS = {"optimizer": ("transform",), "schedule": ("lr",), "init": ("draw",)}


def in_model(checks: Checks) -> None:
    """Check what stands in the model, by itself and then in a model."""
    by_itself = check_init if checks.component.slot == "init" else check_parts
    if by_itself(checks):
        check_model(checks)
    else:
        checks.leave("a model with it")


CHECKS: dict[str, Callable[[Checks], None]] = {
    **dict.fromkeys([*PARTS, "init"], in_model),
    "optimizer": check_optimizer,
    "schedule": check_schedule,
    "hook": check_hook,
    "metric": check_metric,
    "task": check_task,
    "tokenizer": check_tokenizer,
    "tracker": lambda checks: checks.note("runs", "not tried: a tracker may write to a server"),
}


def check(component: Component) -> Report:
    """All checks of a component's slot, made."""
    checks = Checks(component)
    if not checks.make("form", form, component):
        return checks.report
    with jax.default_matmul_precision("highest"):  # accelerators compute in less, and would differ by it
        CHECKS[component.slot](checks)
    return checks.report


def form(component: Component) -> str:
    """The config class has what its slot asks for."""
    slot = component.slot
    base = BASES.get(slot)
    if base is not None and not isinstance(component, base):
        problem = f"{type(component).__name__} is not a {base.__name__}, as a {slot} must be"
        remedy = f"class {type(component).__name__}({base.__name__}), from {base.__module__}"
        raise Unmet(problem, at=(component, ""), remedy=remedy)
    if slot in FIELDS and not hasattr(component, FIELDS[slot][0]):
        name, what = FIELDS[slot]
        raise Unmet(f"{type(component).__name__} has no {name}: {what}", at=(component, ""))
    init = () if base is not None or slot in METHODS else ("init",)
    for method in METHODS.get(slot, init):
        if not callable(getattr(component, method, None)):
            raise Unmet(f"{type(component).__name__} has no method {method}", at=(component, ""))
    return f"what slot {slot!r} asks of a config class"
