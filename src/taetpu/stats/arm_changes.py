"""Changes that arms make to the baseline."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from taetpu.core import short_paths
from taetpu.store.flat_config import COLUMNS, SETTINGS
from taetpu.store.frozen_study import FrozenStudy


def effective_overrides(overrides: Mapping[str, Any], idle: Collection[str]) -> dict[str, Any]:
    """Return the overrides except those at `idle` paths.

    An idle override repeats the baseline's value, for example in a cell of a grid.
    """
    return {path: value for path, value in overrides.items() if path not in idle}


def changes_of(study: FrozenStudy, arm: str) -> dict[str, Any]:
    """Return the effective overrides of an arm in a frozen study.

    In a study frozen by a version that did not record idle overrides, an override counts as idle if its value equals
    the baseline's value and the arm has other overrides.
    """
    overrides: Mapping[str, Any] = study["arms"][arm]
    if "idle" in study:
        return effective_overrides(overrides, study["idle"].get(arm, ()))
    return {
        path: value for path, value in overrides.items() if len(overrides) < 2 or value != value_at(study["base"], path)
    }


def baseline_settings(study: FrozenStudy) -> Mapping[str, Any]:
    """Return the baseline's config: the values of its columns for a table, and the settings for a program."""
    base = study["base"]
    return base.get(COLUMNS, base.get(SETTINGS, base))


def value_at(base: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path in nested mappings; None if the path does not exist.

    A mapping of columns has dotted paths as keys.
    """
    return base[path] if path in base else short_paths.value_at(base, path)


def format_changes(
    diff: Mapping[str, Any], base: Mapping[str, Any], resets: Mapping[str, Sequence[Any]] | None = None
) -> str:
    """Format overrides as `model.position: rope -> none`, omitting the old value if it is unset or unchanged.

    Args:
        diff: The overrides by path.
        base: The baseline's config.
        resets: The fields that change because an override replaces their slot, as `{path: [old, new]}`. They follow the
            override, as in `train.schedule: cosine -> wsd, warmup 5 -> 0`.
    """
    left = dict(resets or {})
    parts = []
    for path, value in diff.items():
        slot = f"{path.removesuffix('.kind')}."
        names = [name for name in left if name.startswith(slot)]
        fields = (f", {_format_reset(name.removeprefix(slot), left.pop(name))}" for name in names)
        parts.append(_format_change(path, value, base) + "".join(fields))
    return "; ".join([*parts, *(_format_reset(path, pair) for path, pair in _merge_layers(left).items())])


def _merge_layers(resets: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Return resets in which layers with equal changes share a path, such as `model.layers.0,2.ffn.mult`."""
    layers: dict[tuple[str, str], list[str]] = {}
    merged: dict[str, Sequence[Any]] = {}
    for path, pair in resets.items():
        if not path.startswith("model.layers."):
            merged[path] = pair
            continue
        number, _, rest = path.removeprefix("model.layers.").partition(".")
        layers.setdefault((rest, str(pair)), []).append(number)
    for (rest, _), numbers in layers.items():
        merged[f"model.layers.{','.join(numbers)}.{rest}"] = resets[f"model.layers.{numbers[0]}.{rest}"]
    return merged


def _format_reset(name: str, pair: Sequence[Any]) -> str:
    old, new = (_format_old(round_number(value)) for value in pair)
    return f"{name} {old} -> {new}"


def round_number(value: Any) -> Any:
    """Return a float with four significant digits, and any other value unchanged."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _format_change(path: str, value: Any, base: Mapping[str, Any]) -> str:
    path = path.removesuffix(".kind")
    old = value_at(base, path)
    new = _format_value(value)
    return f"{path}: {new}" if old is None or old == value else f"{path}: {_format_old(old)} -> {new}"


def _format_old(value: Any) -> str:
    return str(value["kind"]) if isinstance(value, Mapping) and "kind" in value else _format_value(value)


def _format_value(value: Any) -> str:
    """Format a component as its kind followed by its fields, and any other value as in YAML; `{}` is `none`."""
    if isinstance(value, Mapping):
        if not value:
            return "none"
        fields = [f"{key}={_format_value(part)}" for key, part in value.items() if key != "kind"]
        return str(value.get("kind", "")) + (f"({', '.join(fields)})" if fields else "")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_format_value, value))}]"
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
