"""`taetpu.toml` as text: a new one with every setting explained, and one with another value and all else as it was."""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taetpu.cloud.settings import FILE, TABLE, Settings, find
from taetpu.core import disk
from taetpu.core.errors import UserError

TEXTS: dict[str, str] = {
    "project": "the Google Cloud project (else GOOGLE_CLOUD_PROJECT)",
    "owner": "whose machines they are, a label on all of them (else your login name)",
    "stack": "the name of a TPU where a command says none",
    "zones": "where to look for TPUs, in this order; empty: wherever the chip is, in `region` first",
    "backend": '"gce" or "tpu-api"; empty: the one that suits the chip',
    "bucket": "where results go, without gs://",
    "region": "of the bucket and of images",
    "repository": "of images, in Artifact Registry",
    "service_account": "the e-mail address that machines act as; empty: the project's default one",
    "network": "that machines are in",
    "subnetwork": "empty: the network's own in each region",
    "external_ip": "true: machines have addresses of their own; false: reached through Google's proxy (IAP)",
    "max_hours": "after which a machine is deleted",
    "max_usd": "a machine that may cost more is refused",
    "max_usd_per_chip_hour": "a higher rate is refused",
    "idle_minutes": "without a job, progress or login after which a machine deletes itself; 0: never",
    "image": "the container that jobs run in, ...@sha256:...; empty: a virtual environment",
    "secrets": 'of Secret Manager that jobs get as variables, e.g. ["WANDB_API_KEY"]: names alone',
}

HEAD = """\
# What `taetpu tpu ...` works with here and in the folders below. Each may be set for a moment as TAETPU_PROJECT, ...
# There is no place for a key: sign in with `gcloud auth application-default login`.
"""
EXAMPLES = {"max_usd": 20.0, "max_usd_per_chip_hour": 3.0}
"""What stands, commented out, where a setting has no value by default."""


def text(values: Mapping[str, Any]) -> str:
    """A file with some values; all others stand in it as comments."""
    lines = [HEAD, f"[{TABLE}]"]
    for name, about in TEXTS.items():
        default = EXAMPLES.get(name, Settings.model_fields[name].default)
        mark = "" if name in values else "# "
        lines.append(f"# {about}\n{mark}{name} = {_toml(values.get(name, default))}")
    return "\n".join(lines) + "\n"


def write_new(folder: Path, content: str) -> Path:
    """Write a folder's file.

    Raises:
        UserError: there is one; it stays as it is.
    """
    path = folder / FILE
    with disk.explained("write", path):
        written = disk.write_file(path, content.encode(), replace=False)
    if not written:
        raise UserError("it is there already and stays as it is", file=path, remedy="edit it, or move it away first")
    return path


def write(name: str, value: Any, folder: Path | None = None) -> Path:
    """Set one value in the nearest file at or above a folder, or in a new one there; all else stays, comments too.

    Raises:
        UserError: it cannot be put into this file.
    """
    folder = folder or Path.cwd()
    path = find(folder) or folder / FILE
    with disk.explained("read", path):
        old = path.read_text(encoding="utf-8") if path.exists() else ""
    new = with_value(old, name, value) if _is_toml(old) else None
    if new is None:
        remedy = f"write below [{TABLE}]: {name} = {_toml(value)}"
        raise UserError(f"it is written so that {name} cannot be put into it", file=path, remedy=remedy)
    with disk.explained("write", path):
        disk.write_file(path, new.encode(), replace=True)
    return path


def with_value(old: str, name: str, value: Any) -> str | None:
    """A file's text with another value; None where that would change anything else in it."""
    lines = old.splitlines(keepends=True)
    heads = [at for at, line in enumerate(lines) if re.match(rf"\s*\[\s*{TABLE}\s*\]", line)]
    if not heads:
        lines = [*lines, *(["\n"] if lines else []), f"[{TABLE}]\n"]
        heads = [len(lines) - 1]
    own = [at for at in range(heads[0] + 1, len(lines)) if re.match(rf"\s*{name}\s*=", lines[at])]
    start = end = own[0] if own else heads[0] + 1
    while own and end < len(lines):
        end += 1
        if _is_toml("".join(lines[start:end])):
            break
    put = _put(lines[start:end], f"{name} = {_toml(value)}")
    before = "" if not lines[start - 1] or lines[start - 1].endswith("\n") else "\n"
    new = "".join([*lines[:start], before, *put, *lines[end:]])
    return new if _same_but(old, new, name, value) else None


def _put(replaced: list[str], line: str) -> list[str]:
    """A line in the place of others, whose comments stay: on one line behind it, else above it."""
    comments = [one.partition("#")[2].strip() for one in replaced if "#" in one]
    if len(replaced) == 1 and comments:
        before, _, comment = replaced[0].partition("#")
        return [f"{line}{before[len(before.rstrip()) :]}#{comment}"]
    return [*(f"# {comment}\n" for comment in comments), f"{line}\n"]


def _same_but(old: str, new: str, name: str, value: Any) -> bool:
    if not _is_toml(new):
        return False
    wanted = tomllib.loads(old)
    wanted[TABLE] = {**wanted.get(TABLE, {}), name: value}
    return tomllib.loads(new) == wanted


def _is_toml(part: str) -> bool:
    try:
        tomllib.loads(part)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _toml(value: Any) -> str:
    """A value as TOML writes it; its basic strings, numbers, booleans and lists are JSON's."""
    return json.dumps(list(value) if isinstance(value, tuple | list) else value, ensure_ascii=False)
