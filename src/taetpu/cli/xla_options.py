"""Options of `taetpu run` that belong to the machine, not to the study: flags of XLA, dumps of programs, profiles."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taetpu.cli.options import integer

if TYPE_CHECKING:
    from taetpu.store.backend import Store

XlaFlags = Annotated[
    str,
    typer.Option(
        metavar='"--xla_..."', help="Flags for XLA, besides those in XLA_FLAGS; tried before anything starts."
    ),
]
LibtpuArgs = Annotated[
    str, typer.Option(metavar='"--xla_tpu_..."', help="Flags for libtpu, besides those in LIBTPU_INIT_ARGS.")
]
Dump = Annotated[
    bool,
    typer.Option("--dump", help="Keep what XLA writes about each program that it compiles: STUDY's dumps/<time>/."),
]
Profiled = Annotated[
    int,
    integer(metavar="N", help="Trace N steps of each pack after its first dispatch: STUDY's profile/<pack>/<time>/."),
]


@contextmanager
def started(file: Path, root: str | None, xla: str = "", libtpu: str = "", dump: bool = False) -> Iterator[None]:
    """Set flags and start jax; in the end say where dumps are and how large.

    Args:
        file, root: the study's, whose folder dumps go to.

    Raises:
        UserError: a flag is not known.
    """
    from taetpu.core.flags import enable_dumps, folder_size, set_flags
    from taetpu.core.runtime import prepare_jax

    set_flags(xla, libtpu)
    dumps = dumps_of(file, root) if dump else None
    if dumps is not None:
        enable_dumps(dumps.folder)
    prepare_jax()
    try:
        yield
    finally:
        if dumps is not None:
            files, size = folder_size(dumps.folder)
            dumps.keep()
            told = f"dumps: {files} files, {size / 1e6:.1f} MB in {dumps.where}"
            typer.echo(told if files else "dumps: nothing was compiled", err=True)


@dataclass(frozen=True)
class Dumps:
    """`dumps/<time>/` in a study's folder, and where that is on this machine's disk."""

    store: "Store"
    key: str
    folder: Path

    @property
    def where(self) -> str:
        return self.store.where(self.key)

    def keep(self) -> None:
        """Store what was dumped; a folder without anything in it goes."""
        if any(self.folder.iterdir()):
            self.store.save_folder(self.key)
        else:
            self.folder.rmdir()


def dumps_of(file: Path, root: str | None) -> Dumps | None:
    """Where the dumps of the study go that a file describes; None where it describes none, which is told when it is
    loaded."""
    from taetpu.core.errors import UserError
    from taetpu.store.backend import default_root, open_store
    from taetpu.store.documents import from_yaml
    from taetpu.store.study import StudyFolder

    if not file.is_file():
        return None
    try:
        data = from_yaml(file.read_bytes(), str(file))
        folder = StudyFolder(open_store(default_root(root)), str(data["study"]))
    except (OSError, UserError, TypeError, KeyError):
        return None
    now = f"{folder.name}/dumps/{datetime.now(UTC).strftime('%Y-%m-%dT%H-%M-%S')}"
    keys = (now, *(f"{now}-{number}" for number in range(2, 1000)))
    key = next(key for key in keys if not folder.store.list(key))
    return Dumps(folder.store, key, folder.store.folder(key))
