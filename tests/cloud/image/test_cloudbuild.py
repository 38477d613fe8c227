"""Builds by Cloud Build, by Google's own clients against the fakes of it, of Artifact Registry and of the bucket."""

import io
import tarfile
from dataclasses import replace

import pytest
from tests.images import ADDRESS, BUCKET

from taetpu.cloud.errors import BuildFailed, NotFound, Permission, Transient, Unknown
from taetpu.cloud.fakes.images import VERSIONS
from taetpu.cloud.fakes.storage import OBJECTS
from taetpu.cloud.fakes.world import Fault, Refused
from taetpu.cloud.image.cloudbuild import needs_bucket


@pytest.fixture
def ready(registry, world, told):
    """A repository that is there; no call was made, and nothing told."""
    registry.ensure("me")
    world.calls.clear()
    told.clear()


def made(world):
    return [call.name for call in world.changes()]


def builds(world):
    return made(world).count("builds.create")


def pip(status="FAILURE"):
    return Refused(9, "Collecting jax\nERROR: No matching distribution found for jax==0.10.2", status)


def test_a_build_puts_the_image_into_the_registry_under_its_tag(builder, registry, world, plain, told, ready):
    digest = builder.build(plain)
    assert registry.find(plain.tag) == digest
    (image,) = registry.images()
    assert (image.digest, image.tags) == (digest, (plain.tag,))
    assert told[0] == "build build-0001 has begun"
    assert told[1:] == ["FETCHSOURCE", "BUILD", 'Step #0 - "build": Sending build context', "PUSH", "DONE"]


def test_nothing_but_the_image_and_the_log_is_left(builder, world, plain, ready):
    builder.build(plain)
    assert list(world.table(OBJECTS)) == [f"{BUCKET}/tmp/images/log-build-0001.txt"]
    assert made(world) == ["objects.insert", "builds.create", "objects.delete"]


def test_the_build_is_described_with_everything_that_it_needs(builder, plain):
    context = replace(plain, arguments={"TORCH": "torch_xla", "PYTHON": "python:3.13-slim"})
    described = builder.described(context)
    (step,) = described["steps"]
    image = f"{ADDRESS}:{context.tag}"
    assert step["args"] == [
        "build", f"--tag={image}", "--build-arg=PYTHON=python:3.13-slim", "--build-arg=TORCH=torch_xla", ".",
    ]  # fmt: skip
    assert described["images"] == [image]
    assert described["timeout"] == {"seconds": 3600}
    assert described["logs_bucket"] == f"gs://{BUCKET}/tmp/images"


def test_what_is_uploaded_is_the_context(builder, world, plain, ready):
    builder._upload(plain)
    (stored,) = world.table(OBJECTS).values()
    assert stored.name == f"tmp/images/{plain.tag}.tar.gz"
    with tarfile.open(fileobj=io.BytesIO(stored.data)) as tar:
        assert set(tar.getnames()) == set(plain.files)
    builder._upload(plain)  # it is there, and that is fine
    assert list(world.table(OBJECTS).values()) == [stored]


def test_a_failed_step_is_told_with_its_last_lines_and_where_the_log_is(builder, world, plain, ready):
    world.faults.append(Fault("builds.create", pip(), moment="inside"))
    with pytest.raises(BuildFailed) as failed:
        builder.build(plain)
    text = str(failed.value)
    assert "build build-0001 ended with FAILURE: step 0 (build) failed" in text
    assert f"log: gs://{BUCKET}/tmp/images/log-build-0001.txt" in text
    assert '\n    Step #0 - "build": ERROR: No matching distribution found for jax==0.10.2' in text
    assert "FETCHSOURCE" not in text, "that is no line of the step that failed"
    assert failed.value.exit_code == 3
    assert world.table(VERSIONS) == {}
    assert f"{BUCKET}/tmp/images/{plain.tag}.tar.gz" not in world.table(OBJECTS)


def test_after_a_failed_build_the_same_content_is_built_again(builder, registry, world, plain, ready):
    world.faults.append(Fault("builds.create", pip(), moment="inside"))
    with pytest.raises(BuildFailed):
        builder.build(plain)
    assert builder.build(plain) == registry.find(plain.tag)
    assert builds(world) == 2


def test_a_file_that_the_dockerfile_copies_and_the_context_lacks_fails_the_build(builder, plain, ready):
    less = {name: data for name, data in plain.files.items() if name != "constraints.txt"}
    with pytest.raises(BuildFailed, match=r"COPY failed: no source files were specified: constraints\.txt"):
        builder.build(replace(plain, files=less))


def test_a_repository_that_went_away_meanwhile_fails_the_build(builder, plain):
    with pytest.raises(BuildFailed, match='name unknown: Repository "taetpu" not found'):
        builder.build(plain)


