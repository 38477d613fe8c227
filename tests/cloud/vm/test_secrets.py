"""Secrets of a job: read by the machine when the job begins, and nowhere to be seen but in the job's own memory."""

import base64
import hashlib
import os
from pathlib import Path

import pytest
from tests.cloud.machines import until
from tests.cloud.test_jobs import ended, read, shell

from taetpu.cloud import jobs
from taetpu.cloud.fakes.hosts import Trouble
from taetpu.cloud.fakes.server import Request, Route, Server
from taetpu.cloud.fakes.world import Refused, World

SECRET = "correct horse 'battery' $staple"
ASKED = {"WANDB_API_KEY": "my-key"}


@pytest.fixture
def tokens(hosts, monkeypatch):
    """Secret Manager with one secret: the tokens that were shown to it."""
    shown: list[str] = []

    def access(request: Request) -> dict:
        shown.append(request.headers["authorization"])
        if request.parts["name"] == "closed":
            raise Refused(7, "Permission 'secretmanager.versions.access' denied on resource")
        if request.parts["name"] != "my-key":
            raise Refused(5, f"Secret [{request.parts['name']}] not found")
        return {"name": "versions/3", "payload": {"data": base64.b64encode(SECRET.encode()).decode()}}

    path = r"/v1/projects/fake-project/secrets/(?P<name>[^/]+)/versions/latest:access"
    route = Route("secretmanager", "versions.access", "GET", path, access)
    with Server(World(hosts=hosts), [*hosts.routes(), route]) as server:
        monkeypatch.setenv("TAETPU_FAKE_CLOUD", server.address)
        yield shown


def seen(folder: Path) -> list[str]:
    """Where the secret stands: files below a folder, command lines of any process."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    lines = [Path("/proc", pid, "cmdline") for pid in os.listdir("/proc") if pid.isdigit()]
    found = []
    for path in [*files, *lines]:
        try:
            if SECRET.encode() in path.read_bytes():
                found.append(str(path))
        except OSError:
            continue
    return found


def test_a_job_has_its_secret_and_nothing_else_tells_it(ready, hosts, tokens):
    slice = ready()
    asked = shell('printf %s "$WANDB_API_KEY" | sha256sum; sleep 60')
    name = jobs.start(slice, jobs.Asked(asked.commands, secrets=ASKED))
    until(lambda: read(slice, name))
    assert read(slice, name)[0].split()[0] == hashlib.sha256(SECRET.encode()).hexdigest()
    assert tokens == ["Bearer fake-token"], "as the machine's own service account"
    assert seen(hosts.folder) == []
    jobs.stop(slice, name, grace=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("secret", "words"),
    [
        ("closed", ": 403 Permission 'secretmanager.versions.access' denied on resource"),
        ("none", "there is no secret 'none' in fake-project"),
    ],
)
def test_a_job_without_its_secret_does_not_begin(ready, tokens, secret, words):
    slice = ready()
    name = jobs.start(slice, jobs.Asked(shell("echo began").commands, secrets={"KEY": secret}))
    assert ended(slice, name) == {0: ("ended", 126)}
    (line,) = read(slice, name)
    assert line.startswith("taetpu: cannot read the secrets of this job: ")
    assert words in line


DOCKER = """\
#!/bin/sh
printf '%s\\n' "$@" >"$HOME/docker-$1"
printf %s "$WANDB_API_KEY" | sha256sum
"""


@pytest.mark.slow
def test_a_container_is_given_the_secret_by_its_name(ready, hosts, tokens, tmp_path):
    """The `docker` here is a stub."""
    stub = tmp_path / "bin" / "docker"
    stub.parent.mkdir()
    stub.write_text(DOCKER)
    stub.chmod(0o755)
    hosts.troubles["*"] = Trouble(environment={"PATH": f"{stub.parent}:{os.environ['PATH']}"})
    slice = ready()
    name = jobs.start(slice, jobs.Asked([["true"]], image="r/i@sha256:0", secrets=ASKED))
    assert ended(slice, name) == {0: ("ended", 0)}
    assert read(slice, name)[0].split()[0] == hashlib.sha256(SECRET.encode()).hexdigest()
    words = (hosts.find("t-w0").home / "docker-run").read_text().splitlines()
    assert words[words.index("WANDB_API_KEY") - 1] == "--env"
    assert seen(hosts.folder) == []
