"""Fixtures of images: a fake Artifact Registry, Cloud Build and bucket, and a stand-in for docker.

The stand-in is a program of its own that keeps a list of images and ends a push as the real one does, by putting a
manifest into the registry. It builds nothing: no engine runs where these tests do.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from taetpu.cloud.clients import FAKE, Clients
from taetpu.cloud.fakes import builds, images, storage
from taetpu.cloud.fakes.images import VERSIONS, Version
from taetpu.cloud.fakes.server import Server
from taetpu.cloud.fakes.world import World
from taetpu.cloud.image.cloudbuild import CloudBuild
from taetpu.cloud.image.context import Context, Recipe, context
from taetpu.cloud.image.registry import Registry, repository
from taetpu.cloud.project import Waits
from taetpu.cloud.settings import read

REGION, BUCKET = "us-east5", "my-results"
PACKAGE = f"projects/fake-project/locations/{REGION}/repositories/taetpu/packages/taetpu"
ADDRESS = f"{REGION}-docker.pkg.dev/fake-project/taetpu/taetpu"
QUICK = Waits(poll=0.01, settle=0.2, ready=5.0)

DOCKER = """#!{python} -S
import base64, json, os, pathlib, sys, urllib.request
home = pathlib.Path({home!r})
state = home / "images.json"
images = json.loads(state.read_text()) if state.exists() else []
arguments = sys.argv[1:]
with open(home / "calls", "a") as calls:
    calls.write(json.dumps(arguments) + "\\n")
if (home / "down").exists():
    sys.exit("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?")
if arguments[0] == "build":
    print("Step 1/14 : FROM python:3.12-slim-bookworm")
    if (home / "bad-build").exists():
        print("ERROR: No matching distribution found for jax", file=sys.stderr)
        sys.exit(1)
    (home / "context.json").write_text(json.dumps(sorted(os.listdir(arguments[-1]))))
    images += [one.partition("=")[2] for one in arguments if one.startswith("--tag=")]
elif arguments[:2] == ["image", "inspect"]:
    sys.exit(0 if arguments[2] in images else 1)
elif arguments[:2] == ["image", "ls"]:
    print(*(one.rpartition(":")[2] for one in images if one.startswith(arguments[-1] + ":")), sep="\\n")
elif arguments[:2] == ["image", "rm"]:
    images = [one for one in images if one not in arguments]
elif arguments[0] == "push":
    config = pathlib.Path(os.environ["DOCKER_CONFIG"], "config.json")
    host, _, rest = arguments[1].partition("/")
    (home / "auth.json").write_text(json.dumps([config.read_text(), oct(config.stat().st_mode), str(config)]))
    base64.b64decode(json.loads(config.read_text())["auths"][host]["auth"])
    print("5f70bf18a086: Pushing")
    if (home / "cut").exists():
        (home / "cut").unlink()
        sys.exit("write tcp: connection reset by peer")
    name, _, tag = rest.rpartition(":")
    where = f"{{os.environ['TAETPU_FAKE_CLOUD']}}/v2/{{name}}/manifests/{{tag}}"
    data = json.dumps({{"built": arguments[1]}}).encode()
    put = urllib.request.Request(where, data=data, method="PUT", headers={{"X-Registry": host}})
    urllib.request.urlopen(put).read()
state.write_text(json.dumps(images))
"""


@dataclass(frozen=True)
class Docker:
    """The stand-in: what it holds, what it was asked."""

    home: Path

    def images(self) -> list[str]:
        kept = self.home / "images.json"
        return json.loads(kept.read_text()) if kept.exists() else []

    def calls(self, first: str) -> list[list[str]]:
        asked = [json.loads(line) for line in (self.home / "calls").read_text().splitlines()]
        return [call for call in asked if call[0] == first]

    def fails(self, how: str) -> None:
        """`down`, `bad-build`, or `cut`: one push that ends halfway."""
        (self.home / how).touch()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def cloud(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The fakes, with a bucket; this process and those that it starts go there. The working folder is empty."""
    for name in ("TAETPU_BUCKET", "TAETPU_ZONES", "TAETPU_IMAGE", "TAETPU_REPOSITORY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # no engine, wherever the tests run
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    with Server(world, [*storage.routes(world), *images.routes(world), *builds.routes(world)]) as server:
        monkeypatch.setenv(FAKE, server.address)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.address)
        for name, value in {"PROJECT": world.project, "OWNER": "me", "REGION": REGION, "BUCKET": BUCKET}.items():
            monkeypatch.setenv(f"TAETPU_{name}", value)
        Clients(world.project).storage.create_bucket(BUCKET, location=REGION)
        world.calls.clear()
        yield server


@pytest.fixture
def told() -> list[str]:
    """What the user was told."""
    return []


@pytest.fixture
def registry(cloud: Server, world: World, told: list[str]) -> Registry:
    return Registry(Clients(world.project), repository(read()), QUICK, told.append)


@pytest.fixture
def builder(registry: Registry, told: list[str]) -> CloudBuild:
    return CloudBuild(registry.clients, registry, BUCKET, 60, QUICK, told.append)


@pytest.fixture
def docker(cloud: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Docker:
    """The stand-in, as `docker` and as `podman` on the path; the user's own settings of docker are elsewhere."""
    home = tmp_path / "docker"
    home.mkdir()
    for name in ("docker", "podman"):
        program = home / name
        program.write_text(DOCKER.format(python=sys.executable, home=str(home)))
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{home}:/usr/bin:/bin")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "own"))
    return Docker(home)


@pytest.fixture(scope="session")
def plain() -> Context:
    """What an image without PyTorch is made of."""
    return context(Recipe())


@pytest.fixture
def put(world: World) -> Callable[..., str]:
    """`put(tags, days=0, package=...) -> digest`: an image in a repository, so many days old."""

    def make(*tags: str, days: float = 0, package: str = PACKAGE) -> str:
        digest = f"sha256:{len(world.table(VERSIONS)):012x}{'0' * 52}"
        made = Version(package, digest, 3_000_000_000, world.now() - days * 86400, list(tags))
        world.table(VERSIONS)[made.path] = made
        return digest

    return make
