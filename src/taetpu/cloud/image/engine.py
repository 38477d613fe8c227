"""Images built on this machine by docker or podman, and pushed from it."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taetpu.cloud.clients import Clients, fake_address, imported
from taetpu.cloud.errors import BuildFailed, Transient
from taetpu.cloud.google_calls import explained
from taetpu.cloud.image.context import Context
from taetpu.core.errors import UserError

ENGINES = ("docker", "podman")
LINES = 15
"""Of what the engine printed, shown with an error."""


@dataclass(frozen=True)
class Engine:
    """docker or podman. What it prints is told line by line."""

    command: str
    tell: Callable[[str], None]

    def build(self, context: Context, image: str) -> None:
        """Build an image under its full name, for the processors that TPU machines have.

        Raises:
            BuildFailed: it could not be built; with the last lines of what the engine printed.
        """
        arguments = [f"--build-arg={name}={value}" for name, value in sorted(context.arguments.items())]
        with tempfile.TemporaryDirectory(prefix="taetpu-") as folder:
            context.write(Path(folder))
            options = ["--platform=linux/amd64", f"--tag={image}", *arguments]
            code, lines = self._run(["build", *options, folder])
        if code:
            remedy = "see what it says, then give the same command; what was built before the failing step is kept"
            raise BuildFailed(f"{self.command} could not build {image}{lines}", remedy=remedy)

    def push(self, image: str, clients: Clients) -> None:
        """Push an image. What the registry has of it already is not sent again.

        Raises:
            Transient: the push did not come to its end.
        """
        host = image.partition("/")[0]
        with self._signed_in(clients, host) as environment:
            code, lines = self._run(["push", image], environment)
        if code:
            remedy = "`taetpu image push` goes on: what has arrived is not sent again, and nothing is built again"
            raise Transient(f"{self.command} could not push {image}{lines}", remedy=remedy)

    def has(self, image: str) -> bool:
        """Whether the image is here."""
        return self._asked(["image", "inspect", image]) is not None

    def copies(self, image: str) -> list[str]:
        """Tags under which images of an address are here."""
        told = self._asked(["image", "ls", "--format", "{{.Tag}}", image]) or ""
        return sorted({line for line in told.split() if line != "<none>"})

    def remove(self, images: Sequence[str]) -> None:
        """Remove local copies by their full names; nothing else of the engine's is touched."""
        code, lines = self._run(["image", "rm", *images])
        if code:
            raise UserError(f"{self.command} could not remove {', '.join(images)}{lines}", remedy="see what it says")

    def _asked(self, arguments: Sequence[str]) -> str | None:
        """What a question prints; None where the engine says no. Raises `UserError` where it does not run."""
        done = subprocess.run([self.command, *arguments], capture_output=True, text=True, check=False)
        if done.returncode and "daemon" in done.stderr.lower():
            remedy = f"start {self.command}, or --engine cloud-build, which needs none"
            raise UserError(f"{self.command} does not run here: {done.stderr.strip()}", remedy=remedy)
        return None if done.returncode else done.stdout

    def _run(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Run a command; its exit code, and the last lines that it printed, indented."""
        lines: deque[str] = deque(maxlen=LINES)
        quiet = {"BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}  # one digest an image, not an index of several
        running = subprocess.Popen(
            [self.command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            env={**os.environ, **quiet, **(environment or {})},
        )  # fmt: skip
        assert running.stdout is not None
        with running:
            for line in running.stdout:
                lines.append(line.rstrip())
                self.tell(line.rstrip())
        return running.returncode, "".join(f"\n    {line}" for line in lines)

    @contextmanager
    def _signed_in(self, clients: Clients, host: str) -> Iterator[Mapping[str, str]]:
        """Variables by which the engine finds a token for the registry, in a file that is gone afterwards.

        It never stands in a command line. The user's own file of the engine is read and not written.
        """
        with tempfile.TemporaryDirectory(prefix="taetpu-") as folder:
            own = Path(os.environ.get("DOCKER_CONFIG") or "~/.docker").expanduser()
            given = {"auths": {host: {"auth": _token(clients)}}, **_context(own)}
            file = Path(folder, "config.json")
            file.touch(mode=0o600)
            file.write_text(json.dumps(given))
            if (own / "contexts").is_dir():
                Path(folder, "contexts").symlink_to(own / "contexts")
            yield {"DOCKER_CONFIG": folder, "REGISTRY_AUTH_FILE": str(file)}


def engine(command: str, tell: Callable[[str], None]) -> Engine:
    """A local engine.

    Raises:
        UserError: it is not installed.
    """
    if shutil.which(command) is None:
        remedy = f"install {command}, or --engine cloud-build, which needs nothing here"
        raise UserError(f"{command} is not installed here", remedy=remedy)
    return Engine(command, tell)


def present(tell: Callable[[str], None]) -> list[Engine]:
    """The engines that are installed here."""
    return [Engine(command, tell) for command in ENGINES if shutil.which(command)]


def _token(clients: Clients) -> str:
    """The caller's access token, as a registry takes it; it holds for an hour at most."""
    token = "fake"
    if not fake_address():
        credentials = clients.credentials
        if not credentials.valid:
            with explained(doing="signing in to the registry"):
                credentials.refresh(imported("google.auth.transport.requests").Request())
        token = credentials.token
    return base64.b64encode(f"oauth2accesstoken:{token}".encode()).decode()


def _context(own: Path) -> dict[str, Any]:
    """Which engine docker talks to, by the user's own file."""
    try:
        chosen = json.loads((own / "config.json").read_text(encoding="utf-8")).get("currentContext")
    except (OSError, ValueError, AttributeError):
        return {}
    return {"currentContext": chosen} if chosen else {}
