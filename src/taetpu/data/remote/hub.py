"""Datasets of the Hugging Face hub: `hf://datasets/OWNER/NAME[@REVISION][/PATH]`. They need the extra `hub`.

The form is that of huggingface_hub. A path may be a pattern. Without a path, `?config=NAME&split=NAME` may follow.
Files are downloaded by huggingface_hub into its own cache; no code of a dataset is run. The commit of a branch and the
list of its files are remembered, so that a dataset which was downloaded once is read without a network.
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

from taetpu.core.atomic_files import explain_os_error, write_file
from taetpu.core.errors import UserError
from taetpu.core.hub_errors import HubUnreachable, explain_hub_errors
from taetpu.core.jax_setup import cache_folder
from taetpu.core.progress import Progress, show_progress
from taetpu.data.digests import digest_file
from taetpu.data.remote.fetched import NAMED, Fetched, index_of, is_pattern
from taetpu.data.remote.splits import ending_of, find_splits, matching, visible

SCHEME = "hf://"
FORM = "hf://datasets/OWNER/NAME[@REVISION][/PATH], or without a path ?config=NAME&split=NAME"
ADDRESS = re.compile(
    r"hf://datasets/(?P<name>[\w.-]+/[\w.-]+)"
    r"(?:@(?P<revision>refs/convert/[\w.-]+|refs/pr/\d+|[^/?]+))?"
    r"(?:/(?P<path>.*)|\?(?P<query>.*))?"
)
CONVERTED = "refs/convert/parquet"
"""The revision in which the hub stores datasets as parquet, with a folder for each configuration and split."""
COMMIT = re.compile(r"[0-9a-f]{40}")
CARD = "README.md"


class Address(NamedTuple):
    """A parsed source.

    Attributes:
        name: owner and name of the dataset.
        revision: branch, tag or commit; None for the main branch.
        path: file or pattern; empty for the whole dataset.
        config: the configuration of the whole dataset, if it is named.
        split: the split of the whole dataset, if it is named.
    """

    name: str
    revision: str | None = None
    path: str = ""
    config: str | None = None
    split: str | None = None


@dataclass(frozen=True)
class File:
    """A file of a dataset: its size in bytes, its digest in git, and its SHA-256 if it is stored outside git."""

    size: int
    git: str
    sha256: str | None = None


@dataclass(frozen=True)
class Listing:
    """The files of a commit, by their paths."""

    commit: str
    files: dict[str, File]


def parse_address(source: str) -> Address:
    """Return the parts of a source.

    Raises:
        UserError: if the source has another form.
    """
    matched = ADDRESS.fullmatch(source)
    if matched is None:
        raise UserError(f"{source!r} is not an address of a dataset", remedy=f"Write {FORM}.")
    query = dict(parse_qsl(matched["query"] or "", keep_blank_values=True))
    if wrong := sorted({*query} - {"config", "split"}) or [key for key, value in query.items() if not value]:
        problem = f"{source!r} has {wrong[0]!r} after the question mark without a known name and a value"
        raise UserError(problem, remedy=f"Write {FORM}.")
    revision = matched["revision"] and unquote(matched["revision"])
    return Address(matched["name"], revision, (matched["path"] or "").strip("/"), query.get("config"),
                   query.get("split"))  # fmt: skip


def fetch_dataset(source: str, endings: Collection[str]) -> Fetched:
    """Return the files of a dataset, which are downloaded and verified when they are read.

    Args:
        source: the address.
        endings: endings of the files that can be read, for an address without a path.

    Raises:
        UserError: if the dataset, the revision, the configuration or a file does not exist, if the hub refuses or does
            not answer, or if a file has another content than the hub says.
    """
    address = parse_address(source)
    prefix = _fixed_folder(address.path)
    listing = list_files(address.name, address.revision, prefix)
    if address.path:
        splits = {NAMED: _named_files(address, listing, endings)}
        if not splits[NAMED]:
            problem = f"{address.name} has no file {address.path!r} to read"
            folder = f"https://huggingface.co/datasets/{address.name}/tree/{listing.commit}/{prefix}"
            raise UserError(problem, remedy=f"Use a path of {folder.rstrip('/')}.")
    else:
        splits = _own_splits(address, listing, endings)
    if address.split is not None:
        if address.split not in splits:
            problem = f"{address.name} has no split {address.split!r}"
            raise UserError(problem, remedy=f"Use one of {', '.join(splits)}.")
        splits = {NAMED: splits[address.split]}
    about = {"source": source, "commit": listing.commit}

    def open_files(files: Sequence[str]) -> list[tuple[str, Path]]:
        indices = [file for file in map(index_of, files) if file in listing.files]
        return download(address, listing, [*indices, *files])[len(indices) :]

    return Fetched(source, splits, about, open_files)


def _named_files(address: Address, listing: Listing, endings: Collection[str]) -> list[str]:
    """Return the files that a path names: a file, those of a pattern, or those of a folder that can be read."""
    if is_pattern(address.path):
        return matching([file for file in listing.files if not file.endswith(".idx")], [address.path])
    if address.path in listing.files:
        return [address.path]
    inside = [file for file in listing.files if file.startswith(f"{address.path}/")]
    return [file for file in sorted(visible(inside)) if ending_of(file, endings)]


def _own_splits(address: Address, listing: Listing, endings: Collection[str]) -> dict[str, list[str]]:
    """Return the files of each split of a whole dataset."""
    script = f"{address.name.partition('/')[2]}.py"
    if address.revision == CONVERTED:
        folders = sorted({file.partition("/")[0] for file in listing.files if "/" in file})
        card: dict[str, Any] = {"configs": [{"config_name": name, "data_dir": name} for name in folders]}
    else:
        card = _read_card(address, listing) if CARD in listing.files else {}
        if script in listing.files and not card.get("configs"):
            problem = f"{address.name} is read by its program {script}, which is not run"
            remedy = f"Use hf://datasets/{address.name}@{CONVERTED}, or name data files of the dataset."
            raise UserError(problem, remedy=remedy)
    return find_splits(sorted(listing.files), card, address.config, endings)


def _read_card(address: Address, listing: Listing) -> dict[str, Any]:
    """Return the metadata at the start of the dataset's README.md."""
    from ruamel.yaml import YAML, YAMLError

    ((_, path),) = download(address, listing, [CARD])
    lines = path.read_text(errors="replace").splitlines()
    if lines[:1] != ["---"] or "---" not in lines[1:]:
        return {}
    try:
        card = YAML(typ="safe", pure=True).load("\n".join(lines[1 : lines.index("---", 1)]))
    except (YAMLError, ValueError) as error:
        problem = f"the metadata in the {CARD} of {address.name} cannot be read: {str(error).splitlines()[0]}"
        raise UserError(problem, remedy="Name the dataset's files, e.g. .../data/*.parquet.") from None
    return card if isinstance(card, dict) else {}


