"""Versions agree wherever they are written, bandit's findings are answered, and a wheel suffices alone."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from tests.bandit_findings import compare, run_bandit

from taetpu.cli.templates import TEMPLATES

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


def test_bandit_itself_finds_what_is_answered_and_nothing_else(tmp_path):
    """Of one small file: `python -m tests.bandit_findings` reads all of `src`, in `make lint`."""
    (tmp_path / "careless.py").write_text('import pickle\n\neval(input())\nprint(pickle.loads(b""))  # nosec\n')
    findings = run_bandit(tmp_path, tmp_path)
    file = "careless.py"
    assert findings.keys() == {(file, "307"), (file, "301"), (file, "403")}
    assert compare(findings, {"403"}, {(file, "301"), (file, "307")}) == []
    (unanswered,) = compare(findings, {"403"}, {(file, "301")})
    assert unanswered.startswith(f"{file}:3: B307")
    (stale,) = compare(findings, {"403", "301", "307"}, {(file, "602")})
    assert stale.startswith(file)
    assert "B602" in stale


# --- the wheel -------------------------------------------------------------------------------------------------------

COMMANDS = [
    *(["new", f"from-{kind}", "--template", kind] for kind in TEMPLATES),
    ["gallery", "--json"],
    ["catalog", "corpus"],
    ["chips"],
    ["schema"],
    ["plan", "from-text.yaml"],
]
SCRIPT = f"""
import sys
import taetpu
from taetpu.cli.main import main
from taetpu.study.gallery_index import entry_files, read_gallery

print(taetpu.__file__, file=sys.stderr)
for words in {COMMANDS}:
    sys.argv = ["taetpu", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, words
for entry in read_gallery().values():
    with entry_files(entry) as files:
        assert all(file.is_file() for file in files), entry.name
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--wheel-dir", folder]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, ROOT], check=True, capture_output=True)
    (file,) = folder.glob("taetpu-*.whl")
    return file


@pytest.mark.slow
def test_a_wheel_has_every_file_of_the_package(wheel):
    packed = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert {name.removeprefix("src/") for name in tracked.split()} <= packed
    assert {name.partition("/")[0] for name in packed} == {"taetpu", wheel.stem.rsplit("-", 3)[0] + ".dist-info"}


@pytest.mark.slow
def test_what_a_wheel_contains_suffices_for_templates_gallery_catalogue_and_schema(wheel, tmp_path):
    """Away from the checkout: its files are not beside the package."""
    installed, here = tmp_path / "installed", tmp_path / "here"
    zipfile.ZipFile(wheel).extractall(installed)
    here.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-P", "-c", SCRIPT]
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0] == str(installed / "taetpu/__init__.py")
    assert {f"from-{kind}.yaml" for kind in TEMPLATES} <= {file.name for file in here.iterdir()}
    assert len(list((installed / "taetpu/study/gallery").glob("*.claims.yaml"))) == 12
