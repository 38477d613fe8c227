"""The JSON API of Cloud Storage, as far as Google's client and its transfer manager ask it.

What is kept as it is given: a bucket's location, labels, access, lifecycle and soft delete (which is a setting alone:
nothing comes back). Preconditions on generations hold, and checksums are right. There are no versions and no ACLs.
Texts of errors are as the public documentation and other programs' logs have them; no real service was asked.
"""

import copy
import itertools
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

from tests.fake_google.objects import Session, Stored, multipart, told
from tests.fake_google.server import Answer, Request, Route
from tests.fake_google.world import Refused, World

BUCKETS, OBJECTS = "storage.buckets", "storage.objects"
WEEK = "604800"
PAGE = 1000
"""Default page size of a listing: https://cloud.google.com/storage/docs/json_api/v1/objects/list."""


def routes(world: World, taken: Collection[str] = ()) -> list[Route]:
    """The calls of the service.

    Args:
        taken: names of buckets that belong to others, who let nobody in.
    """
    there = _Storage(world, taken)
    bucket, named, upload = r"/storage/v1/b/(?P<bucket>[^/]+)", "/o/(?P<object>[^/]+)", "/upload/storage/v1/b"
    one = f"(?:/download)?{bucket}{named}"
    source = f"{bucket}{named}/(?:rewriteTo|copyTo)/b/(?P<to>[^/]+)/o/(?P<as>[^/]+)"
    calls = [
        ("buckets.insert", "POST", "/storage/v1/b", there.make_bucket),
        ("buckets.list", "GET", "/storage/v1/b", there.list_buckets),
        ("buckets.get", "GET", bucket, there.get_bucket),
        ("buckets.patch", "PATCH", bucket, there.patch_bucket),
        ("buckets.getIamPolicy", "GET", f"{bucket}/iam", there.get_policy),
        ("buckets.setIamPolicy", "PUT", f"{bucket}/iam", there.set_policy),
        ("buckets.getStorageLayout", "GET", f"{bucket}/storageLayout", there.layout),
        ("managedFolders.list", "GET", f"{bucket}/managedFolders", lambda request: {"items": []}),
        ("buckets.delete", "DELETE", bucket, there.delete_bucket),
        ("objects.list", "GET", f"{bucket}/o", there.list_objects),
        ("objects.get", "GET", one, there.get),
        ("objects.patch", "PATCH", f"{bucket}{named}", there.patch),
        ("objects.delete", "DELETE", f"{bucket}{named}", there.delete),
        ("objects.rewrite", "POST", source, there.rewrite),
        ("objects.compose", "POST", f"{bucket}{named}/compose", there.compose),
        ("objects.insert", "POST", f"(?:/resumable)?{upload}/(?P<bucket>[^/]+)/o", there.insert),
        ("objects.resume", "PUT", f"(?:/resumable)?{upload}/(?P<bucket>[^/]+)/o", there.resume),
    ]
    return [Route("storage", name, method, pattern, answer) for name, method, pattern, answer in calls]


