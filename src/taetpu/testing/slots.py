"""Which checks a slot's components get."""

from collections.abc import Callable

import jax

from taetpu.core.config import Component
from taetpu.core.declarations import check_declaration
from taetpu.core.errors import UserError
from taetpu.nn.slots import PARTS
from taetpu.testing.data import check_task, check_tokenizer
from taetpu.testing.hooks import check_hook
from taetpu.testing.metrics import check_metric
from taetpu.testing.models import check_model
from taetpu.testing.parts import check_init, check_parts
from taetpu.testing.report import Checks, Report, Unmet
from taetpu.testing.training import check_optimizer, check_schedule


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
    try:
        check_declaration(type(component))
    except UserError as error:
        raise Unmet(error.problem, at=(component, ""), remedy=error.remedy or "") from None
    return f"what slot {component.slot!r} asks of a config class"
