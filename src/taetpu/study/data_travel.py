"""What of a study's data travels to other machines, and what they download themselves."""

from collections.abc import Iterator
from pathlib import Path

from taetpu.data.remote.sources import is_remote
from taetpu.spec.resolved_study import Study


def data_files(study: Study) -> set[Path]:
    """Return the files of a study's data that travel with it. The data are not read.

    Raises:
        UserError: if a file does not exist.
    """
    return {*study.item_files().values(), *(path for arm in study.arms for path in arm.config.task.files(study.folder))}


def fetched_sources(study: Study) -> list[str]:
    """Return the sources of a study's data that each machine downloads itself."""
    return sorted({name for arm in study.arms for name in arm.config.task.sources if is_remote(name)})


def describe_travel(study: Study, *, shared: bool = False) -> Iterator[str]:
    """Yield a line on the files of the study's data, and one on sources that are downloaded; without data, none.

    Args:
        study: The study.
        shared: Whether machines read the files under the same paths. Otherwise, they are copied.

    Raises:
        UserError: if a file of the data does not exist.
    """
    files = {path.resolve() for path in data_files(study)}
    fetched = fetched_sources(study)
    if files:
        size = sum(path.stat().st_size for path in files)
        what = f"data: {size:,} bytes in {len(files):,} file{'' if len(files) == 1 else 's'}"
        yield f"{what} {'must be under the same paths on every node' if shared else 'are copied'}"
    if fetched:
        yield f"data: {', '.join(fetched)}: downloaded by each machine, not copied"
