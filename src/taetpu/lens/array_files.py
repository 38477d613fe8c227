"""Files with arrays."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from taetpu.core.errors import UserError
from taetpu.core.output_files import check_output


def write_arrays(file: str | Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to a compressed `.npz` file.

    Raises:
        UserError: if the file has another ending or cannot be written.
    """
    path = check_output(file, [".npz"])
    try:
        with path.open("wb") as stream:
            np.savez_compressed(stream, allow_pickle=False, **dict(arrays))
    except OSError as error:
        raise UserError(f"cannot write: {error.strerror}", file=path, remedy="Choose another file with -o.") from None
