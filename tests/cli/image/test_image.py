"""`taetpu image`, by Google's own clients against the fakes. A stand-in plays docker, see `tests.images`."""

import json
from pathlib import Path

import pytest
from tests.images import ADDRESS, BUCKET, PACKAGE

from taetpu.cli.cloud import Here
from taetpu.cloud.backends.base import Machine, State
from taetpu.cloud.errors import Permission
from taetpu.cloud.fakes.images import REPOSITORIES, VERSIONS
from taetpu.cloud.fakes.world import Fault, Refused
from taetpu.cloud.project import Cloud
from taetpu.cloud.spec import OWNER, Spec
from taetpu.cloud.state import Records
from taetpu.core.chips import resolve

PATH = PACKAGE.partition("/packages/")[0]


class Machines:
    """A backend with these machines, which this test needs no more of; or one that may not be asked."""

    name = "gce"

    def __init__(self, *machines, denied=False):
        self.machines, self.denied = machines, denied

    def list(self):
        if self.denied:
            raise Permission("listing TPUs: the permission tpu.nodes.list is missing")
        return self.machines


def machine(name, image):
    labels = Spec(name, resolve("v6e-8"), "gce", owner="me", image=image).labels(0.0)
    return Machine(name, "us-east5-b", "gce", "v6e-8", State.READY, labels=labels)


@pytest.fixture
def machines(monkeypatch):
    """`machines(backend)`: the project's machines from now on; none at first."""

    def be(backend):
        monkeypatch.setattr(Here, "cloud", Cloud([backend], Records("fake-project"), "me"))

    be(Machines())
    return be


@pytest.fixture
def image(cloud, machines, taetpu):
    """`image(*arguments) -> Done`: the command, in an empty working folder."""
    return lambda *arguments: taetpu("image", *arguments)


@pytest.fixture
def made(world):
    world.table(REPOSITORIES)[PATH] = {"name": PATH, "format": "DOCKER", "mode": "STANDARD_REPOSITORY"}


def built(world):
    return [call.name for call in world.changes()].count("builds.create")


def test_build_prints_the_address_by_its_digest_and_writes_it_into_the_settings(image, world):
    done = image("build", "--write", "--yes")
    assert done.code == 0, done.err
    (version,) = world.table(VERSIONS).values()
    assert done.out == f"{ADDRESS}@{version.digest}\n"
    assert Path("taetpu.toml").read_text() == f'[cloud]\nimage = "{ADDRESS}@{version.digest}"\n'
    assert "making the repository taetpu in us-east5" in done.err
    assert "the base image is what its tag means on that day; --python-digest pins it" in done.err


def test_the_same_content_is_built_once(image, world):
    first = image("build", "--json", "--yes").json()
    again = image("build", "--json", "--yes").json()
    assert (first["built"], again["built"]) == (True, False)
    assert (first["image"], first["tag"]) == (again["image"], again["tag"])
    assert built(world) == 1
    other = image("build", "--torch", "auto", "--type", "v4-8", "--json", "--yes").json()
    assert other["tag"] != first["tag"]
    assert built(world) == 2


@pytest.mark.parametrize("there", [False, True])
def test_a_dry_build_changes_nothing(image, world, there):
    if there:
        world.table(REPOSITORIES)[PATH] = {"name": PATH, "format": "DOCKER"}
    done = image("build", "--torch", "torch_tpu", "--dry-run", "--write")
    assert (done.code, done.out) == (0, "")
    assert world.changes() == []
    assert (f"make the repository {PATH}" in done.err) == (not there)
    assert f"build {ADDRESS}:0.1.0-" in done.err
    assert f"by Cloud Build from gs://{BUCKET}/tmp/images" in done.err
    assert "TORCH=torch_tpu" in done.err
    assert done.err.endswith("dry run: nothing was changed\n")
    assert not Path("taetpu.toml").exists()


