"""`taetpu image build | list | delete`."""

import re
import subprocess

import pytest
from tests.cli.terminal import on_terminal
from tests.fake_google.cloud import FakeGoogle

ADDRESS = "us-central1-docker.pkg.dev/fake-project/taetpu"
IMAGES = "artifacts.images"


@pytest.fixture
def cloud(shared_google: FakeGoogle):
    shared_google.world.calls.clear()
    yield shared_google
    for table in (IMAGES, "artifacts.repositories"):
        shared_google.world.table(table).clear()


def test_a_build_says_what_it_costs_and_prints_its_lines(taetpu, here, cloud):
    wrong = taetpu("image", "build")
    assert wrong.code == 2
    assert "Dockerfile" in wrong.err
    (here / "Dockerfile").write_text("FROM scratch\n")
    code, _, err = taetpu("image", "build")
    assert code == 2
    for part in (ADDRESS, "$0.36", "60 min", "--yes"):
        assert part in err
    lines = taetpu("image", "build", "--dry-run").out.splitlines()
    assert [line.split()[1] for line in lines] == ["CLOUDSDK_CORE_PROJECT=fake-project", "artifacts", "builds"]
    assert cloud.world.changes() == []


@pytest.mark.slow
def test_the_same_content_is_built_once_and_other_content_again(taetpu, here, cloud):
    (here / "Dockerfile").write_text("FROM scratch\n")
    build = taetpu("image", "build", "--dry-run").out.splitlines()[-1]
    found = re.search(r"--tag=\S+/taetpu/(\S+):(\S+)", build)
    assert found
    cloud.artifacts.push("us-central1", *found.groups())
    again = taetpu("image", "build")
    assert (again.code, again.out.strip()) == (0, f"{ADDRESS}/{found[1]}:{found[2]}")
    (here / "more.txt").write_text("new")
    assert "builds submit" in taetpu("image", "build", "--dry-run").out


@pytest.mark.slow
def test_images_are_listed_and_deleted(taetpu, here, cloud):
    assert taetpu("image", "list").out == "no images\n"
    cloud.artifacts.push("us-central1", "lab", "abc")
    assert [one["tags"] for one in taetpu("image", "list", "--json").json()] == [["abc"]]
    assert re.search(r"lab +abc", taetpu("image", "list").out)
    address = f"{ADDRESS}/lab:abc"
    assert on_terminal(here, ["image", "delete", address], "n\n")[0] == 1
    assert cloud.world.table(IMAGES)
    lines = taetpu("image", "delete", address, "--dry-run").out
    subprocess.run(["bash", "-e"], input=lines, text=True, check=True, capture_output=True)
    assert not cloud.world.table(IMAGES)
