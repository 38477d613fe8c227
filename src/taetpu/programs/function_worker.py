"""The process that calls a user's function once: `python -P -m taetpu.programs.function_worker CONFIG SEED FOLDER`.

CONFIG is a JSON file with the settings. The variable `TAETPU_FUNCTION` names the file with the function. What the
function reports is written to FOLDER, line by line. Exceptions end the process with a traceback, as in any script.
"""

import json
import os
import pickle
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

REPORTS = "reports.jsonl"
"""The file in the run's folder with an object for each report."""
FUNCTION = "TAETPU_FUNCTION"
"""The environment variable with the path of the pickled function."""


def iterate_reports(result: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the reports of a function: the mapping that it returns, or those that it yields.

    Raises:
        TypeError: If a report is not a mapping of names to numbers.
    """
    for report in [result] if isinstance(result, Mapping) or not hasattr(result, "__next__") else result:
        if not isinstance(report, Mapping):
            raise TypeError(
                f"the function must return a dict of numbers, or yield some, got {type(report).__name__}: {report!r}"
            )
        yield {str(name): convert_number(name, value) for name, value in report.items()}


def convert_number(name: Any, value: Any) -> int | float:
    """Return a number of any library, such as an array without axes, as one of Python.

    Raises:
        TypeError: If it is not a number.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        item = getattr(value, "item", None)  # PyTorch warns about `float` of a tensor with gradients
        return float(value if item is None else item())
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name!r} must be a number, got {type(value).__name__}: {value!r}") from None


def main(config: str, seed: str, folder: str) -> None:
    """Call the function with the settings and the seed."""
    train = pickle.loads(Path(os.environ.pop(FUNCTION)).read_bytes())
    settings = json.loads(Path(config).read_text(encoding="utf-8"))
    with (Path(folder) / REPORTS).open("a", encoding="utf-8") as file:
        for report in iterate_reports(train(settings, int(seed))):
            file.write(json.dumps(report) + "\n")
            file.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