def test_build_and_push_tell_the_price_and_ask(image, world, docker):
    done = image("build", "--timeout", "100")
    assert (done.code, done.out) == (2, "")
    told = " ".join(done.err.split())
    for words in (
        "$0.006 a minute once a month's 2,500 free ones are used up, so at most $0.60 in 100 min",
        "$0.10 a GB and month past 0.5 GB", "copy of Google's page", "nobody is here to agree to this",
        "give --yes to do it",
    ):  # fmt: skip
        assert words in told
    done = image("build", "--engine", "docker")
    assert done.code == 2
    assert "by docker on this machine, where it costs nothing" in done.err
    assert docker.images() == []
    assert image("build", "--engine", "docker", "--yes").code == 0
    done = image("push")
    assert done.code == 2
    assert "$0.10 a GB and month past 0.5 GB" in " ".join(done.err.split())
    assert docker.calls("push") == []
    assert world.changes() == []


def test_what_is_there_already_is_not_asked_about(image, docker):
    assert image("build", "--yes").code == 0
    for command in (("build",), ("push",)):
        assert image(*command).code == 0


def test_a_failed_build_is_a_message_with_the_log_and_exit_code_3(image, world):
    world.faults.append(
        Fault("builds.create", Refused(9, "ERROR: no space left on device", "FAILURE"), moment="inside")
    )
    done = image("build", "--write", "--yes")
    assert done.code == 3
    assert done.err.count("error: ") == 1
    assert 'Step #0 - "build": ERROR: no space left on device' in done.err
    assert f"log: gs://{BUCKET}/tmp/images/log-build-0001.txt" in done.err
    assert not Path("taetpu.toml").exists()
    assert world.table(VERSIONS) == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--torch", "pytorch"], "there is no PyTorch 'pytorch'"),
        (["--torch", "auto"], "--torch auto needs to know the TPU"),
        (["--type", "v6e-3"], "there is no TPU slice 'v6e-3'"),
        (["--engine", "dockr"], "there is no engine 'dockr'"),
        (["--engine", "podman"], "podman is not installed here"),
        (["--python-digest", "latest"], "'latest' is no digest\n  where:  --python-digest\n"),
        (["--python", "3.13"], "'3.13' is a version and no image\n  where:  --python\n"),
        (["--python", "python:3.11-slim"], "'python:3.11-slim' has a Python below 3.12"),
        (["--python", "no image"], "'no image' cannot be the name of an image\n  where:  --python\n"),
        (["--region", "nowhere"], "'nowhere' is no region\n  where:  --region\n"),
    ],
)
def test_a_mistake_is_one_message_before_anything_is_asked_for(image, world, arguments, words):
    done = image("build", *arguments, "--yes")
    assert done.code == 2
    assert done.err.startswith(f"error: {words}")
    assert "remedy:" in done.err
    assert world.changes() == []


def test_a_doubtful_pytorch_is_told(image):
    done = image("build", "--torch", "torch_tpu", "--type", "v5e-8", "--dry-run")
    assert "torch_xla is the usual one for v5e; torch_tpu is said to run there too" in done.err


def test_gcr_io_is_refused(image, world, monkeypatch):
    monkeypatch.setenv("TAETPU_REPOSITORY", "gcr.io/fake-project")
    done = image("build", "--yes")
    assert done.code == 2
    assert "Container Registry, which was shut down on 2025-03-18" in done.err
    assert world.calls == []


def test_no_bucket_is_no_obstacle_for_docker(image, world, docker, monkeypatch):
    monkeypatch.delenv("TAETPU_BUCKET")
    done = image("build", "--yes")
    assert done.code == 2
    assert "--engine docker" in done.err
    assert image("build", "--engine", "docker", "--yes").code == 0
    assert world.changes() == []


def test_a_local_build_is_pushed_by_a_command_of_its_own(image, world, docker):
    done = image("build", "--engine", "docker", "--yes")
    (local,) = docker.images()
    assert done.out == f"{local}\n"
    assert world.changes() == []
    pushed = image("push", "--write", "--yes")
    assert pushed.code == 0, pushed.err
    (version,) = world.table(VERSIONS).values()
    assert pushed.out == f"{ADDRESS}@{version.digest}\n"
    assert f"@{version.digest}" in Path("taetpu.toml").read_text()
    again = image("push", "--yes")
    assert "in the registry already: nothing is pushed" in again.err
    assert len(docker.calls("push")) == 1


