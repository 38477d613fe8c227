"""Where damaged files go: out of the way of everything that reads a study, and never deleted."""

from itertools import count

from taetpu.store.backend import Store

FOLDER = "damaged"


def set_aside(store: Store, study: str, key: str) -> str:
    """Move a key, or every key below it, to the study's folder `damaged`; where it can be opened there."""
    name = key.removeprefix(f"{study}/")
    for number in count(1):
        place = f"{study}/{FOLDER}/{number}/{name}"
        if not store.exists(place) and not store.list(place):
            store.move(key, place)
            return store.where(place)
    raise AssertionError  # `count` has no end
