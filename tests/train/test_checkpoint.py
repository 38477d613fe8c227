"""A checkpoint is restored as it was written, or not at all: damaged ones are named, set aside, and never read."""

import random
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.store.backend import LocalStore
from taetpu.store.digests import FOLDER, Damaged
from taetpu.store.packs import PackFolder
from taetpu.train.checkpoint import Checkpoints


def state(step: int) -> list[jnp.ndarray]:
    return [jnp.asarray(np.random.default_rng(step).standard_normal((3, 50), np.float32)), jnp.arange(step)[:1]]


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """A root with checkpoints of three steps, of which two are kept."""
    root = tmp_path_factory.mktemp("written")
    with Checkpoints(PackFolder(LocalStore(root), "study", "pack")) as checkpoints:
        for step in (10, 20, 30):
            checkpoints.save(step, state(step), loss=step / 10)
    return root


@pytest.fixture
def root(written, tmp_path) -> Path:
    shutil.copytree(written, tmp_path / "root")
    return tmp_path / "root"


def resumed(root: Path, check=lambda about: None) -> tuple[int, list[tuple[str, str, str]]]:
    """The step that is resumed from, after its state was compared, and what was told."""
    told = []
    with Checkpoints(PackFolder(LocalStore(root), "study", "pack"), lambda *line: told.append(line)) as checkpoints:
        found, step = checkpoints.resume([a * 0 for a in state(1)], check)
        for a, b in zip(found, state(step) if step else [a * 0 for a in state(1)], strict=True):
            np.testing.assert_array_equal(a, b)
        if step < 30:
            checkpoints.save(30, state(30))
            assert checkpoints.latest() == 30
    return step, told


def files(root: Path, step: int = 30) -> list[Path]:
    return sorted(path for path in (root / "study/packs/pack" / str(step)).rglob("*") if path.is_file())


def test_the_last_two_are_kept_and_the_newest_is_resumed(root):
    assert PackFolder(LocalStore(root), "study", "pack").steps() == [20, 30]
    seen = []
    assert resumed(root, seen.append) == (30, [])
    assert seen == [{"loss": 3.0}]


def flip(file: Path, at: random.Random) -> None:
    data = bytearray(file.read_bytes())
    data[at.randrange(len(data))] ^= 1 << at.randrange(8)
    file.write_bytes(data)


FAULTS = {
    "flipped": flip,
    "cut": lambda file, at: file.write_bytes(file.read_bytes()[: at.randrange(file.stat().st_size)]),
    "missing": lambda file, at: file.unlink(),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_any_damaged_file_is_named_and_the_checkpoint_before_is_resumed(root, written, tmp_path, fault):
    for number, file in enumerate(path.relative_to(written) for path in files(written)):
        here = tmp_path / str(number)
        shutil.copytree(written, here)
        if not (here / file).stat().st_size or (fault == "missing" and file.name == FOLDER):
            continue  # nothing to change; or a checkpoint of an earlier version
        FAULTS[fault](here / file, random.Random(number))
        step, told = resumed(here)
        assert step == 20
        ((where, problem, moved),) = told
        assert where == str((here / file).resolve())
        assert problem
        assert Path(moved) == here / "study/damaged/1/packs/pack/30"
        assert Path(moved).is_dir()
        shutil.rmtree(here)


@pytest.mark.parametrize("fault", ["empty", "emptied"])
def test_without_any_whole_checkpoint_it_begins_anew(root, fault):
    for step in (20, 30):
        for file in files(root, step):
            file.unlink() if fault == "empty" else file.write_bytes(b"")
    step, told = resumed(root)
    assert step == 0
    assert len(told) == 2


def test_one_without_digests_is_resumed_and_set_aside_where_it_cannot_be_read(root):
    for step in (20, 30):
        (root / f"study/packs/pack/{step}/{FOLDER}").unlink()
    assert resumed(root) == (30, [])
    for file in files(root):
        file.write_bytes(b"")
    step, ((where, problem, _),) = resumed(root)
    assert (step, where) == (20, str((root / "study/packs/pack/30").resolve()))
    assert "cannot be read" in problem


def test_one_that_its_runs_do_not_agree_with_is_not_resumed(root):
    def check(about):
        if about["loss"] == 3.0:
            raise Damaged("the log was changed", file="a/log")

    assert resumed(root, check) == (20, [("a/log", "the log was changed", "")])
    assert not (root / "study/damaged").exists()
