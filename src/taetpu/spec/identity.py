"""The identity of a run: equal for two ways of writing the same thing, different when a number could differ."""

import hashlib
import json
from typing import Any

from taetpu.core.config import components, to_data
from taetpu.spec.schema import ResolvedConfig
from taetpu.spec.train_config import OBSERVATION

SCHEMA = 2  # raised when the same config comes to mean another computation
LENGTH = 16


def canonical(data: Any) -> str:
    """Plain data as JSON with sorted keys and no spaces; equal data gives equal text in every process.

    Raises:
        ValueError: a number is not finite.
    """
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def run_id(config: ResolvedConfig, seed: int, fingerprint: str) -> str:
    """The first 16 hexadecimal digits of a sha256 over the resolved config, the seed and the task's fingerprint, and
    the source of the plug-ins whose kinds the config uses.

    Where a task reads its data (`source`) does not enter, what it reads does: that is the fingerprint. How a run is
    watched (`OBSERVATION`) does not enter either.
    """
    resolved = to_data(config)
    resolved["task"].pop("source", None)
    for field in OBSERVATION:
        del resolved["train"][field]
    data = {"config": resolved, "seed": seed, "task": fingerprint, "schema": SCHEMA, "plugins": plugin_sources(config)}
    return hashlib.sha256(canonical(data).encode()).hexdigest()[:LENGTH]


def plugin_sources(config: ResolvedConfig) -> list[str]:
    """sha256 of each plug-in that a run uses a kind of. How a run is watched (its metrics) does not count."""
    trained = config.model_copy(update={"train": config.train.model_copy(update={"metrics": {}})})
    return sorted({component.plugin for component in components(trained)} - {""})
