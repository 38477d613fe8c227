"""Facts that are remembered in the cache folder of this machine, such as the time of a step."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pydantic_core import from_json

from taetpu.core.errors import UserError
from taetpu.core.jax_setup import cache_folder
from taetpu.store.backend import open_store
from taetpu.store.documents import to_json


def remember(key: str, facts: Mapping[str, Any]) -> None:
    """Store facts under a key. If the cache folder cannot be written, they are computed again next time."""
    with suppress(UserError):
        open_store(cache_folder()).write(key, to_json(dict(facts)), replace=True)


def recall(key: str) -> dict[str, Any] | None:
    """Return the facts under a key, or None if there are none or they are damaged."""
    try:
        facts = from_json(open_store(cache_folder()).read(key))
    except (UserError, ValueError):
        return None
    return facts if isinstance(facts, dict) else None
