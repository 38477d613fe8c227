"""The checks for each slot."""

from collections.abc import Callable

import jax

from taetpu.core.config import Component
from taetpu.core.slot_requirements import check_declaration
from taetpu.nn.slot_calls import PARTS
from taetpu.testing.data import check_task, check_tokenizer
from taetpu.testing.heads import check_head
from taetpu.testing.hooks import check_hook
from taetpu.testing.in_model import check_model
from taetpu.testing.metrics import check_eval_metric, check_metric
from taetpu.testing.mixer import check_declared
from taetpu.testing.objectives import check_objective
from taetpu.testing.observers import check_observer
from taetpu.testing.optimizer_schedule import check_optimizer, check_schedule
from taetpu.testing.report import Checks, Report
from taetpu.testing.standalone import check_draws, check_parts


def check_in_model(checks: Checks) -> None:
    """Check a component of the model, first in isolation and then in a tiny model."""
    component = checks.component
    passed = checks.run("draw", check_draws, component) if component.slot == "init" else check_parts(checks)
    if passed:
        if component.slot == "mixer":
            checks.run("declared", check_declared, component)
        check_model(checks)
    else:
        checks.skip("model")


def note_own_slot(checks: Checks) -> None:
    """Note that the kinds of a slot that a plug-in has opened are called by another component only."""
    checks.note("calls", "not called, because only the component that has this slot does so; check that component")


CHECKS: dict[str, Callable[[Checks], None]] = {
    **dict.fromkeys([*PARTS, "init"], check_in_model),
    "optimizer": check_optimizer,
    "schedule": check_schedule,
    "head": check_head,
    "stop": check_observer,
    "evaluate": check_observer,
    "objective": check_objective,
    "hook": check_hook,
    "metric": check_metric,
    "eval_metric": check_eval_metric,
    "task": check_task,
    "tokenizer": check_tokenizer,
    "tracker": lambda checks: checks.note("runs", "not run, because a tracker may write to a server"),
}


def check(component: Component) -> Report:
    """Run all checks for a component's slot, and return the report."""
    checks = Checks(component)
    if not checks.run("form", check_form, component):
        return checks.report
    with jax.default_matmul_precision("highest"):  # at default precision, accelerators exceed the tolerance
        CHECKS.get(component.slot, note_own_slot)(checks)
    return checks.report


def check_form(component: Component) -> str:
    """Check that the config class has the members that its slot requires."""
    check_declaration(type(component))
    return f"the config class has the members that slot {component.slot!r} requires"
