"""The identity of a run: a hash over plain data. It can be recomputed from stored records without jax."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

SCHEMA = 4
"""The version of the identity hash. It is incremented when a default changes, or when the computation for the same
config changes. Version 4 has another default of `model.init`. Since version 3, fields that equal their default are
omitted, so that adding a field with a default changes no identity. Versions 1 and 2 hash all fields."""
ID_LENGTH = 16

OBSERVATION_FIELDS = (
    "eval_every", "eval_windows", "checkpoint", "keep_checkpoints", "log_every", "sample", "metrics", "eval_metrics",
)  # fmt: skip
"""Fields of `train` that control how a run is observed; they do not affect its numbers."""

NUMERICS_FIELDS = ("compute",)
"""Fields of `train` that control how numbers are computed; they affect only the last bits of numbers."""

FIELDS_OUTSIDE_IDENTITY = {
    **dict.fromkeys(OBSERVATION_FIELDS, "how a run is observed"),
    **dict.fromkeys(NUMERICS_FIELDS, "how numbers are computed"),
}
"""Fields of `train` that are excluded from the identity and that arms must not change, by name. The values say what the
fields control."""

TOKENIZER_PLACES = {
    **dict.fromkeys(("file", "tiktoken", "sentencepiece"), ("path",)),
    "hub": ("name", "revision"),
    "start": ("folder", "revision"),
}
"""Fields of tokenizers that say where they are read, by kind. The fingerprint of the data covers their content."""


def canonical_json(data: Any) -> str:
    """Return plain data as JSON with sorted keys and no spaces, so that equal data gives equal text in every process.

    Raises:
        ValueError: if a number is not finite.
    """
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def computation_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a resolved config's data without the fields that do not affect its numbers.

    The omitted fields are the locations of the data, of its tokenizer and of the stored model that training starts
    from, and the fields that control observation and numerics.
    """
    dropped = {"task": ("source",), "train": ("start", *FIELDS_OUTSIDE_IDENTITY)}
    kept = {
        section: {name: value for name, value in fields.items() if name not in dropped.get(section, ())}
        for section, fields in config.items()
    }
    tokenizer = kept.get("task", {}).get("tokenizer")
    if isinstance(tokenizer, Mapping) and tokenizer.get("kind") in TOKENIZER_PLACES:
        places = TOKENIZER_PLACES[tokenizer["kind"]]
        kept["task"]["tokenizer"] = {name: value for name, value in tokenizer.items() if name not in places}
    return kept


def without_defaults(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return a resolved config's data without the fields that equal their default.

    Args:
        config: The resolved config as plain data.
        defaults: The default values by dotted path, as returned by `core.config.fields_at_default`.
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
    start: str = "",
) -> str:
    """Return the first 16 hexadecimal digits of a sha256 over everything that determines a run's numbers.

    Args:
        config: The resolved config as plain data.
        seed: The seed of the run.
        fingerprint: The fingerprint of the task's data.
        plugins: The sorted sha256 digests of the plug-ins whose kinds the config uses.
        defaults: The default values by dotted path (see `without_defaults`). Omit them for schemas 1 and 2.
        schema: The version of the hash.
        start: The digest of the stored model that training starts from; empty if parameters are drawn.
    """
    data = {
        "config": computation_fields(without_defaults(config, defaults or {})),
        "seed": seed,
        "task": fingerprint,
        "schema": schema,
        "plugins": plugins,
        **({"start": start} if start else {}),
    }
    return hashlib.sha256(canonical_json(data).encode()).hexdigest()[:ID_LENGTH]


def recorded_identity(record: Mapping[str, Any], fingerprint: str) -> str | None:
    """Return the identity computed from a run's record (`config.json`), or None if the record is incomplete."""
    # The first versions of schema 3 did not record it, but unlike those of schema 2 they recorded the defaults.
    schema = record.get("schema", 3 if "defaults" in record else 2)
    config, defaults = record.get("config"), record.get("defaults", {})
    if not config or not all(isinstance(part, Mapping) for part in (config, *config.values(), defaults)):
        return None
    try:
        about = record.get("plugins", []), defaults, schema, record.get("start", "")
        return identity(config, record.get("seed", -1), fingerprint, *about)
    except ValueError:  # a number is not finite, so the record is not a valid config
        return None
