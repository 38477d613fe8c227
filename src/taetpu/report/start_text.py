"""Sentences on the stored models that arms start from: which parameters are loaded, and which are drawn."""

from collections.abc import Mapping
from typing import Any

PARTS = {
    "vocabulary": "drawn, because `vocabulary` is drawn",
    "outputs": "drawn, because the model has other outputs",
    "drawn": "drawn, because the model has none of this name and shape",
    "unused": "in the model, but unused",
    "cut": "loaded up to the sequence length",
}
"""What happens to parameters, by the name of their list in `StoredParameters.facts`."""


def describe_starts(starts: Mapping[str, Mapping[str, Any] | None]) -> list[str]:
    """Return what arms load from stored models, once for all arms of which it is the same.

    Args:
        starts: The facts of each arm (see `StoredParameters.facts`); None if all its parameters are drawn.
    """
    arms: dict[str, list[str]] = {}
    for arm, start in starts.items():
        if start:
            note = f"{start['loaded']} array{'s' * (start['loaded'] != 1)} loaded from {start['name']}"
            note += "".join(f"; {what}: {', '.join(start[part])}" for part, what in PARTS.items() if start.get(part))
            arms.setdefault(note, []).append(arm)
    if arms and (drawn := [arm for arm, start in starts.items() if not start]):
        arms["all parameters drawn"] = drawn
    return [f"{', '.join(names)}: {note}" for note, names in arms.items()]
