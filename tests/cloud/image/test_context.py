"""What an image is made of: the same everywhere, with everything that it needs and nothing else."""

import base64
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

import taetpu
from taetpu.cloud.image.context import SUITS, Context, Recipe, check_python, context, doubts, torch_of
from taetpu.core.chips import generations, resolve
from taetpu.core.errors import UserError

WHEEL = f"taetpu-{version('taetpu')}-py3-none-any.whl"


def test_the_same_package_gives_the_same_files_and_the_same_tag(plain):
    again = context(Recipe())
    assert dict(again.files) == dict(plain.files)
    assert again.tag == plain.tag
    assert again.archive() == plain.archive()
    assert re.fullmatch(r"[\w.-]{1,127}", plain.tag), "docker takes it as a tag"


def test_a_change_of_any_file_or_argument_is_another_tag(plain):
    tags = {plain.tag}
    for name in plain.files:
        tags.add(replace(plain, files={**plain.files, name: plain.files[name] + b"\n"}).tag)
    digest = f"sha256:{'0' * 64}"
    xla, indexed = Recipe("torch_xla"), Recipe("torch_xla", torch_index="https://example.org/cpu")
    for recipe in (xla, indexed, Recipe("torch_tpu"), Recipe(python="python:3.13-slim"), Recipe(python_digest=digest)):
        tags.add(replace(plain, arguments=recipe.arguments()).tag)
    assert len(tags) == 1 + len(plain.files) + 5


def test_the_archive_holds_the_files_at_its_top_without_times_and_owners(plain):
    with tarfile.open(fileobj=io.BytesIO(plain.archive()), mode="r:gz") as tar:
        entries = tar.getmembers()
        found = {one.name: file.read() for one in entries if (file := tar.extractfile(one))}
    assert found == dict(plain.files)
    assert {(one.mtime, one.uid, one.gid, one.uname) for one in entries} == {(0, 0, 0, "")}


def test_the_wheel_holds_the_package_with_a_record_of_every_file(plain):
    with zipfile.ZipFile(io.BytesIO(plain.files[WHEEL])) as wheel:
        inside = {name: wheel.read(name) for name in wheel.namelist()}
    package = Path(taetpu.__file__).parent
    ours = {f.relative_to(package.parent).as_posix() for f in package.rglob("*") if f.suffix in (".py", ".yaml")}
    assert ours <= set(inside)
    assert "taetpu/cloud/vm/Dockerfile" in inside
    assert not [name for name in inside if "__pycache__" in name or name.endswith(".pyc")]
    record = f"taetpu-{plain.version}.dist-info/RECORD"
    rows = [row.split(",") for row in inside[record].decode().splitlines()]
    assert sorted(row[0] for row in rows) == sorted(inside)
    for name, digest, size in rows:
        if name != record:
            made = base64.urlsafe_b64encode(hashlib.sha256(inside[name]).digest()).decode().rstrip("=")
            assert (digest, size) == (f"sha256={made}", str(len(inside[name]))), name


@pytest.mark.slow
def test_pip_installs_the_wheel_and_its_command_runs(plain, tmp_path):
    (tmp_path / WHEEL).write_bytes(plain.files[WHEEL])
    target = tmp_path / "installed"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", target, WHEEL]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    there = {**os.environ, "PYTHONPATH": str(target)}
    said = subprocess.run(
        [target / "bin" / "taetpu", "--version"], env=there, capture_output=True, text=True, check=False
    )
    assert said.stdout.strip() == f"taetpu {plain.version}", said.stderr


