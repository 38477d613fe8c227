"""The files below a folder that results are read from, and what the names of its folders say about a run."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taetpu.core.errors import UserError
from taetpu.core.json_files import check_regular, explain_unreadable

MAX_ENTRIES = 500_000
"""The maximum number of files and folders. A thousand runs of MLflow with fifty values each have 60,000."""
MAX_DEPTH = 100
"""The maximum number of folders inside each other."""

_SEED = re.compile(r"(?:^|(?<=/)|[-_,. ])seed[-_=. ]?(\d+)(?![\d.])", re.IGNORECASE)
_VERSION = re.compile(r"version_(\d+)")
_IGNORED = {"__pycache__", "node_modules"}


@dataclass(frozen=True)
class Tree:
    """The files below a folder.

    Attributes:
        root: The folder.
        folders: The names of the files in each folder that has some, by the folder's path relative to the root, which
            has the path "". Folders are in natural order: `version_10` comes after `version_2`.
    """

    root: Path
    folders: dict[str, list[str]]

    def path(self, folder: str, file: str = "") -> Path:
        """Return the path of a folder, or of a file in it."""
        return self.root / folder / file

    def where(self, folder: str) -> str:
        """Return the path of a folder for messages."""
        return printable(str(self.path(folder)))

    def with_file(self, name: str) -> list[str]:
        """Return the folders that have a file of this name."""
        return [folder for folder, files in self.folders.items() if name in files]


def walk(path: Path) -> Tree:
    """List the files below a folder, or a file itself. Links to folders and hidden folders are not followed.

    Raises:
        UserError: If nothing has this path, it is neither a folder nor a regular file, it cannot be read, or the folder
            contains more than `MAX_ENTRIES` files and folders.
    """
    with explain_unreadable(path):
        is_folder = path.is_dir()
    if not is_folder:
        check_regular(path, "Use the path of a folder with results.")
        return Tree(path.parent, {"": [path.name]})
    with explain_unreadable(path):
        folders = dict(_walk(path))
    return Tree(path, {folder: folders[folder] for folder in sorted(folders, key=natural_order)})


def _walk(root: Path) -> Iterator[tuple[str, list[str]]]:
    entries = 0

    def fail(error: OSError) -> None:
        raise error

    for place, subfolders, files in os.walk(root, onerror=fail):
        entries += len(files) + len(subfolders)
        relative = os.path.relpath(place, root)
        if entries > MAX_ENTRIES or relative.count(os.sep) >= MAX_DEPTH:
            problem = f"this folder contains more than {MAX_ENTRIES:,} files, or {MAX_DEPTH} folders inside each other"
            raise UserError(problem, file=root, remedy="Use a folder that contains only results.")
        artifacts = {"artifacts"} if "meta.yaml" in files else set()  # MLflow's copies of models and other files
        subfolders[:] = [name for name in subfolders if name[0] != "." and name not in _IGNORED | artifacts]
        if files:
            yield ("" if relative == "." else relative.replace(os.sep, "/")), sorted(files, key=natural_order)


def natural_order(path: str) -> list[tuple[str, int]]:
    """Return a key that sorts the numbers in names by value."""
    parts = re.findall(r"([^\d]*)(\d*)", path.replace("/", "\0"))  # a folder comes before `folder-2`
    return [(text, int(digits[:18] or -1)) for text, digits in parts]


def printable(name: str) -> str:
    """Return a name with `?` in place of bytes that are not UTF-8."""
    return name.encode(errors="replace").decode()


def describe_place(tree: Tree, run: str, name: str | None = None) -> dict[str, Any]:
    """Return the fields that a run's place and name give it.

    Args:
        tree: The tree.
        run: The run's folder in the tree.
        name: The name that tells the run from others; by default its folder. Empty for the name of the tree's root.

    Returns:
        `run`, the run's folder; `label`, the name without the part that names a seed, such as `wide` for `wide-seed3`
        or `wide/seed=3`; `label.1`, `label.2` and so on, its folders, if there are several; and `seed`, if exactly one
        part names a number such as `seed3`, `seed_3` or `seed=3`. In Lightning's folders, such as
        `wide/lightning_logs/version_3`, `version` is 3 and the label is `wide`.
    """
    root = tree.root.absolute().name
    fields: dict[str, Any] = {"run": printable(run or root)}
    parts = (run or root if name is None else name).split("/")
    if name is None:
        parts = [part for part in parts if part != "lightning_logs"]
        if parts and (version := _VERSION.fullmatch(parts[-1])):
            fields["version"] = int(version[1][:18])
            parts.pop()
    label = "/".join(parts)
    seeds = _SEED.findall(label)
    if len(seeds) == 1:
        fields["seed"] = int(seeds[0][:18])
        parts = [part.strip("-_,. ") for part in _SEED.sub("", label).split("/")]
    parts = [printable(part) for part in parts if part] or [printable(root)]
    levels = {f"label.{i + 1}": part for i, part in enumerate(parts)} if len(parts) > 1 else {}
    return fields | {"label": "/".join(parts)} | levels
