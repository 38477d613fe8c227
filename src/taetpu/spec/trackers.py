"""The key `trackers` of a study file. Trackers are not stored with the study and are not part of a run's identity."""

from collections.abc import Mapping
from typing import Any

from taetpu.core.config import Component
from taetpu.core.loading import build_components
from taetpu.spec.schema import check_name


def load_trackers(given: Any) -> dict[str, Component]:
    """Return a study's trackers by name.

    Args:
        given: The value of `trackers` in the study file: a list of kinds, or a mapping of names to settings.

    Raises:
        UserError: If a kind or field is unknown, or a name is not a valid folder name.
    """
    if isinstance(given, Mapping):  # a name without settings selects the default settings
        given = {name: {} if settings is None else settings for name, settings in given.items()}
    found = build_components("tracker", given, ("trackers",))
    for name in found:
        check_name(name, "tracker", ("trackers", name))
    return found
