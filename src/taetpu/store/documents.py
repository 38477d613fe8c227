"""JSON and YAML documents as bytes. Equal content gives equal bytes, so the write-once check can compare bytes."""

import json
import math
from copy import deepcopy
from functools import lru_cache
from io import StringIO
from typing import Any, TypeVar

import numpy as np
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from taetpu.core.errors import UserError

T = TypeVar("T")
DAMAGED = "Restore the file from a copy, or delete the file so that taetpu writes it again."
RETRAIN = "Restore the file from a copy, or train the run again with `taetpu run STUDY --retrain-damaged`."


def to_json(data: Any) -> bytes:
    """Encode as JSON with sorted keys, an indent of 2 and a final newline. NumPy scalars become plain numbers.

    Raises:
        ValueError: if a float is not finite. JSON cannot represent such numbers; `finite` replaces them by None.
    """
    text = json.dumps(data, sort_keys=True, indent=2, allow_nan=False, ensure_ascii=False, default=_plain)
    return f"{text}\n".encode()


def from_json(data: bytes, file: str) -> Any:
    """Decode the bytes that `to_json` returned.

    Args:
        data: the bytes.
        file: the path for error messages.

    Raises:
        UserError: if the bytes are not valid JSON. The error contains the line if it is known.
    """
    try:
        return json.loads(data)
    except ValueError as error:  # invalid JSON or UTF-8
        line = getattr(error, "lineno", None)
        raise UserError(f"not valid JSON: {error}", file=file, line=line, remedy=DAMAGED) from error


def finite(data: T) -> T:
    """Return a copy of data in which NaN and infinities, such as the metrics of a diverged run, are None."""
    return _finite(data)


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    if isinstance(data, float | np.floating):
        return float(data) if math.isfinite(data) else None
    return data


def to_yaml(data: dict[str, Any]) -> bytes:
    """Encode plain data as YAML 1.2. The keys keep their order."""
    text = StringIO()
    _yaml().dump(data, text)
    return text.getvalue().encode()


def from_yaml(data: bytes, file: str, remedy: str = DAMAGED) -> dict[str, Any]:
    """Decode the bytes that `to_yaml` returned.

    Args:
        data: the bytes.
        file: the path for error messages.
        remedy: the remedy for error messages.

    Raises:
        UserError: if the bytes are not a valid YAML mapping. The error contains the line if it is known.
    """
    try:
        document = deepcopy(_parsed(data))
    except (UnicodeDecodeError, YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        problem, line = getattr(error, "problem", error), mark.line + 1 if mark else None
        raise UserError(f"not valid YAML: {problem}", file=file, line=line, remedy=remedy) from error
    if not isinstance(document, dict):
        raise UserError(f"expected a mapping, got {type(document).__name__}", file=file, remedy=remedy)
    return document


@lru_cache(maxsize=8)
def _parsed(data: bytes) -> Any:
    """Parse YAML and cache the result, because a command reads the same study several times and parsing is slow."""
    return _yaml().load(data.decode())


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)  # the C parser reads YAML 1.1, where 1e-3 is a string
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # pyright: ignore[reportAttributeAccessIssue]
    yaml.width = 120
    yaml.allow_unicode = False  # unescaped line separators within keys would not survive the round trip
    return yaml


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"cannot encode {type(value).__name__} as JSON: {value!r}")
