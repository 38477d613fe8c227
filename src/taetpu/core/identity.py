"""What a run's identity is a hash of: plain data, so that it can be computed anew from what is stored, without jax."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

SCHEMA = 2  # raised when the same config comes to mean another computation
LENGTH = 16

OBSERVATION = ("eval_every", "eval_windows", "checkpoint", "keep_checkpoints", "log_every", "sample", "metrics")
"""Fields of `train` that say how a run is watched: no part of what it computes."""

COMPUTATION = ("compute",)
"""Fields of `train` that say how its numbers are computed: these change them in their last bits alone."""

BESIDE = {
    **dict.fromkeys(OBSERVATION, "how a run is watched"),
    **dict.fromkeys(COMPUTATION, "how numbers are computed"),
}
"""What no identity knows of `train`, and arms may not differ in: each field with what it says."""


def canonical(data: Any) -> str:
    """Plain data as JSON with sorted keys and no spaces; equal data gives equal text in every process.

    Raises:
        ValueError: a number is not finite.
    """
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def computed(config: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved config's data without what its numbers do not depend on: where data is read, how a run is watched,
    how numbers are computed."""
    dropped = {"task": ("source",), "train": tuple(BESIDE)}
    return {
        section: {name: value for name, value in fields.items() if name not in dropped.get(section, ())}
        for section, fields in config.items()
    }


def identity(config: Mapping[str, Any], seed: int, fingerprint: str, plugins: Sequence[str]) -> str:
    """The first 16 hexadecimal digits of a sha256 over all that a run computes from.

    Args:
        config: its resolved config as plain data.
        fingerprint: of the data that its task reads.
        plugins: sha256 of each plug-in that it uses a kind of, sorted.
    """
    data = {"config": computed(config), "seed": seed, "task": fingerprint, "schema": SCHEMA, "plugins": plugins}
    return hashlib.sha256(canonical(data).encode()).hexdigest()[:LENGTH]
