"""Options of `taetpu run` that belong to the machine, not to the study: flags of XLA, dumps of programs, profiles."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

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
    typer.Option(
        metavar="N", help="Trace N steps of each pack after its first dispatch: STUDY's profile/<pack>/<time>/."
    ),
]


@contextmanager
def started(file: Path, root: str | None, xla: str = "", libtpu: str = "", dump: bool = False) -> Iterator[None]:
    """Set flags and start jax; in the end say where dumps are and how large.

    Args:
        file, root: the study's, whose folder dumps go to.

    Raises:
        UserError: a flag is not known.
    """
    from taetpu.core.flags import dump_to, set_flags, size_of
    from taetpu.core.runtime import prepare_jax

    set_flags(xla, libtpu)
    folder = dump_folder(file, root) if dump else None
    if folder is not None:
        dump_to(folder)
    prepare_jax()
    try:
        yield
    finally:
        if folder is not None:
            files, size = size_of(folder)
            told = f"dumps: {files} files, {size / 1e6:.1f} MB in {folder}" if files else "dumps: nothing was compiled"
            typer.echo(told, err=True)


def dump_folder(file: Path, root: str | None) -> Path | None:
    """`dumps/<time>/` in the folder of the study that a file describes; None where it describes none, which is told
    when it is loaded."""
    from taetpu.core.errors import UserError
    from taetpu.store.backend import default_root, open_store
    from taetpu.store.documents import from_yaml
    from taetpu.store.study import StudyFolder

    try:
        data = from_yaml(file.read_bytes(), str(file))
        folder = StudyFolder(open_store(default_root(root)), str(data["study"]))
    except (OSError, UserError, TypeError, KeyError):
        return None
    now = Path(folder.where).absolute() / "dumps" / datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S")
    names = (now, *(now.with_name(f"{now.name}-{number}") for number in range(2, 1000)))
    return next(name for name in names if not name.exists())