@lru_cache(maxsize=64)
def list_files(name: str, revision: str | None, prefix: str) -> Listing:
    """Return the files of a dataset below a folder; without a network those that it had before.

    Raises:
        UserError: see `fetch_dataset`.
    """
    key = hashlib.sha256(json.dumps([name, revision, prefix]).encode()).hexdigest()[:32]
    remembered = cache_folder() / "hub" / f"{key}.json"
    if COMMIT.fullmatch(revision or "") and (known := _read_listing(remembered)):
        return known
    try:
        with _asking(name, revision):
            listing = _ask(name, revision, prefix)
    except HubUnreachable:
        if known := _read_listing(remembered):
            return known
        raise
    files = {path: [file.size, file.git, file.sha256] for path, file in listing.files.items()}
    with explain_os_error("remember the files of a dataset", remembered, option="TAETPU_CACHE"):
        content = {"name": name, "revision": revision, "commit": listing.commit, "files": files}
        write_file(remembered, json.dumps(content).encode(), replace=True)
    return listing


def _read_listing(file: Path) -> Listing | None:
    try:
        stored = json.loads(file.read_bytes())
        return Listing(stored["commit"], {path: File(*about) for path, about in stored["files"].items()})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _ask(name: str, revision: str | None, prefix: str) -> Listing:
    """Ask the hub for the commit of a revision and the files in it."""
    from huggingface_hub import HfApi, errors
    from huggingface_hub.hf_api import RepoFile

    commit = HfApi().dataset_info(name, revision=revision).sha or ""
    try:
        tree = HfApi().list_repo_tree(name, prefix or None, recursive=True, revision=commit, repo_type="dataset")
        listed = [entry for entry in tree if isinstance(entry, RepoFile)]
    except errors.EntryNotFoundError:
        problem = f"{name} has no folder {prefix!r}"
        folder = f"https://huggingface.co/datasets/{name}/tree/{commit}"
        raise UserError(problem, remedy=f"Use a path of {folder}.") from None
    return Listing(
        commit, {file.path: File(file.size, file.blob_id, file.lfs.sha256 if file.lfs else None) for file in listed}
    )


@contextmanager
def _asking(name: str, revision: str | None) -> Iterator[None]:
    """Explain errors of the hub, and the lack of its client, in the `with` block."""
    try:
        import huggingface_hub  # noqa: F401 # only whether it is installed
    except ImportError:
        problem = f"downloading the dataset {name!r} requires huggingface_hub, which is not installed"
        raise UserError(problem, remedy="Run: pip install 'taetpu[hub]'") from None
    page = f"https://huggingface.co/datasets/{name}/tree/{revision or 'main'}"
    instead = f"download the files of {page} on another machine, and name their folder"
    with explain_hub_errors(name, revision, instead, "dataset"):
        yield


def download(address: Address, listing: Listing, files: Sequence[str]) -> list[tuple[str, Path]]:
    """Return names and paths of files in the cache of the hub's client, where they are put if they are not there.

    Raises:
        UserError: see `fetch_dataset`.
    """
    with _asking(address.name, address.revision):
        from huggingface_hub import hf_hub_download

        paths = [
            (file, Path(hf_hub_download(address.name, file, repo_type="dataset", revision=listing.commit)))
            for file in files
        ]
    for file, path in paths:
        with show_progress("digest") as progress:
            _verify(path, listing.files[file], f"{address.name}@{listing.commit}/{file}", progress)
    return paths


def _verify(path: Path, stated: File, place: str, progress: Progress | None) -> None:
    """Raise `UserError` if a file has another size or content than the hub said."""
    size = path.stat().st_size
    wrong = f"{size:,} bytes, but the hub says {stated.size:,}" if size != stated.size else ""
    if not wrong and stated.sha256 and (digest := digest_file(path, progress)) != stated.sha256:
        wrong = f"the SHA-256 {digest}, but the hub says {stated.sha256}"
    if not wrong and not stated.sha256:
        content = path.read_bytes()
        digest = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        wrong = f"the digest {digest}, but the hub says {stated.git}" if digest != stated.git else ""
    if wrong:
        remedy = f"Delete {path.resolve()}, and run the same command again."
        raise UserError(f"the file {place} has {wrong}", file=path, remedy=remedy)


def _fixed_folder(path: str) -> str:
    """Return the folder in which all files lie that a path or pattern names; the root if it has no folder."""
    parts = PurePosixPath(path).parts
    fixed = next((i for i, part in enumerate(parts) if is_pattern(part)), max(len(parts) - 1, 0))
    return "/".join(parts[:fixed])
