"""Learning rates and weight decays of groups of parameters (`train.optimizer.groups`)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax
from pydantic import NonNegativeFloat

from taetpu.core.config import Config, Traced
from taetpu.core.errors import UserError, suggest
from taetpu.nn.parameters import Parameter, Parameters

Transform = Callable[[Any, Any], optax.GradientTransformation]


class GroupConfig(Config):
    """The settings of a group of parameters."""

    match: str | None = None
    """A role, or a pattern of names of parameters such as `layers.0.*`; `none`: the name of the group."""
    lr: Annotated[NonNegativeFloat, Traced(neutral=1.0)] = 1.0
    """Factor on the learning rate. Groups that share a parameter multiply their factors."""
    weight_decay: Annotated[NonNegativeFloat | None, Traced(neutral=None)] = None
    """Weight decay of all parameters of the group, vectors included, of the optimizer's kind; `none`: as without the
    group.
    """

    def contains(self, group: str, role: str, name: str) -> bool:
        """Return whether a group of the given name contains the parameter of a role and a logical name."""
        wanted = self.match or group
        return role == wanted or fnmatchcase(name, wanted)


@dataclass(frozen=True)
class Settings:
    """The factor on the learning rate of an array, and its weight decay; None if the update rule decays the array.

    Both are numbers, or arrays that broadcast along the layer axis of a stack.
    """

    lr: Any
    weight_decay: Any


def with_groups(optimizer: Any, lr: Any, parameters: Parameters, transform: Transform) -> optax.GradientTransformation:
    """Return the update rule of an optimizer, with the settings of its parameter groups.

    The weight decay of a group is added to the updates as lr * weight_decay * parameter; for optimizers whose decay is
    an L2 penalty, weight_decay * parameter is added to the gradients. The factor on the learning rate multiplies the
    updates. With muP (`base_dim` in the optimizer), matrices between layers have a factor too.

    Args:
        optimizer: The config of the optimizer.
        lr: The learning rate.
        parameters: The parameters.
        transform: A function of the learning rate and a tree of booleans, which are True for the parameters with
            weight decay. It returns the update rule without groups.
    """
    base_dim = getattr(optimizer, "base_dim", None)
    if not optimizer.groups and base_dim is None:
        return transform(lr, parameters.decayed)
    weight_decay, decoupled = getattr(optimizer, "weight_decay", 0.0), getattr(optimizer, "decoupled_decay", True)

    def find_settings(parameter: Parameter) -> Settings:
        width_factor = None if base_dim is None or not parameter.hidden else base_dim / parameter.dim
        return array_settings(optimizer.groups, parameter, weight_decay, width_factor, decoupled)

    settings = jax.tree.map(find_settings, parameters.described)
    decayed = jax.tree.map(lambda setting, usual: usual and setting.weight_decay is None, settings, parameters.decayed)
    rule = optax.with_extra_args_support(transform(lr, decayed))

    def add_decay(factor: Any, updates: Any, params: Any) -> Any:
        def add(setting: Settings, update: Any, param: Any) -> Any:
            return update if setting.weight_decay is None else update + factor * setting.weight_decay * param

        return jax.tree.map(add, settings, updates, params)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        if decoupled:
            updates, state = rule.update(updates, state, params, **extra)
            updates = add_decay(-lr, updates, params)
        else:
            updates, state = rule.update(add_decay(1.0, updates, params), state, params, **extra)

        def change(setting: Settings, update: Any) -> Any:
            neutral = isinstance(setting.lr, float) and setting.lr == 1  # the program equals that without the group
            return update if neutral else update * setting.lr

        return jax.tree.map(change, settings, updates), state

    return optax.GradientTransformationExtraArgs(rule.init, update)


def array_settings(
    groups: Mapping[str, GroupConfig],
    parameter: Parameter,
    weight_decay: Any,
    width_factor: Any = None,
    decoupled: bool = True,
) -> Settings:
    """Return the settings of an array.

    Args:
        groups: The groups by name.
        parameter: The array.
        weight_decay: The weight decay of matrices that no group sets.
        width_factor: The factor of muP on the learning rate. Decoupled decay of a step does not depend on it.
        decoupled: Whether weight decay is decoupled from the gradients; else it is an L2 penalty.
    """
    usual = weight_decay if parameter.is_matrix else 0.0
    rates, decays = [], []
    for name in parameter.names:
        matching = [group for key, group in sorted(groups.items()) if group.contains(key, parameter.role, name)]
        rates.append([group.lr for group in matching])
        decays.append([group.weight_decay for group in matching if group.weight_decay is not None])
    rate = _along_layers([prod(matching, start=1.0) for matching in rates], rates, parameter)
    decay = _along_layers([matching[0] if matching else usual for matching in decays], decays, parameter)
    if width_factor is not None:
        rate = rate * width_factor
        if decoupled:
            return Settings(rate, decay / width_factor)
    return Settings(rate, decay if any(decays) else None)


def _along_layers(values: Sequence[Any], sources: Sequence[list[Any]], parameter: Parameter) -> Any:
    """Return one value if all layers have the same sources, else an array with a value for each layer."""
    if all(list(map(id, layer)) == list(map(id, sources[0])) for layer in sources):
        return values[0]
    stacked = jnp.stack([jnp.asarray(value, jnp.float32) for value in values])
    return stacked.reshape(-1, *[1] * (len(parameter.shape) - 1))


def check_groups(groups: Mapping[str, GroupConfig], parameters: Parameters) -> None:
    """Check that each group contains a parameter, and that no two groups set the weight decay of a parameter.

    Raises:
        UserError: with the remedy of the nearest roles and names. Its path is relative to the optimizer.
    """
    if not groups:
        return
    known = {name: parameter.role for parameter in jax.tree.leaves(parameters.described) for name in parameter.names}
    decaying: dict[str, str] = {}
    for key, group in groups.items():
        matching = [name for name, role in known.items() if group.contains(key, role, name)]
        path = ("groups", key, *(("match",) if group.match else ()))
        if not matching:
            wanted, names = group.match or key, {*known.values(), *known}
            problem = f"group {key!r}: no parameter of this model has the role or name {wanted!r}"
            raise UserError(problem, path=path, remedy=suggest(wanted, names))
        for name in matching if group.weight_decay is not None else ():
            if name in decaying:
                problem = f"groups {decaying[name]!r} and {key!r} both set the weight decay of {name}"
                raise UserError(problem, path=(*path[:2], "weight_decay"), remedy="Remove it from one of the groups.")
            decaying[name] = key
