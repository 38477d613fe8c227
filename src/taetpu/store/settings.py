"""The settings of runs as flat tables of dotted paths, and which of them differ."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from taetpu.core.errors import UserError
from taetpu.store.documents import DAMAGED
from taetpu.store.runs import RunFolder

Settings = Mapping[str, Any]
"""By dotted path; what all layers share stands without their numbers, as a study file would write it."""


def flatten_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A run's config (`RunFolder.config()["config"]`) as one flat table: `{"model.dim": 64, "model.norm.kind": "rms"}`.

    A setting that layers do not share stands under each layer's number: `model.layers.1.ffn.kind`.
    """
    model = dict(config.get("model", {}))
    layers = [dict(_flat(layer)) for layer in model.pop("layers", [])]
    found = dict(_flat({**config, "model": {**model, "num_layers": len(layers)}}))
    for path in dict.fromkeys(path for layer in layers for path in layer):
        values = [layer.get(path) for layer in layers]
        if all(value == values[0] for value in values):
            found[f"model.{path}"] = values[0]
        else:
            found |= {f"model.layers.{i}.{path}": value for i, value in enumerate(values)}
    return found


def read_settings(run: RunFolder) -> dict[str, Any]:
    """The settings of a run, as `settings` has them. Raises `UserError` where its config is damaged."""
    about = run.config()
    if not isinstance(about, dict) or not isinstance(about.get("config"), dict):
        raise UserError("this is not the config of a run", file=f"{run.where}/config.json", remedy=DAMAGED)
    return flatten_config(about["config"])


def format_value(value: Any) -> str:
    """A setting's value as a study file would write it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)


def differing_paths(tables: Sequence[Settings]) -> list[str]:
    """The paths whose values are not the same in all tables, in the order in which they first stand there.

    A field of a component is compared where the component's kind is the same: others come and go with the kind.
    """
    paths = dict.fromkeys(path for table in tables for path in table)
    return [path for path in paths if any(_differ(path, group) for group in _alike(path, tables))]


def _differ(path: str, tables: Sequence[Settings]) -> bool:
    return any(table.get(path) != tables[0].get(path) for table in tables[1:])


def _alike(path: str, tables: Sequence[Settings]) -> Iterable[Sequence[Settings]]:
    """The tables in groups whose components above this path are of the same kinds."""
    parts = path.split(".")
    kinds = [f"{'.'.join(parts[:i])}.kind" for i in range(1, len(parts))]
    groups: dict[tuple[Any, ...], list[Settings]] = {}
    for table in tables:
        groups.setdefault(tuple(table.get(kind) for kind in kinds if kind != path), []).append(table)
    return groups.values()


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
