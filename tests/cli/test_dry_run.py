"""`--dry-run` of every command that has it: it says what would be done, and nothing changes, there or here."""

import os
from dataclasses import dataclass

import pytest
import typer
from tests.cloud.looking import programs
from tests.cloud.machines import until
from tests.clouds import BUCKET
from tests.images import PACKAGE
from tests.small import STUDY

from taetpu.cli.main import app
from taetpu.cloud import jobs
from taetpu.cloud.backends.gce import Gce
from taetpu.cloud.clients import FAKE, Clients
from taetpu.cloud.fakes import gce, images, networks, prices, projects, quotas, storage, tpu_rest
from taetpu.cloud.fakes.hosts import LoopbackHosts
from taetpu.cloud.fakes.server import Server
from taetpu.cloud.fakes.tpu import Tpu
from taetpu.cloud.fakes.world import World
from taetpu.cloud.spec import Spec
from taetpu.core.chips import resolve

ZONE = "us-east5-b"
WANTED = ("--type", "v6e-8", "--zone", ZONE, "--max-usd", "500", "--yes")
ROWS = {
    "tpu up": (("new", *WANTED), "at most $", "deleted after 4 h"),
    "tpu down": (("mine", "--yes"), "delete mine: v6e-8 in us-east5-b"),
    "tpu gc": (("--yes",), "delete mine: v6e-8 in us-east5-b, expired"),
    "tpu zones": (("--type", "v6e-8", "--probe", "--write", "--yes"), "make a spot v6e-8 in each of these"),
    "tpu sync": (("--tpu", "t"), "would change 5 paths"),
    "tpu run": (("--tpu", "t", "python", "show.py"), "copy show.py", "run python show.py"),
    "tpu stop": (("--tpu", "t"), "would end running"),
    "tpu clean": (("--tpu", "t"), "would remove over"),
    "bucket create": (("new-one", "--region", "us-east5", "--yes"), "bucket gs://new-one in us-east5"),
    "bucket delete": ((BUCKET, "--yes", "--force"), f"delete gs://{BUCKET} with 1 objects"),
    "image build": (("--write", "--yes"), "build us-east5-docker.pkg.dev/fake-project/taetpu/taetpu:"),
    "image push": (("--engine", "docker", "--yes"), "push us-east5-docker.pkg.dev/fake-project/taetpu/taetpu:"),
    "image delete": (("--all", "--yes"), "delete old: 3.00 GB"),
    "dev mount": (("--tpu", "t", "show.py"), "would copy 1 paths"),
    "dev scrap": (("--tpu", "t", "--all", "--yes"), "remove everything"),
    "dev run": (("--tpu", "t", "show.py", "--lr", "1"), "copy show.py"),
    "dev run-all": (("--tpu", "t", "show.py"), "copy show.py"),
    "dev sync": (("--tpu", "t"), "show.py", "would change"),
    "run": (("small.yaml", "--on", "tpu", "--root", f"gs://{BUCKET}/r", *WANTED), "at most $", "train small there"),
}  # fmt: skip
SPEC = Spec("mine", resolve("v6e-8"), "gce", owner="me", runtime="ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e")
LONG = ("run", "tpu sync", "tpu stop", "tpu clean", "dev mount", "dev run", "dev run-all", "dev sync")
ON_HOSTS = ("tpu sync", "tpu run", "tpu stop", "tpu clean", *(name for name in ROWS if name.startswith("dev ")))


def leaves(command, path=()):
    """Every command by its words, with its options."""
    for name, one in getattr(command, "commands", {}).items():
        yield from leaves(one, (*path, name))
    if not getattr(command, "commands", {}):
        yield " ".join(path), {word for option in command.params for word in option.opts}


def test_every_command_with_a_dry_run_is_tried_here():
    with_it = {name for name, options in leaves(typer.main.get_command(app)) if "--dry-run" in options}
    assert with_it == set(ROWS)


def test_every_command_that_asks_has_a_dry_run():
    asking = {name for name, options in leaves(typer.main.get_command(app)) if "--yes" in options}
    assert asking
    assert asking <= set(ROWS)


