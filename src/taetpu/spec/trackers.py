"""The `trackers` of a study file: where its runs are shown. No part of what is frozen, nor of any run's identity."""

from collections.abc import Mapping
from typing import Any

from taetpu.core.config import Component
from taetpu.core.loading import build_components
from taetpu.spec.schema import check_name


def load_trackers(given: Any) -> dict[str, Component]:
    """A study's trackers by name, from a list of kinds or from settings by name.

    Raises:
        UserError: an unknown kind or field, or a name that cannot be a folder's.
    """
    if isinstance(given, Mapping):  # a name with nothing behind it means the defaults, and not that it is left out
        given = {name: {} if settings is None else settings for name, settings in given.items()}
    found = build_components("tracker", given, ("trackers",))
    for name in found:
        check_name(name, "tracker", ("trackers", name))
    return found