@pytest.mark.slow
def test_an_installed_wheel_gives_the_same_tag_as_the_checkout_that_it_was_built_from(plain, tmp_path):
    root = Path(taetpu.__file__).parents[2]
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, root]
    made = subprocess.run(build, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    ask = "from taetpu.cloud.image.context import *; import taetpu; print(taetpu.__file__, context(Recipe()).tag)"
    there = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    asked = [sys.executable, "-c", ask]
    said = subprocess.run(asked, env=there, cwd=tmp_path, capture_output=True, text=True, check=False)
    file, _, tag = said.stdout.strip().rpartition(" ")
    assert Path(file).is_relative_to(tmp_path), said.stderr
    assert tag == plain.tag


def test_versions_are_those_of_the_lock_but_for_the_libtpu_that_jax_pins_itself(plain):
    root = Path(taetpu.__file__).parents[2]
    locked = (root / "requirements.lock").read_text().splitlines()
    pinned = plain.files["constraints.txt"].decode().splitlines()
    assert [line for line in locked if line not in pinned] == [one for one in locked if one.startswith("libtpu==")]
    assert "jax==" in plain.files["constraints.txt"].decode()


@pytest.mark.parametrize("name", ["torch_xla", "torch_tpu"])
def test_every_package_of_a_pytorch_is_pinned(plain, name):
    lines = [line for line in plain.files[f"{name}.txt"].decode().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+(\[\w+\])?==[\w.]+", line) for line in lines), lines
    names = {re.split(r"\[|==", line)[0].lower() for line in lines}
    assert {"torch", name, "libtpu"} <= names
    assert len(names) == len(lines)
    assert not [one for one in names if one.startswith(("nvidia", "cuda"))]


def test_every_generation_has_a_pytorch_and_doubts_are_told():
    assert set(SUITS) == {chip.name for chip in generations()}
    chosen = {chip.name: torch_of("auto", chip) for chip in generations()}
    assert chosen == {
        "v2": "torch_xla", "v3": "torch_xla", "v4": "torch_xla", "v5e": "torch_xla",
        "v5p": "torch_tpu", "v6e": "torch_tpu", "tpu7x": "torch_tpu",
    }  # fmt: skip
    v5e, v4 = resolve("v5e-8").generation, resolve("v4-8").generation
    assert doubts("torch_tpu", v5e) == "torch_xla is the usual one for v5e; torch_tpu is said to run there too"
    assert "nothing that we found says that torch_tpu runs on v4" in doubts("torch_tpu", v4)
    assert doubts("torch_xla", v4) == doubts("none", v4) == doubts("torch_tpu", None) == ""


def test_no_such_pytorch_names_those_that_there_are():
    with pytest.raises(UserError, match=r"there is no PyTorch 'torch-xla'") as refused:
        torch_of("torch-xla", None)
    assert refused.value.remedy is not None
    assert refused.value.remedy.startswith("did you mean 'torch_xla'?")
    with pytest.raises(UserError, match="needs to know the TPU"):
        torch_of("auto", None)


def test_a_tag_may_not_have_the_plus_of_a_local_version():
    assert Context("0.1.0+here", {}, {}).tag.startswith("0.1.0-here-")


GOOD = ("python:3.12-slim-bookworm", "python:3.13", "python:3", "python", "me/own:1", "a.b:5000/python:3.14-slim")


@pytest.mark.parametrize("image", [*GOOD, f"python:3.12@sha256:{'a1' * 32}"])
def test_base_images_that_may_be(image):
    assert check_python(image) == image


@pytest.mark.parametrize(
    ("image", "problem"),
    [
        ("3.12", "is a version and no image"),
        ("3", "is a version and no image"),
        ("python:3.11-slim", "has a Python below 3.12"),
        ("docker.io/library/python:3.9", "has a Python below 3.12"),
        ("python:2", "has a Python below 3.12"),
        ("Python:3.12", "cannot be the name of an image"),
        ("python 3.12", "cannot be the name of an image"),
        ("python:", "cannot be the name of an image"),
    ],
)
def test_base_images_that_may_not_be(image, problem):
    with pytest.raises(UserError, match=problem) as error:
        check_python(image)
    assert (error.value.path, "python:3.13-slim-bookworm" in str(error.value.remedy)) == (("--python",), True)
