"""Sources that are no paths, by their form: `hf://...`, `gs://...`, or the name of a published corpus."""

from collections.abc import Collection
from pathlib import Path

from taetpu.core.errors import UserError
from taetpu.data.remote import buckets, hub
from taetpu.data.remote.fetched import Fetched
from taetpu.data.remote.named import PUBLISHED, fetch_published


def is_remote(source: str) -> bool:
    """Return whether a machine downloads a source itself, so that it does not travel with a study."""
    return source in PUBLISHED or source.startswith((hub.SCHEME, buckets.SCHEME))


def fetch(source: str, folder: Path, endings: Collection[str]) -> Fetched:
    """Return the files of a source for which `is_remote` holds. They are downloaded when they are read.

    Args:
        source: the source as in the study.
        folder: the folder of the study.
        endings: endings of the files that can be read, for sources that name no files.

    Raises:
        UserError: if the source does not exist, if a path has the same name, or without a network.
    """
    if source in PUBLISHED:
        if (folder / source).exists():
            problem = f"{source!r} is a published corpus, but also {folder / source}"
            raise UserError(problem, remedy=f"Write ./{source} for the path, or rename it.")
        return fetch_published(source)
    if source.startswith(buckets.SCHEME):
        return buckets.fetch_objects(source, endings)
    return hub.fetch_dataset(source, endings)