def test_a_local_build_is_not_repeated(image, docker):
    image("build", "--engine", "podman", "--yes")
    done = image("build", "--engine", "podman", "--yes")
    assert "is here already: nothing is built" in done.err
    assert len(docker.calls("build")) == 1


def test_a_push_that_was_interrupted_is_repeated_without_building(image, world, docker):
    image("build", "--engine", "docker", "--yes")
    docker.fails("cut")
    cut = image("push", "--yes")
    assert cut.code == 3
    assert "connection reset by peer" in cut.err
    assert world.table(VERSIONS) == {}
    assert image("push", "--yes").code == 0
    assert len(world.table(VERSIONS)) == 1
    assert (len(docker.calls("build")), len(docker.calls("push"))) == (1, 2)


def test_what_was_not_built_is_not_pushed(image, world, docker):
    done = image("push", "--yes")
    assert done.code == 2
    assert "`taetpu image build --engine docker` with the same options makes it" in done.err
    assert image("push", "--engine", "cloud-build", "--yes").code == 2
    assert world.changes() == []


def test_dry_runs_of_local_commands_change_nothing(image, world, docker):
    assert "dry run" in image("build", "--engine", "docker", "--dry-run").err
    assert docker.images() == []
    image("build", "--engine", "docker", "--yes")
    done = image("push", "--dry-run")
    assert f"make the repository {PATH}" in done.err
    assert world.changes() == []
    assert len((docker.home / "calls").read_text().splitlines()) == len(docker.calls("build") + docker.calls("image"))


def test_list_shows_what_is_there_and_who_uses_it(image, world, made, put, machines, monkeypatch):
    old, new = put("0.1.0-old", days=40), put("0.1.0-new", "best", days=1)
    untagged = put(days=50)
    monkeypatch.setenv("TAETPU_IMAGE", f"{ADDRESS}@{new}")
    machines(Machines(machine("my-tpu", f"{ADDRESS}@{old}")))
    done = image("list")
    rows = done.out.splitlines()
    assert rows[0].split() == ["tags", "digest", "GB", "age", "used", "by"]
    assert rows[1].split() == ["0.1.0-new,", "best", new[7:19], "3.00", "24", "h", "taetpu.toml"]
    assert rows[2].split() == ["0.1.0-old", old[7:19], "3.00", "40", "d", "my-tpu", "in", "us-east5-b"]
    assert rows[3].split() == ["none", untagged[7:19], "3.00", "50", "d"]
    assert "9.0 GB together" in done.out
    listed = image("list", "--json").json()
    assert [one["used_by"] for one in listed] == [["taetpu.toml"], ["my-tpu in us-east5-b"], []]
    assert listed[0]["image"] == f"{ADDRESS}@{new}"
    assert world.changes() == []


def test_nothing_there_is_said(image):
    assert image("list").out == f"no image is in {ADDRESS}\n"
    assert image("list", "--json").json() == []


def test_delete_takes_what_is_named_and_asks_before(image, world, made, put):
    put("a")
    kept = put("b")
    done = image("delete", "a")
    assert done.code == 2
    assert "nobody is here to agree to this" in done.err
    assert "delete a: 3.00 GB, 0 h old" in done.err
    dry = image("delete", "a", "--dry-run")
    assert (dry.code, world.changes()) == (0, [])
    assert image("delete", "a", "--yes").code == 0
    assert [one.digest for one in world.table(VERSIONS).values()] == [kept]


def test_delete_by_age_and_all(image, world, made, put):
    theirs = put("web", package=f"{PATH}/packages/web", days=100)
    put("old", days=40)
    new = put("new", days=2)
    image("delete", "--older-than", "30d", "--yes")
    assert {one.digest for one in world.table(VERSIONS).values()} == {theirs, new}
    image("delete", "--all", "--yes")
    assert {one.digest for one in world.table(VERSIONS).values()} == {theirs}
    assert PATH in world.table(REPOSITORIES)
    assert "nothing to delete" in image("delete", "--all", "--yes").err


