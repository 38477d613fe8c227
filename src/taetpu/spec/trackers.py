"""The key `trackers` of a study file."""

from collections.abc import Mapping
from typing import Any

from taetpu.core.config import Component
from taetpu.core.config_parsing import build_components
from taetpu.spec.study_file import check_name


def read_trackers(given: Any) -> dict[str, Component]:
    """Return trackers by name, from a list of kinds or a mapping of names to settings."""
    if isinstance(given, Mapping):  # a name without settings selects the default settings
        given = {name: {} if settings is None else settings for name, settings in given.items()}
    trackers = build_components("tracker", given, ("trackers",))
    for name in trackers:
        check_name(name, "tracker", ("trackers", name))
    return trackers
