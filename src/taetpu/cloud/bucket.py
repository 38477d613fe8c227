"""Build gcloud commands for the bucket that stores studies, and read its size and location."""

from collections.abc import Iterable
from typing import Any

from taetpu.cloud.gcloud import Command, command, read
from taetpu.cloud.names_and_labels import OWNER

STANDARD_RATE, RATE_DATE = 0.020, "2026-11-22"
"""USD per GB and month for standard storage in most US regions: https://cloud.google.com/storage/pricing."""
WRITERS = ("roles/storage.objectAdmin", "roles/storage.objectUser", "roles/storage.admin")
"""Roles with the permission to read, write and delete objects in a bucket."""


def create_command(name: str, region: str) -> Command:
    """Return the command that creates a bucket in the standard class.

    The bucket has no public access and no per-object ACLs (uniform bucket-level access). Soft delete is off, because it
    would store (and bill) each replaced checkpoint for another week.
    """
    return command(
        "storage", "buckets", "create", f"gs://{name}", location=region, uniform_bucket_level_access=True,
        public_access_prevention=True, default_storage_class="STANDARD", soft_delete_duration="0",
    )  # fmt: skip


def label_command(name: str, owner: str) -> Command:
    """Return the command that labels a bucket with its owner."""
    return command("storage", "buckets", "update", f"gs://{name}", update_labels=f"{OWNER}={owner}")


def delete_command(name: str) -> Command:
    """Return the command that deletes a bucket and its content."""
    return command("storage", "rm", f"gs://{name}", recursive=True)


def describe(name: str) -> dict[str, Any] | None:
    """Return Google's description of a bucket, or None if the project has no bucket with this name."""
    buckets = [bucket for bucket in read(command("storage", "buckets", "list")) or [] if bucket.get("name") == name]
    return buckets[0] if buckets else None


def far_zones(region: str, zones: Iterable[str]) -> list[str]:
    """Return the zones outside a bucket's region. Transfers between these zones and the bucket cost money."""
    return sorted({zone for zone in zones if zone.rpartition("-")[0] != region.lower()})


def objects_command(name: str) -> Command:
    """Return the command that lists the sizes of a bucket's objects as JSON. `du` and `ls` print no JSON."""
    return command("storage", "objects", "list", f"gs://{name}/**", format="json(size)")


def usage(name: str) -> int:
    """Return the total size of a bucket's objects in bytes."""
    return sum(int(blob["size"]) for blob in read(objects_command(name)) or [])


def grant_command(name: str, account: str) -> Command:
    """Return the command that lets a service account read and write a bucket's objects."""
    role = {"member": f"serviceAccount:{account}", "role": WRITERS[0]}
    return command("storage", "buckets", "add-iam-policy-binding", f"gs://{name}", **role)


def policy_command(name: str) -> Command:
    """Return the command that reads a bucket's IAM policy."""
    return command("storage", "buckets", "get-iam-policy", f"gs://{name}")
