"""Settings of runs as flat tables by dotted path, and the differences between these tables."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from taetpu.core.errors import UserError
from taetpu.store.documents import DAMAGED
from taetpu.store.runs import RunFolder

COLUMNS = "columns"
"""The only section in the config of a run that was read from a table: the values of the columns that name its arm."""
SETTINGS = "settings"
"""The section with the settings of a program in the config of its run, by dotted path."""
Settings = Mapping[str, Any]
"""Values by dotted path. As in a study file, a path without a layer number is a setting that all layers share."""


def flatten_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a run's config (`RunFolder.config()["config"]`) to a table such as `{"model.norm.kind": "rms"}`.

    A setting that differs between layers has one entry per layer, such as `model.layers.1.ffn.kind`. The config of a
    run that was read from a table has an entry per column, and that of a run of a program an entry per setting.
    """
    for section in (COLUMNS, SETTINGS):
        if section in config:
            return dict(config[section])
    model = dict(config.get("model", {}))
    layers = [dict(flatten(layer)) for layer in model.pop("layers", [])]
    table = dict(flatten({**config, "model": {**model, "num_layers": len(layers)}}))
    for path in dict.fromkeys(path for layer in layers for path in layer):
        values = [layer.get(path) for layer in layers]
        if all(value == values[0] for value in values):
            table[f"model.{path}"] = values[0]
        else:
            table |= {f"model.layers.{i}.{path}": value for i, value in enumerate(values)}
    return table


def read_settings(run: RunFolder) -> dict[str, Any]:
    """Read the settings of a run; see `flatten_config`.

    Raises:
        UserError: if the run's config is damaged.
    """
    about = run.config()
    if not isinstance(about, dict) or not isinstance(about.get("config"), dict):
        raise UserError("this is not the config of a run", file=f"{run.where}/config.json", remedy=DAMAGED)
    return flatten_config(about["config"])


def format_value(value: Any) -> str:
    """Format a setting's value as in a study file."""
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)


def differing_paths(tables: Sequence[Settings]) -> list[str]:
    """Return the paths whose values differ between tables, in order of first appearance.

    The fields of a component are compared only between tables with the same kind of component, because different kinds
    have different fields.
    """
    paths = dict.fromkeys(path for table in tables for path in table)
    return [
        path
        for path in paths
        if any(table.get(path) != group[0].get(path) for group in _group_by_kinds(path, tables) for table in group[1:])
    ]


def flatten(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted path and the value of every leaf of nested mappings."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _group_by_kinds(path: str, tables: Sequence[Settings]) -> Iterable[Sequence[Settings]]:
    """Group the tables by the kinds of the components that contain this path."""
    parts = path.split(".")
    kinds = [f"{'.'.join(parts[:i])}.kind" for i in range(1, len(parts))]
    groups: dict[tuple[Any, ...], list[Settings]] = {}
    for table in tables:
        groups.setdefault(tuple(table.get(kind) for kind in kinds if kind != path), []).append(table)
    return groups.values()