class _Storage:
    def __init__(self, world: World, taken: Collection[str]):
        self.world, self.taken = world, frozenset(taken)
        self.sessions: dict[str, Session] = {}
        self.policies: dict[str, Any] = {}
        self.numbers = itertools.count(1)
        self.last = 0

    @property
    def objects(self) -> dict[str, Stored]:
        return self.world.table(OBJECTS)

    # Buckets.

    def make_bucket(self, request: Request) -> Any:
        given = request.json()
        name, now = given["name"], told(self.world.now())
        if name in self.world.table(BUCKETS):
            problem = "Your previous request to create the named bucket succeeded and you already own it."
            raise Refused(6, problem, "conflict")
        if name in self.taken:
            problem = "The requested bucket name is not available. The bucket namespace is shared by all users of the "
            raise Refused(6, f"{problem}system. Please select a different name and try again.", "conflict")
        where = given.get("location", "US").upper()
        made = {
            "kind": "storage#bucket", "id": name, "projectNumber": "1", "metageneration": "1",
            "storageClass": "STANDARD",
            "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": False}, "publicAccessPrevention": "inherited"},
            "softDeletePolicy": {"retentionDurationSeconds": WEEK, "effectiveTime": now},
            "locationType": "region" if "-" in where else "multi-region", "timeCreated": now, "updated": now,
        }  # fmt: skip
        self.world.table(BUCKETS)[name] = merged(made, {**given, "location": where})
        return self.world.table(BUCKETS)[name]

    def list_buckets(self, request: Request) -> Any:
        found = self.world.table(BUCKETS)
        start = request.query.get("prefix", "")
        return {"kind": "storage#buckets", "items": [found[name] for name in sorted(found) if name.startswith(start)]}

    def get_bucket(self, request: Request) -> Any:
        return self._bucket(request, "storage.buckets.get")

    def patch_bucket(self, request: Request) -> Any:
        bucket = self._bucket(request, "storage.buckets.update")
        again = {"metageneration": str(int(bucket["metageneration"]) + 1), "updated": told(self.world.now())}
        changed = merged(bucket, {**request.json(), **again})
        self.world.table(BUCKETS)[bucket["name"]] = changed
        return changed

    def delete_bucket(self, request: Request) -> None:
        name = self._bucket(request, "storage.buckets.delete")["name"]
        if any(one.bucket == name for one in self.objects.values()):
            raise Refused(6, "The bucket you tried to delete is not empty.", "conflict")
        del self.world.table(BUCKETS)[name]

    def layout(self, request: Request) -> Any:
        bucket = self._bucket(request, "storage.objects.list")
        return {"bucket": bucket["name"], "location": bucket["location"], "locationType": bucket["locationType"]}

    def get_policy(self, request: Request) -> Any:
        return self.policies.get(self._bucket(request, "storage.buckets.getIamPolicy")["name"], {"version": 1})

    def set_policy(self, request: Request) -> Any:
        name = self._bucket(request, "storage.buckets.setIamPolicy")["name"]
        self.policies[name] = request.json()
        return self.policies[name]

    def _bucket(self, request: Request, right: str, part: str = "bucket") -> dict[str, Any]:
        name = unquote(request.parts[part])
        if name in self.taken:
            problem = f"caller does not have {right} access to the Google Cloud Storage bucket."
            raise Refused(7, f"{problem} Permission '{right}' denied on resource (or it may not exist).", "forbidden")
        if name not in self.world.table(BUCKETS):
            raise Refused(5, "The specified bucket does not exist.", "notFound")
        return self.world.table(BUCKETS)[name]

    # Objects.

    def list_objects(self, request: Request) -> Any:
        """List names in order; a folded prefix counts as one entry, and a token is the last name of a page."""
        bucket, query = self._bucket(request, "storage.objects.list")["name"], request.query
        start, fold = query.get("prefix", ""), query.get("delimiter", "")
        found: dict[str, Stored | None] = {}
        for one in self.objects.values():
            if one.bucket == bucket and one.name.startswith(start):
                head, cut, _ = one.name[len(start) :].partition(fold) if fold else (one.name, "", "")
                found[f"{start}{head}{cut}" if cut else one.name] = None if cut else one
        names = sorted(name for name in found if name > query.get("pageToken", ""))
        page = names[: int(query.get("maxResults", PAGE))]
        items = [one.resource() for name in page if (one := found[name]) is not None]
        answer = {"kind": "storage#objects", "items": items, "prefixes": [n for n in page if found[n] is None]}
        return answer | ({"nextPageToken": page[-1]} if len(page) < len(names) else {})

    def get(self, request: Request) -> Any:
        one = self._object(request, "storage.objects.get")
        if request.query.get("alt") == "media" or request.path.startswith("/download"):
            return one.media(request.headers.get("range", ""))
        there = f"{request.address}/download/storage/v1/b/{one.bucket}/o/{quote(one.name, safe='')}"
        return {**one.resource(), "mediaLink": f"{there}?generation={one.generation}&alt=media"}

    def patch(self, request: Request) -> Any:
        one = self._object(request, "storage.objects.update")
        self.objects[_key(one)] = one.described(request.json(), self.world.now())
        return self.objects[_key(one)].resource()

    def delete(self, request: Request) -> None:
        del self.objects[_key(self._object(request, "storage.objects.delete"))]

    def rewrite(self, request: Request) -> Any:
        one = self._object(request, "storage.objects.get", conditions={})
        to, name = self._bucket(request, "storage.objects.create", "to")["name"], unquote(request.parts["as"])
        made = self._put(to, name, one.data, {"contentType": one.type, "metadata": one.metadata}, request.query)
        if "/copyTo/" in request.path:
            return made
        size = str(len(one.data))
        done = {"totalBytesRewritten": size, "objectSize": size, "done": True, "resource": made}
        return {"kind": "storage#rewriteResponse", **done}

    def compose(self, request: Request) -> Any:
        bucket, given = self._bucket(request, "storage.objects.create")["name"], request.json()
        parts = [self._found(bucket, source["name"]).data for source in given["sourceObjects"]]
        about = given.get("destination", {})
        return self._put(bucket, unquote(request.parts["object"]), b"".join(parts), about, request.query)

    def insert(self, request: Request) -> Any:
        """An upload: all of it (`multipart`, `media`), or the beginning of one in chunks (`resumable`)."""
        bucket, kind = self._bucket(request, "storage.objects.create")["name"], request.query.get("uploadType")
        if kind == "resumable":
            given, number = request.headers.get("x-upload-content-type", ""), f"{next(self.numbers):08d}"
            about = {"contentType": given} | request.json()
            self._check(bucket, about.get("name") or request.query["name"], request.query)
            self.sessions[number] = Session(bucket, about, request.query)
            place = f"{request.address}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={number}"
            return Answer(200, {"Location": place})
        about, data = {"contentType": request.headers.get("content-type", "")}, request.body
        if kind == "multipart":
            about, data = multipart(about["contentType"], data)
        return self._put(bucket, about.get("name") or request.query["name"], data, about, request.query)

    def resume(self, request: Request) -> Any:
        session = self.sessions.get(request.query.get("upload_id", ""))
        if session is None:
            raise Refused(5, "No such upload session.", "notFound", http=410)
        data = session.take(request.headers.get("content-range", ""), request.body)
        if data is None:
            return session.unfinished()
        found = re.search(r"crc32c=([^,]+)", request.headers.get("x-goog-hash", ""))
        sums = {"crc32c": found[1]} if found else {}
        name = session.about.get("name") or session.query["name"]
        return self._put(session.bucket, name, data, {**session.about, **sums}, session.query)

    def _put(
        self, bucket: str, name: str, data: bytes, about: Mapping[str, Any], conditions: Mapping[str, str]
    ) -> dict[str, Any]:
        self._check(bucket, name, conditions)
        now = self.world.now()
        self.last = max(self.last + 1, int(now * 1e6))
        kind = about.get("contentType") or "application/octet-stream"
        made = Stored(bucket, name, data, self.last, now, now, type=kind, metadata=about.get("metadata") or {})
        if about.get("crc32c", made.crc32c) != made.crc32c or about.get("md5Hash", made.md5) != made.md5:
            problem = f'Provided CRC32C "{about.get("crc32c")}" doesn\'t match calculated CRC32C "{made.crc32c}".'
            raise Refused(3, problem, "invalid")
        self.objects[_key(made)] = made
        return made.resource()

    def _object(self, request: Request, right: str, conditions: Mapping[str, str] | None = None) -> Stored:
        bucket, name = self._bucket(request, right)["name"], unquote(request.parts["object"])
        self._check(bucket, name, request.query if conditions is None else conditions)
        return self._found(bucket, name)

    def _found(self, bucket: str, name: str) -> Stored:
        one = self.objects.get(f"{bucket}/{name}")
        if one is None:
            raise Refused(5, f"No such object: {bucket}/{name}", "notFound")
        return one

    def _check(self, bucket: str, name: str, conditions: Mapping[str, str]) -> None:
        """Raise an error if the object has another generation than required; 0 means no object."""
        one = self.objects.get(f"{bucket}/{name}")
        have = {"Generation": one.generation if one else 0, "Metageneration": one.metageneration if one else 0}
        if "generation" in conditions and int(conditions["generation"]) != have["Generation"]:
            raise Refused(5, f"No such object: {bucket}/{name}#{conditions['generation']}", "notFound")
        for kind, number in have.items():
            unlike = str(number) == conditions.get(f"if{kind}NotMatch")
            if unlike or conditions.get(f"if{kind}Match", str(number)) != str(number):
                problem = "At least one of the pre-conditions you specified did not hold."
                raise Refused(9, problem, "conditionNotMet", http=304 if unlike else 412)


def _key(one: Stored) -> str:
    return f"{one.bucket}/{one.name}"


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return a resource after PATCH: null deletes a field, objects are merged, lists are replaced."""

    def fields() -> Iterator[tuple[str, Any]]:
        for name in {**old, **new}:
            value = new.get(name) if name in new else old[name]
            both = isinstance(value, Mapping) and isinstance(old.get(name), Mapping)
            if value is not None:
                yield name, merged(old[name], value) if both else copy.deepcopy(value)

    return dict(fields())
