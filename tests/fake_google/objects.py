"""Objects of the fake Cloud Storage: content and metadata in memory, and uploads."""

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from tests.fake_google.server import Answer
from tests.fake_google.world import Refused


@dataclass(frozen=True)
class Stored:
    """One object. `generation` names its content, `metageneration` counts changes of what is said about it.

    Attributes:
        created, updated: seconds since 1970 of its content and of its last change, by the cloud's clock.
    """

    bucket: str
    name: str
    data: bytes
    generation: int
    created: float
    updated: float
    metageneration: int = 1
    type: str = "application/octet-stream"
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def crc32c(self) -> str:
        import google_crc32c

        return base64.b64encode(google_crc32c.value(self.data).to_bytes(4, "big")).decode()

    @property
    def md5(self) -> str:
        return base64.b64encode(hashlib.md5(self.data).digest()).decode()

    def resource(self) -> dict[str, Any]:
        """Return the metadata of the JSON API, where 64-bit numbers are text."""
        return {
            "kind": "storage#object",
            "id": f"{self.bucket}/{self.name}/{self.generation}",
            "selfLink": f"/storage/v1/b/{self.bucket}/o/{quote(self.name, safe='')}",
            "name": self.name,
            "bucket": self.bucket,
            "generation": str(self.generation),
            "metageneration": str(self.metageneration),
            "contentType": self.type,
            "storageClass": "STANDARD",
            "size": str(len(self.data)),
            "md5Hash": self.md5,
            "crc32c": self.crc32c,
            "etag": f"{self.generation}/{self.metageneration}",
            "timeCreated": told(self.created),
            "updated": told(self.updated),
            "metadata": dict(self.metadata),
        }

    def media(self, wanted: str) -> Answer:
        """Return the content, or the part in a `Range` header."""
        headers = {
            "Content-Type": self.type,
            "ETag": f"{self.generation}/{self.metageneration}",
            "X-Goog-Generation": str(self.generation),
            "X-Goog-Metageneration": str(self.metageneration),
            "X-Goog-Stored-Content-Length": str(len(self.data)),
            "X-Goog-Hash": f"crc32c={self.crc32c},md5={self.md5}",
        }
        if not wanted:
            return Answer(200, headers, self.data)
        size, found = len(self.data), re.fullmatch(r"bytes=(\d*)-(\d*)", wanted)
        if found is None or found.groups() == ("", ""):
            raise Refused(3, f"invalid range {wanted!r}", "invalid")
        first, last = found.groups()
        start = int(first) if first else max(0, size - int(last))
        end = min(int(last) + 1 if first and last else size, size)
        if start >= size:
            raise Refused(
                3, f"the requested range {wanted!r} is not satisfiable", "requestedRangeNotSatisfiable", http=416
            )
        return Answer(206, headers | {"Content-Range": f"bytes {start}-{end - 1}/{size}"}, self.data[start:end])

    def described(self, about: Mapping[str, Any], now: float) -> "Stored":
        """Return the object with metadata changed as by PATCH: null deletes a field."""
        metadata = {**self.metadata, **(about.get("metadata") or {})}
        kept = {name: text for name, text in metadata.items() if text is not None}
        kind = about.get("contentType", self.type)
        return replace(self, metadata=kept, type=kind, updated=now, metageneration=self.metageneration + 1)


@dataclass
class Session:
    """A resumable upload in progress: its metadata, conditions and received bytes."""

    bucket: str
    about: Mapping[str, Any]
    query: Mapping[str, str]
    data: bytearray = field(default_factory=bytearray)

    def take(self, given: str, body: bytes) -> bytes | None:
        """Add a chunk by its `Content-Range`; return the content once it is complete."""
        found = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", given or f"bytes 0-{len(body) - 1}/{len(body)}")
        if found is None and body:
            raise Refused(3, f"invalid Content-Range {given!r}", "invalid")
        first, _, total = found.groups() if found else (None, None, "0")
        if first is not None:
            if int(first) > len(self.data):
                raise Refused(3, "a chunk is missing", "invalid", http=503)
            self.data[int(first) :] = body
        return bytes(self.data) if total != "*" and len(self.data) == int(total) else None

    def unfinished(self) -> Answer:
        """Return the received range, for a client that resumes."""
        return Answer(308, {"Range": f"bytes=0-{len(self.data) - 1}"} if self.data else {})


def multipart(kind: str, body: bytes) -> tuple[dict[str, Any], bytes]:
    """Return metadata and content of an upload in one request."""
    import json

    found = re.search(r'boundary="?([^";]+)', kind)
    if found is None:
        raise Refused(3, f"no boundary in {kind!r}", "invalid")
    mark = b"--" + found[1].encode()
    _, about, rest = body.split(mark, 2)
    head, _, data = rest.partition(b"\r\n\r\n")
    own = re.search(rb"(?i)content-type: *(.+)", head)
    types = {"contentType": own[1].decode().strip()} if own else {}
    return types | json.loads(about.partition(b"\r\n\r\n")[2]), data[: data.rindex(b"\r\n" + mark)]


def told(seconds: float) -> str:
    """Format a time as the API does, with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
