"""Why a change of a config changes nothing, in words."""

from collections.abc import Callable

from taetpu.contract.allowed_changes import Place, places, value_at
from taetpu.contract.computation import Computation
from taetpu.core.config import Component, to_data
from taetpu.core.errors import UserError
from taetpu.core.loading import load_config
from taetpu.spec.overrides import format_brief, format_value
from taetpu.spec.resolved_study import difference
from taetpu.spec.schema import ResolvedConfig

Compute = Callable[[ResolvedConfig], Computation]

KNOWN = {
    "train.precision": "this device computes in float32 anyway",
    "train.loss_bound": "it only says which runs count as diverged",
}


def explain_no_op(old: ResolvedConfig, new: ResolvedConfig, compute: Compute) -> tuple[str, str]:
    """Why two configs that differ compute the same, and what would help.

    Args:
        compute: what a config computes; used to find a setting that hides the change.
    """
    diff, run = difference(old, new), compute(new)
    structural = [path for path in diff if not _numbers(path, run)]
    if not structural:
        path = next(iter(diff))
        return f"{path} is never read: nothing that is trained or measured depends on it", "remove it"
    path = structural[0]
    before, after = diff[path]
    said = f"{path}: {format_brief(before)} -> {format_brief(after)}"
    if path in KNOWN:
        return f"{said} leads to the same program: {KNOWN[path]}", "remove it"
    if before is None or after is None:
        value = format_brief(before if after is None else after)
        return f"{said} leads to the same program: {value} is what it is anyway when nothing is said", "remove it"
    hidden = _hidden_by(path, old, new, compute)
    if hidden:
        owner, name, value = hidden
        cause = f"{owner}.{name} is {format_value(value)}"
        return f"{said} leads to the same program: {cause}, and that alone counts", f"remove it, or {owner}.{name}"
    return f"{said} leads to the same program with the same numbers", "remove it, or look at where it should act"


def _numbers(path: str, run: Computation) -> list[str]:
    """The traced numbers that a path of a diff is about."""
    return [name for name in (".".join(place) for place in places(path, run.config)) if name in run.numbers]


def _hidden_by(path: str, old: ResolvedConfig, new: ResolvedConfig, compute: Compute) -> tuple[str, str, object] | None:
    """A setting beside the changed one without which the change would do something: `(owner, name, value)`."""
    owner, _, changed = path.rpartition(".")
    component = value_at(new, places(path, new)[0][:-1])
    if not isinstance(component, Component):
        return None
    for name, field in type(component).model_fields.items():
        value, default = getattr(component, name), field.get_default(call_default_factory=True)
        if name == changed or field.is_required() or value == default:
            continue
        try:
            without = [compute(_with(config, places(f"{owner}.{name}", config), default)) for config in (old, new)]
        except UserError:
            continue  # it cannot be left out
        if not without[0].same_as(without[1]):
            return owner, name, to_data(value)
    return None


def _with(config: ResolvedConfig, where: list[Place], value: object) -> ResolvedConfig:
    """A config with another value in some places."""
    data = to_data(config)
    for place in where:
        node = data
        for part in place[:-1]:
            node = node[int(part)] if isinstance(node, list) else node[part]
        node[place[-1]] = to_data(value)
    return load_config(ResolvedConfig, data)
