"""What a run's identity is a hash of: plain data, so that it can be computed anew from what is stored, without jax."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

SCHEMA = 3
"""Raised when a default changes, or when the same config comes to mean another computation. Version 3 leaves fields at
their default out of the hash, so that a new field with a default changes no identity; 2 and before hash every field."""
UNRECORDED_SCHEMA = 2
"""The schema of runs whose record does not name one."""
ID_LENGTH = 16

OBSERVATION_FIELDS = ("eval_every", "eval_windows", "checkpoint", "keep_checkpoints", "log_every", "sample", "metrics")
"""Fields of `train` that say how a run is watched: no part of what it computes."""

NUMERICS_FIELDS = ("compute",)
"""Fields of `train` that say how its numbers are computed: these change them in their last bits alone."""

FIELDS_OUTSIDE_IDENTITY = {
    **dict.fromkeys(OBSERVATION_FIELDS, "how a run is watched"),
    **dict.fromkeys(NUMERICS_FIELDS, "how numbers are computed"),
}
"""What no identity knows of `train`, and arms may not differ in: each field with what it says."""


def canonical_json(data: Any) -> str:
    """Plain data as JSON with sorted keys and no spaces; equal data gives equal text in every process.

    Raises:
        ValueError: a number is not finite.
    """
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def computation_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved config's data without what its numbers do not depend on: where data is read, how a run is watched,
    how numbers are computed."""
    dropped = {"task": ("source",), "train": tuple(FIELDS_OUTSIDE_IDENTITY)}
    return {
        section: {name: value for name, value in fields.items() if name not in dropped.get(section, ())}
        for section, fields in config.items()
    }


def without_defaults(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved config's data without the fields that are at their default.

    Args:
        defaults: their values, by dotted path (`core.config.defaults`). A field with another value stays.
    """
    return _without(config, defaults, "")


def _without(data: Any, defaults: Mapping[str, Any], prefix: str) -> Any:
    if isinstance(data, Mapping):
        kept = {
            name: value
            for name, value in data.items()
            if (path := f"{prefix}{name}") not in defaults or canonical_json(value) != canonical_json(defaults[path])
        }
        return {name: _without(value, defaults, f"{prefix}{name}.") for name, value in kept.items()}
    if isinstance(data, list | tuple):
        return [_without(value, defaults, f"{prefix}{i}.") for i, value in enumerate(data)]
    return data


def identity(
    config: Mapping[str, Any],
    seed: int,
    fingerprint: str,
    plugins: Sequence[str],
    defaults: Mapping[str, Any] | None = None,
    schema: int = SCHEMA,
) -> str:
    """Return the first 16 hexadecimal digits of a sha256 over all that a run computes from.

    Args:
        config: its resolved config as plain data.
        fingerprint: of the data that its task reads.
        plugins: sha256 of each plug-in that it uses a kind of, sorted.
        defaults: the fields of the config that are at their default (see `stated`); schema 2 has none.
    """
    data = {
        "config": computation_fields(without_defaults(config, defaults or {})),
        "seed": seed,
        "task": fingerprint,
        "schema": schema,
        "plugins": plugins,
    }
    return hashlib.sha256(canonical_json(data).encode()).hexdigest()[:ID_LENGTH]


def recorded_identity(record: Mapping[str, Any], fingerprint: str) -> str | None:
    """Return the identity that follows from the record of a run (`config.json`); None where it has none."""
    schema = record.get("schema", UNRECORDED_SCHEMA)
    config, defaults = record.get("config"), record.get("defaults", {})
    if not config or not all(isinstance(part, Mapping) for part in (config, *config.values(), defaults)):
        return None
    try:
        return identity(config, record.get("seed", -1), fingerprint, record.get("plugins", []), defaults, schema)
    except ValueError:  # a number that is not finite, which no config has
        return None
