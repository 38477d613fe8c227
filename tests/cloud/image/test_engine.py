"""Builds and pushes by a local engine. A stand-in plays docker and podman, see `tests.images`: it builds nothing."""

import base64
import json
from pathlib import Path

import pytest
from tests.images import ADDRESS

from taetpu.cloud.errors import BuildFailed, Transient
from taetpu.cloud.image.engine import engine, present
from taetpu.core.errors import UserError

IMAGE = f"{ADDRESS}:0.1.0-abc"


@pytest.fixture
def local(docker, told):
    return engine("docker", told.append)


def test_a_build_gets_the_context_and_is_for_the_machines_processors(local, docker, plain, told):
    local.build(plain, IMAGE)
    assert docker.images() == [IMAGE]
    (call,) = docker.calls("build")
    assert call[:-1] == ["build", "--platform=linux/amd64", f"--tag={IMAGE}", "--build-arg=TORCH=none"]
    assert json.loads((docker.home / "context.json").read_text()) == sorted(plain.files)
    assert not Path(call[-1]).exists()
    assert told == ["Step 1/14 : FROM python:3.12-slim-bookworm"]


def test_a_failed_build_shows_the_last_lines(local, docker, plain):
    docker.fails("bad-build")
    with pytest.raises(BuildFailed, match=r"docker could not build .*\n    Step 1/14.*\n    ERROR: No matching"):
        local.build(plain, IMAGE)
    assert docker.images() == []


def test_a_push_signs_in_with_a_token_in_a_file_that_is_gone_afterwards(local, docker, registry, plain):
    registry.ensure("me")
    local.build(plain, IMAGE)
    local.push(IMAGE, registry.clients)
    assert registry.find("0.1.0-abc")
    text, mode, place = json.loads((docker.home / "auth.json").read_text())
    (host,) = json.loads(text)["auths"]
    assert host == "us-east5-docker.pkg.dev"
    token = base64.b64decode(json.loads(text)["auths"][host]["auth"]).decode()
    assert token.startswith("oauth2accesstoken:")
    assert mode == "0o100600"
    assert not Path(place).parent.exists()
    assert not any("oauth2accesstoken" in word for call in docker.calls("push") for word in call)


def test_a_push_keeps_the_users_own_engine_and_leaves_his_file_alone(local, docker, registry, plain, tmp_path):
    own = tmp_path / "own"
    (own / "contexts" / "meta").mkdir(parents=True)
    written = json.dumps({"currentContext": "colima", "auths": {"example.org": {"auth": "c2VjcmV0"}}})
    (own / "config.json").write_text(written)
    registry.ensure("me")
    local.build(plain, IMAGE)
    local.push(IMAGE, registry.clients)
    used = json.loads(json.loads((docker.home / "auth.json").read_text())[0])
    assert used["currentContext"] == "colima"
    assert list(used["auths"]) == ["us-east5-docker.pkg.dev"]
    assert (own / "config.json").read_text() == written


def test_a_push_that_was_cut_says_that_the_same_command_goes_on(local, docker, registry, plain):
    registry.ensure("me")
    local.build(plain, IMAGE)
    docker.fails("cut")
    with pytest.raises(Transient, match="connection reset by peer") as cut:
        local.push(IMAGE, registry.clients)
    assert "nothing is built again" in str(cut.value)
    assert registry.find("0.1.0-abc") is None
    local.push(IMAGE, registry.clients)
    assert registry.find("0.1.0-abc")
    assert len(docker.calls("build")) == 1


def test_what_is_here_is_known_and_removed_by_its_name_alone(local, docker, plain):
    other = f"{ADDRESS}-web:1"
    for image in (IMAGE, f"{ADDRESS}:old", other):
        local.build(plain, image)
    assert local.has(IMAGE)
    assert not local.has(f"{ADDRESS}:new")
    assert local.copies(ADDRESS) == ["0.1.0-abc", "old"]
    local.remove([IMAGE])
    assert docker.images() == [f"{ADDRESS}:old", other]


def test_an_engine_that_does_not_run_is_no_missing_image(local, docker):
    docker.fails("down")
    with pytest.raises(UserError, match="docker does not run here: Cannot connect to the Docker daemon") as refused:
        local.has(IMAGE)
    assert "--engine cloud-build" in str(refused.value)


def test_an_engine_that_is_not_installed_is_named(cloud):
    assert present(print) == []
    with pytest.raises(UserError, match="podman is not installed here"):
        engine("podman", print)