@pytest.mark.parametrize("by", ["settings", "machine"])
def test_an_image_in_use_is_deleted_by_force_alone(image, world, made, put, machines, monkeypatch, by):
    digest = put("a")
    if by == "settings":
        monkeypatch.setenv("TAETPU_IMAGE", f"{ADDRESS}@{digest}")
    else:
        machines(Machines(machine("my-tpu", f"{ADDRESS}@{digest}")))
    done = image("delete", "--all", "--yes")
    assert done.code == 2
    who = {"settings": "taetpu.toml", "machine": "my-tpu in us-east5-b"}[by]
    assert f"in use: a by {who}" in done.err
    assert world.changes() == []
    assert image("delete", "--all", "--yes", "--force").code == 0
    assert world.table(VERSIONS) == {}


def test_machines_that_cannot_be_asked_may_use_it(image, world, made, put, machines):
    put("a")
    machines(Machines(denied=True))
    listed = image("list")
    assert "The machines could not be asked which they use." in listed.out
    done = image("delete", "a", "--yes")
    assert (done.code, world.changes()) == (2, [])
    assert "the machines could not be asked whether they use these images" in done.err
    assert image("delete", "a", "--yes", "--force").code == 0


def test_local_copies_are_told_of_and_removed_if_asked_for(image, world, made, put, docker):
    image("build", "--engine", "docker", "--yes")
    (local,) = docker.images()
    put(local.rpartition(":")[2])
    (docker.home / "podman").unlink()
    dry = image("delete", "--all", "--dry-run")
    assert f"stays: the copy that docker has of {local}" in " ".join(dry.err.split())
    assert "--local removes the copies too" in dry.err
    dry = image("delete", "--all", "--local", "--dry-run")
    assert f"remove the copy that docker has of {local}" in " ".join(dry.err.split())
    assert docker.images() == [local]
    assert image("delete", "--all", "--local", "--yes").code == 0
    assert docker.images() == []
    assert world.table(VERSIONS) == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "which images is not said"),
        (["--older-than", "month"], "--older-than 'month' is no length of time"),
        (["nope"], "there is no image 'nope'"),
        (["gcr.io/p/taetpu:1"], "'gcr.io/p/taetpu:1' is in Container Registry"),
    ],
)
def test_what_cannot_be_deleted_is_said(image, world, made, put, arguments, words):
    put("a")
    done = image("delete", *arguments, "--yes")
    assert done.code == 2
    assert done.err.startswith(f"error: {words}")
    assert world.changes() == []


def repository(owner="me"):
    return {"name": PATH, "format": "DOCKER", "mode": "STANDARD_REPOSITORY", "labels": {OWNER: owner}}


def test_the_repository_goes_with_all_images_if_that_is_asked_for(image, world, put):
    world.table(REPOSITORIES)[PATH] = repository()
    put("a")
    assert "--all --repository" in image("delete", "a", "--repository", "--yes").err
    dry = image("delete", "--all", "--repository", "--dry-run")
    assert "delete the repository taetpu in us-east5" in dry.err
    assert world.changes() == []
    assert image("delete", "--all", "--repository", "--yes").code == 0
    assert world.left() == [f"storage.buckets: {BUCKET}"]
    again = image("delete", "--all", "--repository", "--yes")
    assert (again.code, "nothing to delete" in again.err) == (0, True)


@pytest.mark.parametrize("whose", ["of another", "with others"])
def test_a_repository_of_others_or_with_others_in_it_stays(image, world, put, whose):
    world.table(REPOSITORIES)[PATH] = repository("her" if whose == "of another" else "me")
    put("a")
    if whose == "with others":
        put("b", package=f"{PATH}/packages/hers")
    done = image("delete", "--all", "--repository", "--yes")
    assert done.code == 2
    assert ("is her's" if whose == "of another" else "other images are in the repository") in done.err
    assert world.changes() == []


def test_every_command_has_help_with_an_example(image):
    for command in ("build", "push", "list", "delete"):
        done = image(command, "--help")
        assert done.code == 0
        assert f"Example: taetpu image {command}" in done.out


def test_the_json_of_build_is_what_a_script_needs(image):
    assert set(json.loads(image("build", "--json", "--yes").out)) == {"image", "tag", "digest", "built"}
