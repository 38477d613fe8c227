"""The reasons why changes to a config have no effect, for error messages."""

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
    "train.precision": "this device computes in float32 in any case",
    "train.loss_bound": "it only decides which runs count as diverged",
}


def explain_no_op(old: ResolvedConfig, new: ResolvedConfig, compute: Compute) -> tuple[str, str]:
    """Return the reason why two different configs compute the same results, and the remedy.

    Args:
        old: The config without the change.
        new: The config with the change.
        compute: A function that returns the computation of a config. It is used to find a setting that makes the change
            ineffective.
    """
    diff, run = difference(old, new), compute(new)
    structural = [path for path in diff if not _traced_numbers(path, run)]
    if not structural:
        path = next(iter(diff))
        return f"no trained or measured value depends on {path}", "Remove it."
    path = structural[0]
    before, after = diff[path]
    same_program = f"{path}: {format_brief(before)} -> {format_brief(after)} compiles to the same program"
    if path in KNOWN:
        return f"{same_program}: {KNOWN[path]}", "Remove it."
    if before is None or after is None:
        value = format_brief(before if after is None else after)
        return f"{same_program}: {value} is the default", "Remove it."
    hidden = _hidden_by(path, old, new, compute)
    if hidden:
        owner, name, value = hidden
        cause = f"{owner}.{name} is {format_value(value)} and overrides it"
        return f"{same_program}: {cause}", f"Remove it, or remove {owner}.{name}."
    return f"{same_program} with the same numbers", "Remove it, or check the code that should read it."


def _traced_numbers(path: str, run: Computation) -> list[str]:
    """Return the names of the traced numbers at a path of a diff."""
    return [name for name in (".".join(place) for place in places(path, run.config)) if name in run.numbers]


def _hidden_by(path: str, old: ResolvedConfig, new: ResolvedConfig, compute: Compute) -> tuple[str, str, object] | None:
    """Return the setting of the same component that makes the change ineffective; None if there is no such setting.

    Returns:
        The component's path, the setting's name and the setting's value.
    """
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
            continue  # the default value of this setting is invalid in one of the configs
        if not without[0].same_as(without[1]):
            return owner, name, to_data(value)
    return None


def _with(config: ResolvedConfig, where: list[Place], value: object) -> ResolvedConfig:
    """Return the config with a new value at the given places."""
    data = to_data(config)
    for place in where:
        node = data
        for part in place[:-1]:
            node = node[int(part)] if isinstance(node, list) else node[part]
        node[place[-1]] = to_data(value)
    return load_config(ResolvedConfig, data)
