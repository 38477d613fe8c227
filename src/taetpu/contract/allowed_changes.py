"""The parameters that an arm's config diff permits to be added, removed, reshaped or redrawn."""

from collections.abc import Mapping
from typing import Any

from taetpu.contract.traced_program import Computation
from taetpu.nn.block import LayerConfig
from taetpu.nn.lm import LMConfig
from taetpu.spec.study_config import ResolvedConfig

Place = tuple[str, ...]


def is_declared(name: str, diff: Mapping[str, Any], old: Computation, new: Computation, *, redrawn: bool) -> bool:
    """Return whether a config diff permits a parameter to change.

    Every parameter may change if the sizes of the model change, because components are built from the sizes. Otherwise,
    a parameter may be added, removed or reshaped if its component or `model.bias` changes. It may be redrawn if the
    model's `init`, `train.start` or a field of its component changes. It may also be redrawn if its component is
    replaced and the old or the new component declares `own_init`.

    Args:
        name: The logical name of the parameter.
        diff: The config diff, by path.
        old: The baseline's computation.
        new: The arm's computation.
        redrawn: Whether the parameter keeps its shape but starts from different values.
    """
    return _sizes(old) != _sizes(new) or any(_covers(path, name, old.config, new.config, redrawn) for path in diff)


def _sizes(run: Computation) -> tuple[Any, ...]:
    return run.config.model.dim, len(run.config.model.layers), run.source.interface, run.source.seq_len


def _covers(path: str, name: str, old: ResolvedConfig, new: ResolvedConfig, redrawn: bool) -> bool:
    section, *inside = path.split(".")
    if section != "model":
        return redrawn and path.startswith("train.start")
    if inside[0] in ("bias", "init"):
        return (inside[0] == "init") == redrawn
    parts = name.split(".")
    layer, homes = (parts[1], [parts[2:]]) if parts[0] == "layers" else (None, [parts])
    if parts[0] == "heads" and inside[0] != "heads":  # a head may have layers and norms with the model's settings
        layer, homes = inside[1] if inside[0] == "layers" else None, [parts[i:] for i in range(2, len(parts))]
    if inside[0] == "layers":
        if inside[1] != layer:
            return False
        inside = inside[2:]
    slot, *below = inside
    if slot == "same_as":
        return not redrawn
    homes = [home for home in homes if _belongs(home, slot)]
    if not redrawn:
        return bool(homes)
    before, after = (value_at(config, places(path, config)[0]) for config in (old, new))
    if not hasattr(after, "own_init"):  # the path names a field, and the field's component is one level up
        return any(home[1 : len(below)] == below[:-1] for home in homes)
    return (before.own_init or after.own_init) and any(home[1 : len(below) + 1] == below for home in homes)


def _belongs(home: list[str], slot: str) -> bool:
    """Return whether a parameter, named relative to its block or model, belongs to the component in a slot.

    The norm of a branch, such as `ffn_norm`, belongs to the norm, to the component of the branch and to the order of
    the branches. The parameters of a position component are inside the mixer that uses it. An order may contain
    branches.
    """
    if slot in ("norm", "residual"):
        return any(part == slot or part.endswith(f"_{slot}") for part in home[:2])
    if slot == "position":
        return bool({"position", "on_scores", "shared_scores"} & set(home))
    if slot == "order":
        return home[0] == slot or home[0].endswith("_norm")
    inner = home[1:] if home[0] == "order" else home
    return inner[0] in (slot, f"{slot}_norm", f"{slot}_residual")


def places(path: str, config: ResolvedConfig) -> list[Place]:
    """Return the places in a resolved config that a path of a diff refers to.

    The path of a layer setting without a layer number refers to a place in each layer. If the model has a setting of
    the same name, the path refers to that setting too.
    """
    section, *inside = parts = path.split(".")
    if section != "model" or inside[0] not in LayerConfig.model_fields:
        return [tuple(parts)]
    allowed = [("model", "layers", str(i), *inside) for i in range(len(config.model.layers))]
    return [*allowed, tuple(parts)] if inside[0] in LMConfig.model_fields else allowed


def value_at(config: Any, place: Place) -> Any:
    """Return the value at a place in a config; None if the config has no such place."""
    node = config
    for part in place:
        if isinstance(node, tuple):
            node = node[int(part)]
        else:
            node = node.get(part) if isinstance(node, Mapping) else getattr(node, part, None)
    return node
