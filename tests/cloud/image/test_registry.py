"""The repository and its images, by Google's own client against the fake of Artifact Registry."""

import pytest
from tests.images import ADDRESS, PACKAGE

from taetpu.cloud.backends.base import Machine, State
from taetpu.cloud.errors import Conflict, Invalid, NotFound, Permission, Quota, Unknown
from taetpu.cloud.fakes.images import REPOSITORIES, VERSIONS
from taetpu.cloud.fakes.world import Fault, Refused
from taetpu.cloud.image.registry import BATCH, chosen, refuse_container_registry, repository, users
from taetpu.cloud.settings import Settings
from taetpu.cloud.spec import IMAGE, OWNER, Spec, image_label, label
from taetpu.core.chips import resolve
from taetpu.core.errors import UserError

PATH = PACKAGE.partition("/packages/")[0]
DENIED = Refused(7, f"Permission 'artifactregistry.repositories.create' denied on resource '{PATH}'", "IAM")
DISABLED = Refused(
    7,
    "Artifact Registry API has not been used in project fake-project before or it is disabled.",
    "SERVICE_DISABLED",
    {"service": "artifactregistry.googleapis.com", "consumer": "projects/fake-project"},
)


@pytest.fixture
def made(world):
    """A repository that is there."""
    world.table(REPOSITORIES)[PATH] = {"name": PATH, "format": "DOCKER", "mode": "STANDARD_REPOSITORY"}


def test_a_missing_repository_is_made_once_with_its_owner(registry, world, told):
    assert not registry.there()
    assert world.changes() == []
    registry.ensure("Some One")
    registry.ensure("Some One")
    assert [call.name for call in world.changes()] == ["repositories.create"]
    (made,) = world.table(REPOSITORIES).values()
    assert (made["name"], made["format"], made["labels"]) == (PATH, "DOCKER", {OWNER: label("Some One")})
    assert told == ["making the repository taetpu in us-east5"]


@pytest.mark.parametrize(
    ("given", "words"),
    [({"format": "PYTHON"}, "of format PYTHON"), ({"format": "DOCKER", "mode": "REMOTE_REPOSITORY"}, "a remote one")],
)
def test_a_repository_that_takes_no_images_is_refused_and_left_alone(registry, world, given, words):
    world.table(REPOSITORIES)[PATH] = {"name": PATH, **given}
    with pytest.raises(Conflict, match=f"the repository 'taetpu' in us-east5 is {words}") as refused:
        registry.ensure("me")
    assert refused.value.remedy == 'another name: repository = "..." in taetpu.toml'
    assert world.changes() == []


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (DENIED, Permission, "permission artifactregistry.repositories.create is missing"),
        (DISABLED, Permission, "the API artifactregistry.googleapis.com is not enabled in project fake-project"),
        (Refused(8, "Quota exceeded for quota metric 'Repositories'", "QUOTA_EXCEEDED"), Quota, "quota"),
    ],
    ids=["permission", "disabled", "quota"],
)
@pytest.mark.parametrize("moment", ["before", "inside"])
def test_a_refusal_is_told_as_it_is_and_nothing_is_left(registry, world, error, kind, words, moment):
    world.faults.append(Fault("repositories.create", error, moment=moment))
    with pytest.raises(kind, match=words):
        registry.ensure("me")
    assert world.table(REPOSITORIES) == {}
    registry.ensure("me")
    assert len(world.table(REPOSITORIES)) == 1


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_lost_answer_is_no_refusal_it_looks_again(registry, world, moment):
    """Cut before it was made, nothing is there and the command can be given again; cut after, what is there is found.

    The fake makes the repository when its operation is asked for, which nobody can after a lost answer.
    """
    world.faults.append(Fault("repositories.create", None, moment=moment))
    if moment == "after":
        operation = world.operation
        world.operation = lambda *args, **about: _done(operation(*args, **about))
        registry.ensure("me")
    else:
        with pytest.raises(Unknown, match="no answer came"):
            registry.ensure("me")
        registry.ensure("me")
    assert len(world.table(REPOSITORIES)) == 1


def _done(pending):
    while not pending.poll():
        pass
    return pending


def test_two_commands_at_once_make_one_repository(registry, world):
    world.faults.append(Fault("repositories.create", Refused(6, "the repository already exists"), moment="before"))
    world.table(REPOSITORIES)[PATH] = {"name": PATH, "format": "DOCKER"}
    world.faults.append(Fault("repositories.get", Refused(5, "not found")))
    registry.ensure("me")
    assert [call.name for call in world.changes()] == ["repositories.create"]


def test_images_are_ours_alone_the_newest_first_over_all_pages(registry, made, put):
    put("someone-elses", package=PACKAGE.replace("packages/taetpu", "packages/taetpu-web"))
    digests = [put(f"t{i}", days=i) for i in range(250)]
    found = registry.images()
    assert [image.digest for image in found] == digests
    assert found[0].tags == ("t0",)
    assert found[0].size == 3_000_000_000
    assert registry.find("t7") == digests[7]
    assert registry.find("someone-elses") is None


def test_no_repository_has_no_images_and_no_tags(registry):
    assert registry.images() == []
    assert registry.find("t") is None


def test_delete_removes_tags_and_versions_in_batches_and_no_others(registry, world, made, put):
    foreign = put("theirs", package=PACKAGE.replace("packages/taetpu", "packages/other"))
    kept = put("kept")
    doomed = [put(f"a{i}", f"b{i}") for i in range(BATCH + 3)]
    registry.delete([image for image in registry.images() if image.digest in doomed])
    assert {one.digest for one in world.table(VERSIONS).values()} == {foreign, kept}
    assert [call.name for call in world.changes()].count("versions.batchDelete") == 2


