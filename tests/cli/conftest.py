"""Fixtures: the command in this process and in a subprocess, a small study, and a trained study."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.shared_folders import make_once
from tests.small import STUDY


class Done(NamedTuple):
    """The exit code and output of a command."""

    code: int
    out: str
    err: str

    def json(self):
        """Return the output, which must be strict JSON."""

        def refuse(word):
            raise AssertionError(f"{word} is no JSON")

        assert self.code == 0, self.err
        return json.loads(self.out, parse_constant=refuse)


def command(*args: object) -> list[str]:
    return [sys.executable, "-m", "taetpu", *map(str, args)]


@pytest.fixture(scope="session")
def text() -> str:
    """The tiny study's file."""
    return STUDY


@pytest.fixture(scope="session")
def contents() -> Callable[[Path], dict[str, bytes]]:
    """`contents(folder)`: the bytes of all files below a folder, and empty bytes for folders."""
    return lambda folder: {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"" for p in sorted(folder.rglob("*"))
    }


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with `s.yaml` only, without `TAETPU_ROOT`, and terminals of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TAETPU_ROOT", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "s.yaml").write_text(STUDY)
    return tmp_path


def call_main(*args: object) -> Done:
    """Run the entry point in this process."""
    from taetpu.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["taetpu", *map(str, args)])
        patch.setattr(sys, "excepthook", sys.excepthook)  # typer sets its own
        with pytest.raises(SystemExit) as ended:
            main()
    return Done(int(ended.value.code or 0), out.getvalue(), err.getvalue())


@pytest.fixture
def taetpu(here: Path) -> Callable[..., Done]:
    """`taetpu(*arguments) -> Done`: the entry point in this process, in `here`."""
    return call_main


@pytest.fixture
def process(here: Path) -> Callable[..., Done]:
    """`process(*arguments, **environment) -> Done`: the command in a subprocess, in `here`."""

    def call(*args: object, **environment: str) -> Done:
        ended = subprocess.run(
            command(*args),
            cwd=here,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=120,
        )
        return Done(ended.returncode, ended.stdout, ended.stderr)

    return call


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """A root with the trained small study, and the output of its training."""

    def train(folder: Path) -> None:
        (folder / "s.yaml").write_text(STUDY)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            patch.setenv("COLUMNS", "80")
            done = call_main("run", "s.yaml", "--root", "root")
        assert done.code == 0, done.err
        (folder / "output.json").write_text(json.dumps(done))

    folder = make_once(tmp_path_factory, "trained-cli", train)
    return folder / "root", Done(*json.loads((folder / "output.json").read_text()))


@pytest.fixture
def on_disk(here: Path) -> Callable[[str, str], Done]:
    """`on_disk(options, script) -> Done`: a shell script that sees a tmpfs of these mount options at `here / "disk"`.

    The disk is the default root, `$DISK` to the script. Skips the test where the machine lets nobody mount (see
    tests/SKIPPED.md).
    """
    disk = here / "disk"
    disk.mkdir()

    def run(options: str, script: str) -> Done:
        inside = f'mount -t tmpfs -o {options} tmpfs "$DISK" || exit 77; taetpu() {{ "$PYTHON" -m taetpu "$@"; }}\n'
        try:
            ended = subprocess.run(
                ["unshare", "--mount", "--map-root-user", "sh", "-c", inside + script],
                cwd=here,
                env={**os.environ, "PYTHON": sys.executable, "DISK": str(disk), "TAETPU_ROOT": "disk"},
                capture_output=True,
                text=True,
                check=False,
                timeout=240,
            )
        except FileNotFoundError:
            pytest.skip("no `unshare` to mount a small disk with")
        if ended.returncode == 77 or ended.stderr.startswith("unshare:"):
            pytest.skip(f"cannot mount a small disk: {ended.stderr.strip()}")
        return Done(ended.returncode, ended.stdout, ended.stderr)

    return run
