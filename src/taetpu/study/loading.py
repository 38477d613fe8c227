"""Load a study file whose models may be folders of Hugging Face."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taetpu.core.distributed import is_primary
from taetpu.core.streams import escape_controls
from taetpu.spec import loading
from taetpu.spec.resolved_study import Study
from taetpu.spec.sets import Sets


def load_study(file: Path | str | Mapping[str, Any], sets: Sets = ()) -> Study:
    """Read a study file, apply `--set` changes to its baseline, and resolve all arms. No data is read.

    Hugging Face models that the study names are converted into the cache, with a line on standard error.

    Args:
        file: The study file, or a dictionary with the content of a study file. Paths in a file (plug-ins, data) are
            relative to its folder, those in a dictionary to the current folder.
        sets: Changes to the baseline: a list of texts in the form of `--set` options, `["train.steps=3"]`, or a
            dictionary, `{"train.steps": 3}`.

    Returns:
        The resolved study.

    Raises:
        UserError: As `spec.loading.load_study`.
    """
    return loading.load_study(file, sets, _convert)


def _convert(name: str, revision: str | None) -> Path:
    """Return the folder of the converted model; see `lens.conversion.Converter`."""
    from taetpu.lens.conversion import Converter  # a tenth of the start of a command, and needed by few studies

    return Converter(_log)(name, revision)


def _log(line: str) -> None:
    """Print a line to standard error, once for all processes that train together."""
    if is_primary():
        print(escape_controls(line), file=sys.stderr)