def test_what_is_gone_already_is_deleted_well(registry, world, made, put):
    put("t")
    images = registry.images()
    registry.delete(images)
    registry.delete(images)
    assert world.table(VERSIONS) == {}


@pytest.mark.parametrize(
    ("call", "moment"),
    [("tags.delete", "before"), ("tags.delete", "after"), ("versions.batchDelete", "before")],
)
def test_a_delete_that_was_cut_goes_on_with_the_same_command(registry, world, made, put, call, moment):
    digests = [put("a"), put("b")]
    world.faults.append(Fault(call, None, moment=moment))
    with pytest.raises(Unknown, match="no answer came"):
        registry.delete(registry.images())
    left = registry.images()
    assert {image.digest for image in left} == set(digests)
    registry.delete(left)
    assert registry.images() == []


def test_what_could_not_be_deleted_is_named(registry, world, made, put):
    digest = put("a")
    error = Refused(9, "version is referenced by a manifest list", "FAILED_PRECONDITION")
    world.faults.append(Fault("versions.batchDelete", error, moment="inside"))
    with pytest.raises(Conflict, match="referenced by a manifest list"):
        registry.delete(registry.images())
    assert [image.digest for image in registry.images()] == [digest]


def test_questions_are_asked_again_where_the_service_has_no_time(registry, world, made, put):
    put("a")
    world.faults.append(Fault("dockerImages.list", Refused(14, "try later"), times=2))
    assert len(registry.images()) == 1


@pytest.mark.parametrize("address", ["gcr.io/p/taetpu", "us.gcr.io/p/taetpu:1", "https://eu.gcr.io/p", "gcr.io"])
def test_container_registry_is_refused_with_the_reason(address):
    with pytest.raises(Invalid, match=r"Container Registry, which was shut down on 2025-03-18") as refused:
        repository(Settings(project="my-project", region="us-east5", repository=address))
    assert "REGION-docker.pkg.dev/PROJECT/REPOSITORY/IMAGE" in str(refused.value)
    with pytest.raises(Invalid):
        chosen([], [address], None, 0.0)


def test_artifact_registry_is_not():
    for address in ("us-east5-docker.pkg.dev/p/gcr.io/taetpu", "taetpu", "mygcr.io/x"):
        refuse_container_registry(address)


def test_a_repository_is_in_the_region_of_the_tpu():
    zoned = Settings(project="my-project", zones=("us-east5-b", "europe-west4-a"))
    assert repository(zoned).region == "us-east5"
    assert repository(zoned.model_copy(update={"region": "us-central1"})).region == "us-central1"
    assert repository(zoned, "asia-northeast1").image == "asia-northeast1-docker.pkg.dev/my-project/taetpu/taetpu"
    assert repository(Settings(project="example.com:my-project", region="us-east5")).image.split("/")[1:3] == [
        "example.com",
        "my-project",
    ]
    assert repository(zoned, "europe").region == "europe"
    for place, problem in (
        ("nowhere", "'nowhere' is no region"),
        ("us-east5-b", "is no region but a zone"),
    ):
        with pytest.raises(UserError, match=problem) as error:
            repository(zoned, place)
        assert error.value.path == ("--region",)
    with pytest.raises(Invalid, match="no region is said for the image"):
        repository(Settings(project="my-project"))
    with pytest.raises(Invalid, match=r"'us-east5-docker\.pkg\.dev/p/r' cannot be the name of a repository"):
        repository(Settings(project="my-project", region="us-east5", repository="us-east5-docker.pkg.dev/p/r"))


def machine(name, image):
    spec = Spec(name, resolve("v6e-8"), "gce", owner="me", image=image)
    return Machine(name, "us-east5-b", "gce", "v6e-8", State.READY, labels=spec.labels(0.0))


def test_who_uses_an_image_is_known_by_its_digest_or_its_tag(registry, made, put):
    first, second, third = put("one"), put("two"), put("three")
    images = registry.images()
    machines = [machine("a", f"{ADDRESS}@{first}"), machine("b", f"{ADDRESS}@{first}"), machine("c", "")]
    assert users(images, f"{ADDRESS}:two", machines) == {
        first: ["a in us-east5-b", "b in us-east5-b"],
        second: ["taetpu.toml"],
        third: [],
    }
    assert users(images, f"{ADDRESS}@{third}", [])[third] == ["taetpu.toml"]


def test_a_machine_is_labelled_with_its_image_as_labels_may_be():
    label = machine("a", f"{ADDRESS}@sha256:{'a1' * 32}").labels[IMAGE]
    assert label == image_label(f"{ADDRESS}@sha256:{'a1' * 32}") == "a1" * 16
    assert IMAGE not in machine("a", "").labels
    assert image_label(f"{ADDRESS}:0.1.0-ABC") == "0-1-0-abc"


def test_images_are_chosen_by_tag_digest_and_age(registry, world, made, put):
    old, new = put("old", days=40), put("new", days=1)
    images, now = registry.images(), world.now()
    for word in (new, f"{ADDRESS}@{new}", "new", f"{ADDRESS}:new", new[7:19]):
        assert [image.digest for image in chosen(images, [word], None, now)] == [new], word
    assert [image.digest for image in chosen(images, [], 30 * 86400, now)] == [old]
    assert len(chosen(images, ["new"], 30 * 86400, now)) == 2
    with pytest.raises(NotFound, match="there is no image 'nwe'") as refused:
        chosen(images, ["nwe"], None, now)
    assert "tags: new, old" in str(refused.value)
