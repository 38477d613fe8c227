"""Sources that are no paths, by their form: `hf://...`, `gs://...`, or the name of a published corpus."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from taetpu.core.atomic_files import UNFINISHED, remove_unused
from taetpu.core.errors import UserError
from taetpu.core.jax_setup import cache_folder
from taetpu.data.remote import buckets, hub
from taetpu.data.remote.fetched import Fetched
from taetpu.data.remote.named import PUBLISHED, fetch_published


def is_remote(source: str) -> bool:
    """Return whether a source is no path, so that each machine downloads it itself."""
    return source in PUBLISHED or "://" in source


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
    if source.startswith(hub.SCHEME):
        return hub.fetch_dataset(source, endings)
    problem = f"{source!r} is an address that cannot be read"
    raise UserError(problem, remedy=f"Download its files, or write {hub.FORM}; or gs://BUCKET/PATH.")


def describe_origins(sources: Sequence[str], folder: Path, endings: Collection[str]) -> list[dict[str, Any]]:
    """Return facts about sources for which `is_remote` holds: where their files are from, and how many there are.

    Raises:
        UserError: see `fetch`.
    """
    fetched = [fetch(source, folder, endings) for source in sources if is_remote(source)]
    return [{**item.about, "files": sum(map(len, item.splits.values()))} for item in fetched]


def list_downloads() -> list[dict[str, Any]]:
    """Return what was downloaded into the cache: name (`corpora/NAME`, `buckets/NAME`), whether complete, and bytes."""
    rows = []
    for folder in sorted([*cache_folder().glob("corpora/*/"), *cache_folder().glob("buckets/*/")]):
        files = [file for file in folder.rglob("*") if file.is_file()]
        if not folder.name.startswith(UNFINISHED):
            name, partial = f"{folder.parent.name}/{folder.name}", any(file.suffix == ".part" for file in files)
            rows.append({"name": name, "complete": not partial, "bytes": sum(file.stat().st_size for file in files)})
    return rows


def delete_download(name: str) -> None:
    """Delete what `list_downloads` names. It is downloaded again when it is needed.

    Raises:
        UserError: if another process is downloading it.
    """
    remove_unused(cache_folder() / name, f"downloading {name}")
