"""Files with arrays."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from taetpu.core.errors import UserError


def write_arrays(file: str | Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to a compressed `.npz` file.

    Raises:
        UserError: if the file has another ending or cannot be written.
    """
    path = Path(file)
    if path.suffix != ".npz":
        raise UserError(f"unknown file format {path.suffix or path.name!r}", file=path, remedy="Use .npz.")
    try:
        with path.open("wb") as stream:
            np.savez_compressed(stream, allow_pickle=False, **dict(arrays))
    except OSError as error:
        raise UserError(f"cannot write: {error.strerror}", file=path, remedy="Choose another file with -o.") from None
