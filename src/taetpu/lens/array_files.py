"""Files with arrays."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from taetpu.core.atomic_files import explain_os_error
from taetpu.core.output_files import check_output


def write_arrays(file: str | Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to a compressed `.npz` file.

    Raises:
        UserError: if the file has another ending or cannot be written.
    """
    path = check_output(file, [".npz"])
    with explain_os_error("write", path, option="-o"), path.open("wb") as stream:
        np.savez_compressed(stream, allow_pickle=False, **dict(arrays))
