"""SHA-256 digests that show whether stored documents and folders are intact.

A sealed document contains the digest of its content. A sealed folder contains a document with the digests of its files.
Documents that the first versions wrote have no digest and are read without verification.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from taetpu.core import atomic_files
from taetpu.core.errors import UserError
from taetpu.store.documents import DAMAGED, from_json, to_json

FOLDER = "digests.json"
"""The file in a sealed folder that lists the sizes and digests of all other files."""
_SEAL, _KIND = "digest", "sha256:"


class Damaged(UserError):
    """A stored file differs from the data that was written."""


def digest(data: bytes) -> str:
    """Return the SHA-256 digest of data as `sha256:` and 64 hexadecimal digits."""
    return _KIND + hashlib.sha256(data).hexdigest()


def file_digest(path: Path) -> str:
    """Return the digest of a file, in the format of `digest`, without loading the whole file into memory."""
    with open(path, "rb") as file:
        return _KIND + hashlib.file_digest(file, "sha256").hexdigest()


def seal(data: dict[str, Any]) -> bytes:
    """Encode a JSON document with the digest of its content.

    Raises:
        ValueError: if a float is not finite.
    """
    return to_json({**data, _SEAL: digest(to_json(data))})


def unseal(
    data: bytes, file: str, remedy: str = DAMAGED, required: Callable[[Any], bool] = lambda document: False
) -> Any:
    """Decode a document and verify its digest, if it has one.

    Args:
        data: the bytes that `seal` returned, or a document without a seal.
        file: the path for error messages.
        remedy: the remedy for error messages.
        required: returns whether a document without a digest is damaged.

    Raises:
        Damaged: if the document cannot be read, its content does not match its digest, or a required digest is missing.
    """
    try:
        document = from_json(data, file)
    except UserError as error:
        raise Damaged(error.problem, file=file, line=error.line, remedy=remedy) from error
    if not isinstance(document, dict):
        return document
    stated = document.pop(_SEAL, None)
    # A digest under any other key means that the key `digest` was damaged.
    misnamed = any(isinstance(value, str) and value.startswith(_KIND) for value in document.values())
    if misnamed or (stated is not None and stated != digest(to_json(document))):
        raise Damaged("the content of this file does not match its checksum", file=file, remedy=remedy)
    if stated is None and required(document):
        raise Damaged("this file has no checksum", file=file, remedy=remedy)
    return document


def seal_folder(folder: Path, **about: Any) -> None:
    """Write the digests of a folder's files to `digests.json` in the folder.

    Args:
        folder: the folder.
        about: values to store with the digests. They must be JSON data.
    """
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "digest": file_digest(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / FOLDER
    }
    atomic_files.write_file(folder / FOLDER, seal({"files": files, **about}), replace=True)


def unseal_folder(folder: Path) -> dict[str, Any] | None:
    """Verify every file of a sealed folder.

    Returns:
        The `about` values that were passed to `seal_folder`; None for a folder without digests.

    Raises:
        Damaged: if a file is missing or differs from its digest, or the folder is empty.
    """
    with atomic_files.explain_os_error("read", folder):
        if not any(path.is_file() for path in folder.rglob("*")):
            raise Damaged("this folder is empty", file=folder)
        if not (folder / FOLDER).is_file():
            return None
        document = unseal((folder / FOLDER).read_bytes(), str(folder / FOLDER))
        if not isinstance(document, dict) or not isinstance(document.get("files"), dict):
            raise Damaged("this file does not list the files of its folder", file=folder / FOLDER)
        for name, stated in document.pop("files").items():
            if not (folder / name).is_file():
                raise Damaged("this file is missing", file=folder / name)
            if file_digest(folder / name) != stated["digest"]:
                raise Damaged("the content of this file does not match its checksum", file=folder / name)
    return document
