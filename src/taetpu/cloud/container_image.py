"""Build container images for jobs with Cloud Build and store them in Artifact Registry.

An image is built from the project's Dockerfile and tagged with a hash of the project's files, so that the same content
is built only once.
"""

import hashlib
from pathlib import Path
from typing import Any

from taetpu.cloud.gcloud import Command, command, read
from taetpu.cloud.settings import Settings
from taetpu.cloud.transfer import list_files
from taetpu.core.errors import UserError

REPOSITORY = "taetpu"
BUILD_MINUTES, BUILD_RATE = 60, 0.006
"""Time limit for a build in minutes, and USD per minute for the default machine beyond the monthly free tier:
https://cloud.google.com/build/pricing, copied 2025-08-25."""


def address(settings: Settings, name: str, tag: str = "") -> str:
    """Return the address of an image in the project's repository."""
    place = f"{settings.default_region}-docker.pkg.dev/{settings.project}/{REPOSITORY}"
    return f"{place}/{name}{f':{tag}' if tag else ''}"


def content_tag(folder: Path) -> str:
    """Return a hash of the files in a folder, except those that git ignores.

    Raises:
        UserError: if the folder has no Dockerfile.
    """
    if not (folder / "Dockerfile").is_file():
        raise UserError("no Dockerfile", file=folder, remedy="Write a Dockerfile; docs/cloud.md has an example.")
    whole = hashlib.sha256()
    for name in list_files(folder):
        path = folder / name
        content = path.read_bytes() if path.is_file() else str(path.readlink()).encode()
        whole.update(f"{name}\0{path.lstat().st_mode:o}\0{len(content)}\0".encode() + content)
    return whole.hexdigest()[:16]


def repository_commands(settings: Settings) -> list[Command]:
    """Return the commands that create the repository, or an empty list if the repository exists."""
    place = {"location": settings.default_region}
    listed = read(command("artifacts", "repositories", "list", **place)) or []
    if any(repository["name"].rpartition("/")[2] == REPOSITORY for repository in listed):
        return []
    return [command("artifacts", "repositories", "create", REPOSITORY, repository_format="docker", **place)]


def build_command(settings: Settings, folder: Path, name: str, tag: str) -> Command:
    """Return the command that builds a folder's Dockerfile with Cloud Build and pushes the image."""
    options = {"tag": address(settings, name, tag), "timeout": f"{BUILD_MINUTES}m", "region": settings.default_region}
    return command("builds", "submit", str(folder), **options)


def list_images(settings: Settings) -> list[dict[str, Any]]:
    """Return the images in the repository, with tags and sizes."""
    return (
        read(command("artifacts", "docker", "images", "list", address(settings, "").rstrip("/"), include_tags=True))
        or []
    )


def delete_command(image: str) -> Command:
    """Return the command that deletes an image with its tags."""
    return command("artifacts", "docker", "images", "delete", image, delete_tags=True)
