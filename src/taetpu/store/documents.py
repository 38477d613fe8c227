"""JSON and YAML documents as bytes. Equal content gives equal bytes: that is what "written once" compares."""

import json
import math
from copy import deepcopy
from functools import lru_cache
from io import StringIO
from typing import Any

import numpy as np
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from taetpu.core.errors import UserError

DAMAGED = "it was changed or cut from outside; restore it from a copy, or delete it to have it made again"

RETRAIN = "restore it from a copy, or train the run again: `taetpu run STUDY --retrain-damaged`"


def to_json(data: Any) -> bytes:
    """Sorted keys, two spaces of indent, a newline at the end. NumPy scalars become plain numbers.

    Raises:
        ValueError: a float is not finite, which JSON cannot say; see `finite`.
    """
    text = json.dumps(data, sort_keys=True, indent=2, allow_nan=False, ensure_ascii=False, default=_plain)
    return f"{text}\n".encode()


def from_json(data: bytes, file: str) -> Any:
    """Read what `to_json` wrote.

    Raises:
        UserError: `file` is damaged, with the line.
    """
    try:
        return json.loads(data)
    except json.JSONDecodeError as error:
        raise UserError(f"not valid JSON: {error.msg}", file=file, line=error.lineno, remedy=DAMAGED) from error
    except UnicodeDecodeError as error:
        raise UserError("not valid UTF-8", file=file, remedy=DAMAGED) from error


def finite(data: Any) -> Any:
    """The same data with null for every NaN and infinity, as a diverged run's metrics have them."""
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    if isinstance(data, float | np.floating):
        return float(data) if math.isfinite(data) else None
    return data


def to_yaml(data: dict[str, Any]) -> bytes:
    """Plain data as YAML 1.2, keys in their given order."""
    text = StringIO()
    _yaml().dump(data, text)
    return text.getvalue().encode()


def from_yaml(data: bytes, file: str, remedy: str = DAMAGED) -> dict[str, Any]:
    """Read what `to_yaml` wrote.

    Raises:
        UserError: `file` is damaged, with the line where it is known.
    """
    try:
        document = deepcopy(_parsed(data))
    except UnicodeDecodeError as error:
        raise UserError("not valid UTF-8", file=file, remedy=remedy) from error
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise UserError(f"not valid YAML: {error.problem}", file=file, line=line, remedy=remedy) from error
    except YAMLError as error:
        raise UserError(f"not valid YAML: {error}", file=file, remedy=remedy) from error
    if not isinstance(document, dict):
        raise UserError(f"expected a mapping, found {type(document).__name__}", file=file, remedy=remedy)
    return document


@lru_cache(maxsize=8)
def _parsed(data: bytes) -> Any:
    """Commands read a study again and again, and a parser in Python takes a tenth of a second."""
    return _yaml().load(data.decode())


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)  # the C parser is YAML 1.1, where 1e-3 is a string
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # pyright: ignore[reportAttributeAccessIssue]
    yaml.width = 120
    yaml.allow_unicode = False  # escapes what is not ASCII: line separators within keys would not come back otherwise
    return yaml


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no JSON: {value!r}")
