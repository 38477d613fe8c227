"""One value set in a `taetpu.toml`, with everything else in it, comments too, left as it is."""

import json
import re
import tomllib
from pathlib import Path

from taetpu.cloud.settings import FILE, TABLE, find
from taetpu.core import disk
from taetpu.core.errors import UserError

Value = str | float | bool | list[str]


def write(field: str, value: Value, folder: Path | None = None) -> Path:
    """Set a field of the table `[cloud]` in the nearest file at or above a folder, or in a new one there; the file.

    Raises:
        UserError: the file cannot be read, is written so that the field is not found line by line, or is not writable.
    """
    folder = folder or Path.cwd()
    file = find(folder) or folder / FILE
    with disk.explained("read", file):
        old = file.read_text(encoding="utf-8") if file.exists() else ""
    new = _with(old, field, f"{field} = {json.dumps(value)}")
    try:
        before, after = tomllib.loads(old), tomllib.loads(new)
    except tomllib.TOMLDecodeError:
        before, after = {}, {}
    if after.get(TABLE, {}).get(field) != value or _without(before, field) != _without(after, field):
        remedy = f"write it there yourself: under [{TABLE}], {field} = {json.dumps(value)}"
        raise UserError(f"{field} could not be set", file=file, remedy=remedy)
    with disk.explained("write", file):
        disk.write_file(file, new.encode(), replace=True)
    return file


def _with(text: str, field: str, line: str) -> str:
    """The text with a line for the field: in the place of the one that sets it, else at the table's beginning."""
    lines = text.splitlines()
    header = next((i for i, one in enumerate(lines) if re.match(rf"\s*\[\s*{TABLE}\s*\]", one)), None)
    if header is None:
        return "\n".join([*lines, *([""] if lines else []), f"[{TABLE}]", line, ""])
    after = (i for i in range(header + 1, len(lines)) if re.match(r"\s*\[", lines[i]))
    end = next(after, len(lines))
    for i in range(header + 1, end):
        if re.match(rf"\s*{field}\s*=", lines[i]):
            lines[i] = line
            return "\n".join([*lines, ""])
    return "\n".join([*lines[: header + 1], line, *lines[header + 1 :], ""])


def _without(document: dict[str, dict[str, object]], field: str) -> dict[str, object]:
    """Everything but the field; a table that has nothing else is none."""
    table = {name: value for name, value in document.get(TABLE, {}).items() if name != field}
    return {name: value for name, value in {**document, TABLE: table}.items() if value}
