"""Which files of a dataset on the hub belong to which split: by its card, else by the names of files and folders.

The rules are those of the package `datasets` (its modules `data_files` and `utils.metadata`), so that a dataset has the
same splits in both.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from taetpu.core.errors import UserError

Splits = dict[str, list[str]]
"""The paths of the files of each split."""
WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""Words in names of files and folders that assign them to a split."""
SHARDED = re.compile(r"data/(?P<split>\w+(?:\.\w+)*)-\d{5}-of-\d{5}[^/]*\.[^/]*")
IGNORED = {"README.md", "config.json", "dataset_info.json", "dataset_infos.json", "dummy_data.zip", "dataset_dict.json"}
BREAK = "[-._ 0-9]"
PREFERRED = (".parquet", ".arrow", ".jsonl", ".csv")
"""Endings by which a tie between two formats is decided."""


def find_splits(files: Sequence[str], card: Mapping[str, Any], config: str | None, endings: Collection[str]) -> Splits:
    """Return the files of each split of a dataset.

    Args:
        files: all paths of the dataset, relative to its root.
        card: the metadata at the start of its README.md.
        config: the name of a configuration that the card defines; by default, the only one or the default one.
        endings: endings of the files that can be read.

    Raises:
        UserError: if the configuration is unknown or must be named, or if no file can be read.
    """
    chosen = _choose_config(card, config)
    folder = str(chosen.get("data_dir") or "").strip("/")
    within = [file for file in files if not folder or file.startswith(f"{folder}/")]
    if stated := chosen.get("data_files"):
        splits = {name: matching(within, patterns, folder) for name, patterns in _stated(stated).items()}
        splits = {name: listed for name, listed in splits.items() if listed}
    else:
        splits = _by_name(visible(within), folder)
    splits = _of_one_format(splits, endings)
    if not splits:
        kinds = ", ".join(sorted({PurePosixPath(file).suffix for file in files} - {""})) or "nothing"
        problem = f"the dataset has {kinds}, but no file that ends in {', '.join(sorted(endings))}"
        raise UserError(problem, remedy="Name its files, e.g. .../data/*.parquet.")
    return splits


def matching(files: Sequence[str], patterns: Sequence[str], folder: str = "") -> list[str]:
    """Return the files that match any pattern, sorted; `*` stays within a folder, `**` does not.

    Args:
        files: paths relative to the root of the dataset.
        patterns: patterns relative to a folder of the dataset.
        folder: this folder.

    Raises:
        UserError: if a pattern has `**` within a name.
    """
    from fsspec.utils import glob_translate

    texts = [f"{folder}/{pattern}" if folder else pattern for pattern in patterns]
    try:
        expressions = [re.compile(glob_translate(text.removeprefix("./"))) for text in texts]
    except ValueError as error:
        remedy = "Use `**` for any folders, e.g. **/*.parquet."
        raise UserError(f"pattern {', '.join(map(repr, texts))}: {error}", remedy=remedy) from None
    return sorted(file for file in files if any(expression.match(file) for expression in expressions))


def _choose_config(card: Mapping[str, Any], config: str | None) -> Mapping[str, Any]:
    """Return the description of a configuration in a card; empty if the card has none."""
    try:
        known = {str(entry["config_name"]): entry for entry in card.get("configs") or []}
    except (TypeError, KeyError) as error:
        problem = f"the list `configs` in the README.md of the dataset is damaged: {error!r}"
        raise UserError(problem, remedy="Name the dataset's files, e.g. .../data/*.parquet.") from None
    listed = ", ".join(known)
    if config is not None:
        if config not in known:
            remedy = f"Use one of {listed}." if known else "Remove `config`, or name the dataset's files."
            raise UserError(f"the dataset has no config {config!r}", remedy=remedy)
        return known[config]
    defaults = [name for name, entry in known.items() if name == "default" or entry.get("default")]
    if len(known) > 1 and len(defaults) != 1:
        remedy = f"Add ?config=NAME to the source, where NAME is one of {listed}."
        raise UserError(f"the dataset has {len(known)} configs", remedy=remedy)
    return known[(defaults or [*known])[0]] if known else {}


def _stated(data_files: Any) -> dict[str, list[str]]:
    """Return the patterns of each split from the field `data_files` of a card."""
    entries: Any = [data_files] if isinstance(data_files, str) else data_files
    try:
        if all(isinstance(entry, str) for entry in entries):
            return {"train": [*entries]}
        paths: dict[str, Any] = {str(entry["split"]): entry["path"] for entry in entries}
    except (TypeError, KeyError):
        problem = f"`data_files` in the README.md of the dataset is damaged: {str(data_files)[:80]!r}"
        raise UserError(problem, remedy="Name the dataset's files, e.g. .../data/*.parquet.") from None
    return {name: [path] if isinstance(path, str) else [*path] for name, path in paths.items()}


def visible(files: Sequence[str]) -> list[str]:
    """Return the files that are data: no hidden ones, none in folders such as `__pycache__`, no descriptions."""
    parts = {file: PurePosixPath(file).parts for file in files}
    return [
        file
        for file, (*folders, name) in parts.items()
        if name not in IGNORED
        and not any(part.startswith(".") for part in (*folders, name))
        and not any(part.startswith("__") for part in folders)
    ]


def _by_name(files: Sequence[str], folder: str) -> Splits:
    """Return the files of each split by the names of shards, else of folders, else of files; else all for training."""
    inside = {file: file.removeprefix(f"{folder}/") for file in files} if folder else {file: file for file in files}
    splits: Splits = {}
    for file, path in inside.items():
        if matched := SHARDED.fullmatch(path):
            splits.setdefault(matched["split"], []).append(file)
    if splits:
        return {name: sorted(splits[name]) for name in sorted(splits, key=lambda name: (name not in WORDS, name))}
    for in_folder in (True, False):
        for split, words in WORDS.items():
            end = f"(?:{BREAK}|$)" if in_folder else BREAK
            named = re.compile(f"(?:^|{BREAK})(?:{'|'.join(words)}){end}")
            listed = [
                file
                for file, path in inside.items()
                if any(map(named.search, PurePosixPath(path).parts[:-1] if in_folder else [PurePosixPath(path).name]))
            ]
            if listed:
                splits[split] = sorted(listed)
        if splits:
            return splits
    return {"train": sorted(files)} if files else {}


def _of_one_format(splits: Splits, endings: Collection[str]) -> Splits:
    """Return the readable files of each split, only those of the dataset's most frequent format."""
    kinds = {file: kind for listed in splits.values() for file in listed if (kind := ending_of(file, endings))}
    counts = Counter(kinds.values())
    if not counts:
        return {}
    best = max(counts, key=lambda kind: (counts[kind], *(kind == preferred for preferred in PREFERRED), kind))
    chosen = {name: [file for file in listed if kinds.get(file) == best] for name, listed in splits.items()}
    return {name: listed for name, listed in chosen.items() if listed}


def ending_of(file: str, endings: Collection[str]) -> str | None:
    """Return the ending of a file that can be read, without that of a compression; None for other files."""
    suffixes = [suffix.lower() for suffix in PurePosixPath(file).suffixes]
    if suffixes and suffixes[-1] in (".gz", ".zst"):
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in endings else None
