"""Versions agree wherever they are written, and a wheel contains every file of the package."""

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_is_the_same_everywhere():
    version = PROJECT["project"]["version"]
    assert str(yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]) == version
    first = re.search(r"^## (\S+) \((unreleased|\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first[1] == version
    assert f"taetpu is at {version}" in (ROOT / "docs/versions.md").read_text()


def test_the_image_copies_files_that_exist_and_are_not_ignored():
    text = (ROOT / "Dockerfile").read_text()
    copied = [name for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE) for name in line.split()]
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(copied) == allowed
    assert all((ROOT / name).exists() for name in copied)
    least = tuple(map(int, PROJECT["project"]["requires-python"].removeprefix(">=").split(".")))
    assert all(tuple(map(int, found.split("."))) >= least for found in re.findall(r"^FROM python:([\d.]+)", text, re.M))


def test_every_answered_finding_of_bandit_is_in_a_file_that_exists():
    answered = {
        name: rules for name, rules in PROJECT["tool"]["ruff"]["lint"]["per-file-ignores"].items() if "/" in name
    }
    ours = [name for name in answered if name.startswith("src/")]
    assert len(ours) > 10
    assert [name for name in ours if not (ROOT / name).is_file()] == []


@pytest.mark.nightly
def test_a_wheel_has_every_file_of_the_package(tmp_path):
    if find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        str(ROOT),
    ]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("taetpu-*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert {name.removeprefix("src/") for name in tracked.split()} <= packed
