"""The `trackers` of a study file. They are neither stored with the study nor part of a run's identity."""

from collections.abc import Mapping
from typing import Any

from taetpu.core.config import Component
from taetpu.core.loading import build_components
from taetpu.spec.schema import check_name


def load_trackers(given: Any) -> dict[str, Component]:
    """Return a study's trackers by name, from a list of kinds or from settings by name.

    Raises:
        UserError: If a kind or field is unknown, or a name is not a valid folder name.
    """
    if isinstance(given, Mapping):  # `name:` without settings means the defaults
        given = {name: {} if settings is None else settings for name, settings in given.items()}
    found = build_components("tracker", given, ("trackers",))
    for name in found:
        check_name(name, "tracker", ("trackers", name))
    return found