def test_a_build_that_takes_too_long_says_so_and_how_to_give_it_more(builder, world, plain, ready):
    def an_hour_later(line):
        world.skew = 3601.0

    world.polls = 10_000
    with pytest.raises(BuildFailed, match="build build-0001 took more than 60 minutes and was ended") as failed:
        replace(builder, tell=an_hour_later).build(plain)
    assert failed.value.remedy == "give it more, e.g. --timeout 120"
    assert world.table(VERSIONS) == {}


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        ("CANCELLED", "somebody cancelled it; the same command begins another"),
        ("EXPIRED", "try again later"),
        ("INTERNAL_ERROR", "see what the log says, then give the same command"),
    ],
)
def test_every_other_end_is_told(builder, world, plain, ready, status, remedy):
    world.faults.append(Fault("builds.create", pip(status), moment="inside"))
    with pytest.raises(BuildFailed, match=f"ended with {status}") as failed:
        builder.build(plain)
    assert failed.value.remedy == remedy


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            "builds.create",
            Refused(7, "The caller does not have permission cloudbuild.builds.create"),
            "allowed|missing",
        ),
        (
            "builds.list",
            Refused(
                7,
                "Cloud Build API has not been used in project fake-project before or it is disabled.",
                "SERVICE_DISABLED",
                {"service": "cloudbuild.googleapis.com", "consumer": "projects/fake-project"},
            ),
            "the API cloudbuild.googleapis.com is not enabled in project fake-project",
        ),
        (
            "objects.insert",
            Refused(
                7, "me does not have storage.objects.create access to the Google Cloud Storage object.", "forbidden"
            ),
            f"uploading what the image is made of to gs://{BUCKET}/tmp/images",
        ),
    ],
    ids=["permission", "disabled", "bucket"],
)
def test_a_refusal_is_told_as_it_is_and_builds_nothing(builder, world, plain, ready, call, error, words):
    world.faults.append(Fault(call, error))
    with pytest.raises(Permission, match=words):
        builder.build(plain)
    assert world.table(VERSIONS) == {}


def test_a_bucket_that_is_not_there_is_named(builder, world, plain, ready):
    lost = replace(builder, bucket="no-such-bucket")
    with pytest.raises(NotFound, match="gs://no-such-bucket/tmp/images"):
        lost.build(plain)
    assert builds(world) == 0


def test_no_bucket_has_a_remedy():
    with pytest.raises(NotFound, match="Cloud Build needs a bucket") as refused:
        needs_bucket("")
    assert "--engine docker" in str(refused.value)
    assert needs_bucket("gs://mine/") == "mine"


def test_a_build_whose_answer_was_lost_is_found_by_its_tag_and_followed(builder, registry, world, plain, told, ready):
    world.faults.append(Fault("builds.create", None, moment="after"))
    assert builder.build(plain) == registry.find(plain.tag)
    assert builds(world) == 1
    assert told[0].startswith("no clear answer")


def test_a_build_that_was_never_begun_is_unknown_until_the_same_command_looks(builder, registry, world, plain, ready):
    world.faults.append(Fault("builds.create", None, moment="before"))
    with pytest.raises(Unknown, match="no answer came"):
        builder.build(plain)
    assert builder.build(plain) == registry.find(plain.tag)


def test_a_command_that_was_interrupted_leaves_its_build_and_the_next_one_follows_it(
    builder, registry, world, plain, told, ready
):
    def interrupted(line):
        if line == "BUILD":
            raise KeyboardInterrupt

    world.polls = 5
    with pytest.raises(KeyboardInterrupt):
        replace(builder, tell=interrupted).build(plain)
    assert builder.build(plain) == registry.find(plain.tag)
    assert builds(world) == 1
    assert told[0] == "build build-0001 of the same content is running already: following it"


def test_the_service_may_be_silent_for_a_while(builder, registry, world, plain, ready):
    world.faults.append(Fault("builds.get", Refused(14, "try later"), times=3))
    world.faults.append(Fault("builds.get", None, times=2))
    assert builder.build(plain) == registry.find(plain.tag)
    world.faults.append(Fault("builds.get", Refused(14, "try later"), times=10_000))
    with pytest.raises(Transient, match="following build build-0002"):
        builder.build(replace(plain, arguments={"TORCH": "torch_xla"}))


def test_a_log_that_may_not_be_read_does_not_keep_an_image_from_being_built(builder, registry, world, plain, ready):
    error = Refused(7, "does not have storage.objects.get access", "forbidden")
    world.faults.append(Fault("objects.get", error, times=10_000))
    assert builder.build(plain) == registry.find(plain.tag)
