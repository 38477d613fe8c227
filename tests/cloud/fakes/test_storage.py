"""The fake Cloud Storage, asked by Google's own client: nothing that it is told is lost, conditions hold."""

import os
from pathlib import Path

import pytest
from google.api_core import exceptions as google
from google.cloud.storage import Bucket, transfer_manager
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.clouds import TAKEN

from taetpu.cloud.clients import Clients
from taetpu.cloud.fakes.server import Server
from taetpu.cloud.fakes.storage import merged
from taetpu.cloud.fakes.world import World


@pytest.fixture
def bucket(world: World, bucket_server: Server) -> Bucket:
    made = Clients(world.project).storage.bucket("mine")
    made.create(location="us-east5")
    return made


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40), data=st.binary())
def test_any_name_and_content_comes_back(bucket: Bucket, name: str, data: bytes):
    blob = bucket.blob(name)
    blob.metadata = {"said": "so"}
    blob.upload_from_string(data, "text/x-test")
    again = bucket.get_blob(name)
    assert again is not None
    assert again.download_as_bytes(checksum="md5") == data
    assert (again.size, again.content_type, again.metadata) == (len(data), "text/x-test", {"said": "so"})
    assert again.crc32c == blob.crc32c
    assert name in [one.name for one in bucket.list_blobs()]
    again.delete()
    assert bucket.get_blob(name) is None


def test_conditions_on_generations_hold(bucket: Bucket):
    blob = bucket.blob("a")
    blob.upload_from_string(b"1", if_generation_match=0)
    with pytest.raises(google.PreconditionFailed):
        bucket.blob("a").upload_from_string(b"2", if_generation_match=0)
    first = blob.generation
    blob.upload_from_string(b"2", if_generation_match=first)
    assert blob.generation is not None
    assert first is not None
    assert blob.generation > first
    with pytest.raises(google.PreconditionFailed):
        blob.delete(if_generation_match=first)
    with pytest.raises(google.PreconditionFailed):
        bucket.blob("a").patch(if_metageneration_match=7)
    with pytest.raises(google.NotFound):
        bucket.blob("a", generation=first).download_as_bytes()
    assert bucket.blob("a").download_as_bytes(if_generation_match=blob.generation) == b"2"


def test_what_is_said_of_an_object_has_a_time_of_its_own(bucket: Bucket, world: World):
    blob = bucket.blob("a")
    blob.upload_from_string(b"1")
    world.skew = 100.0
    blob.metadata = {"seen": "yes"}
    blob.patch()
    assert blob.updated is not None
    assert blob.time_created is not None
    assert 100 <= (blob.updated - blob.time_created).total_seconds() < 130
    blob.metadata = {"seen": None}
    blob.patch()
    assert (bucket.get_blob("a").metadata, blob.metageneration) == ({}, 3)  # pyright: ignore[reportOptionalMemberAccess]


def test_lists_come_in_pages_and_folded(bucket: Bucket):
    names = [f"{folder}/{number}" for folder in "abc" for number in range(4)] + ["top", "a"]
    for name in names:
        bucket.blob(name).upload_from_string(b"")
    assert [blob.name for blob in bucket.list_blobs(page_size=3)] == sorted(names)
    assert [blob.name for blob in bucket.list_blobs(prefix="b/", page_size=3)] == [f"b/{n}" for n in range(4)]
    folded = bucket.list_blobs(delimiter="/", page_size=2)
    assert [blob.name for blob in folded] == ["a", "top"]
    assert folded.prefixes == {"a/", "b/", "c/"}
    assert len(list(bucket.list_blobs(max_results=5))) == 5


def test_large_files_go_up_in_pieces_and_come_back_in_parts(bucket: Bucket, tmp_path: Path, world: World):
    data = os.urandom(9_000_000)
    (tmp_path / "large").write_bytes(data)
    blob = bucket.blob("large", chunk_size=1 << 20)
    blob.upload_from_filename(str(tmp_path / "large"), if_generation_match=0)
    assert sum(call.name == "objects.resume" for call in world.calls) == 9
    assert bucket.blob("large").download_as_bytes(start=5, end=9) == data[5:10]
    with pytest.raises(google.RequestRangeNotSatisfiable):
        bucket.blob("large").download_as_bytes(start=10**7)
    pairs = [(str(tmp_path / "large"), bucket.blob(f"many/{n}")) for n in range(3)]
    transfer_manager.upload_many(pairs, worker_type=transfer_manager.THREAD, raise_exception=True)
    back = tmp_path / "back"
    transfer_manager.download_chunks_concurrently(
        bucket.blob("many/2"), str(back), chunk_size=4 << 20, worker_type=transfer_manager.THREAD
    )
    assert back.read_bytes() == data


def test_objects_are_copied_and_composed(bucket: Bucket):
    parts = [bucket.blob("a"), bucket.blob("b")]
    for blob in parts:
        blob.upload_from_string(f"[{blob.name}]", "text/x-test")
    whole = bucket.blob("c")
    whole.compose(parts)
    assert whole.download_as_bytes() == b"[a][b]"
    assert bucket.copy_blob(parts[0], bucket, "d").download_as_bytes() == b"[a]"
    bucket.blob("e").rewrite(parts[1])
    assert bucket.get_blob("e").content_type == "text/x-test"  # pyright: ignore[reportOptionalMemberAccess]


def test_wrong_checksums_are_refused(bucket: Bucket, world: World):
    blob = bucket.blob("a")
    blob.crc32c = "AAAAAA=="
    with pytest.raises(google.BadRequest, match="doesn't match calculated CRC32C"):
        blob.upload_from_string(b"x", checksum=None)
    assert world.left() == ["storage.buckets: mine"]


def test_buckets_of_others_and_none(bucket: Bucket):
    client = bucket.client
    with pytest.raises(google.Conflict, match="you already own it"):
        client.create_bucket("mine")
    with pytest.raises(google.Conflict, match="is not available"):
        client.create_bucket(TAKEN)
    with pytest.raises(google.Forbidden, match=r"storage\.objects\.list"):
        list(client.list_blobs(TAKEN))
    with pytest.raises(google.NotFound, match="bucket does not exist"):
        list(client.list_blobs("none-such"))
    assert [one.name for one in client.list_buckets()] == ["mine"]
    bucket.blob("a").upload_from_string(b"")
    with pytest.raises(google.Conflict, match="not empty"):
        bucket.delete()
    bucket.delete(force=True)
    assert client.lookup_bucket("mine") is None


def test_a_patch_changes_what_it_names_and_takes_null_away():
    old = {"labels": {"a": "1", "b": "2"}, "rules": [1, 2], "kept": 1}
    new = {"labels": {"a": None, "c": "3"}, "rules": [3]}
    assert merged(old, new) == {"labels": {"b": "2", "c": "3"}, "rules": [3], "kept": 1}