@dataclass
class There:
    """A cloud with something of everything in it, and a folder to give commands in."""

    world: World
    hosts: LoopbackHosts | None = None

    def all(self):
        """Whatever a dry run must leave as it is."""
        tables = {kind: sorted(found) for kind, found in self.world.resources.items() if found}
        homes = [vm.home for vm in self.hosts.vms.values()] if self.hosts else []
        begun = [path.parent for home in homes for path in home.glob(".taetpu/jobs/*/pid")]
        ended = sorted((job.name, (job / "rc").exists()) for job in begun)
        return tables, len(self.world.changes()), [files(home / "work") for home in homes], ended


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def project(tmp_path):
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.fixture
def there(request, project, tmp_path, monkeypatch):
    needs = request.node.callspec.params["name"] in ON_HOSTS
    ready = request.getfixturevalue("ready") if needs else None
    hosts = request.getfixturevalue("hosts") if needs else None
    world = World(hosts=hosts) if hosts else World()
    services = (gce, storage, images, quotas, prices, projects, networks)
    routes = [route for service in services for route in service.routes(world)]
    routes += [*tpu_rest.routes(Tpu(world)), *(hosts.routes() if hosts else [])]
    with Server(world, routes) as server:
        values = {FAKE: server.address, "STORAGE_EMULATOR_HOST": server.address, "XDG_STATE_HOME": str(tmp_path / "st")}
        values |= {"TAETPU_PROJECT": world.project, "TAETPU_OWNER": "me", "TAETPU_REGION": "us-east5"}
        values |= {"TAETPU_BUCKET": BUCKET, "TAETPU_CACHE": str(tmp_path / "cache"), "COLUMNS": "200"}
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("TAETPU_FAKE_CLOUD_GRPC", raising=False)
        furnish(world, project, tmp_path, monkeypatch, ready)
        if ready:
            monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # where that machine's key is
            with_jobs(ready())
        world.calls.clear()
        monkeypatch.chdir(project)
        yield There(world, hosts)


def with_jobs(slice) -> None:
    """One that has ended, and one that runs."""
    jobs.start(slice, jobs.Asked([["true"]]), name="over")
    until(lambda: jobs.job(slice, "over")[0]["state"] == "ended")
    jobs.start(slice, jobs.Asked([["sleep", "600"]]), name="running")


def furnish(world, project, tmp_path, monkeypatch, ready) -> None:
    """A bucket with a blob, an old image, an image that docker has, an expired machine, and a project folder."""
    clients = Clients(world.project)
    bucket = clients.storage.create_bucket(BUCKET, location="us-east5")
    bucket.labels = {"taetpu-owner": "me"}
    bucket.patch()
    bucket.blob("a").upload_from_string(b"x")
    if not ready:
        making = Gce(clients).create(SPEC, ZONE, "", "ssh-ed25519 A me")
        while not making.done():
            pass
        world.table("gce.instances")[f"{ZONE}/mine"]["labels"]["taetpu-expires"] = "1"
    path = PACKAGE.partition("/packages/")[0]
    world.table(images.REPOSITORIES)[path] = {"name": path, "format": "DOCKER", "mode": "STANDARD_REPOSITORY"}
    old = images.Version(PACKAGE, f"sha256:{'0' * 64}", 3_000_000_000, world.now(), ["old"])
    world.table(images.VERSIONS)[old.path] = old
    programs(tmp_path / "bin", docker="exit 0")  # it has every image
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    for name, text in {"taetpu.toml": "[cloud]\n", "show.py": "", "small.yaml": STUDY, "sub/x": "1"}.items():
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(text)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in ROWS]
)
def test_it_tells_and_changes_nothing(taetpu, there, project, name):
    words, *said = ROWS[name]
    before, local = there.all(), files(project)
    done = taetpu(*name.split(), "--dry-run", *words)
    assert done.code == 0, done.err
    told = " ".join((done.out + done.err).split())
    for text in said:
        assert text in told
    assert "dry run: nothing was changed" in told or "would" in told
    assert (there.all(), files(project)) == (before, local)
    assert not list((project.parent / "st").rglob("*.json")), "nor is anything remembered"
