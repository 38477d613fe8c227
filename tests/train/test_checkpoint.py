"""A checkpoint is restored as it was written, or not at all: damage is reported, and damaged checkpoints are moved."""

import random
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.store.backend import LocalStore
from taetpu.store.digests import Damaged
from taetpu.store.pack_checkpoints import PackFolder
from taetpu.train.checkpoint import Checkpoints


def state(step: int) -> list[jnp.ndarray]:
    return [jnp.asarray(np.random.default_rng(step).standard_normal((3, 50), np.float32)), jnp.arange(step)[:1]]


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """A root in which checkpoints of three steps were written."""
    root = tmp_path_factory.mktemp("written")
    checkpoints = Checkpoints(PackFolder(LocalStore(root), "study", "pack"))
    for step in (10, 20, 30):
        checkpoints.save(step, state(step), loss=step / 10)
    return root


@pytest.fixture
def root(written, tmp_path) -> Path:
    shutil.copytree(written, tmp_path / "root")
    return tmp_path / "root"


def resumed(root: Path, check=lambda about: None) -> tuple[int, list[tuple[str, str, str]]]:
    """Resume, compare the state, and return its step and the reported damages."""
    damages = []
    checkpoints = Checkpoints(PackFolder(LocalStore(root), "study", "pack"), lambda *damage: damages.append(damage))
    found, step = checkpoints.resume([a * 0 for a in state(1)], check)
    for a, b in zip(found, state(step) if step else [a * 0 for a in state(1)], strict=True):
        np.testing.assert_array_equal(a, b)
    if step < 30:
        checkpoints.save(30, state(30))
        assert checkpoints.latest() == 30
    return step, damages


def files(root: Path, step: int = 30) -> list[Path]:
    return sorted(path for path in (root / "study/packs/pack" / str(step)).rglob("*") if path.is_file())


def test_two_latest_checkpoints_are_kept_and_the_latest_is_resumed(root):
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
def test_damaged_file_is_reported_and_the_previous_checkpoint_is_resumed(written, tmp_path, fault):
    for number, file in enumerate(path.relative_to(written) for path in files(written)):
        here = tmp_path / str(number)
        shutil.copytree(written, here)
        FAULTS[fault](here / file, random.Random(number))
        step, damages = resumed(here)
        assert step == 20
        if (fault, file.name) == ("missing", "complete"):  # a checkpoint that was never completely written
            assert damages == []
            continue
        ((where, problem, moved),) = damages
        assert Path(where) in [(here / file).resolve(), (here / file.parent).resolve()]
        assert problem
        assert Path(moved) == here / "study/damaged/1/packs/pack/30"
        assert Path(moved).is_dir()


@pytest.mark.parametrize(("fault", "reported"), [("missing", 0), ("empty", 2)])
def test_pack_without_a_complete_checkpoint_starts_at_step_0(root, fault, reported):
    for step in (20, 30):
        for file in files(root, step):
            file.unlink() if fault == "missing" else file.write_bytes(b"")
    step, damages = resumed(root)
    assert (step, len(damages)) == (0, reported)


def test_checkpoint_that_does_not_match_the_runs_files_is_not_resumed(root):
    def check(about):
        if about["loss"] == 3.0:
            raise Damaged("another log", file="a/log")

    assert resumed(root, check) == (20, [("a/log", "another log", "")])
    assert not (root / "study/damaged").exists()


def test_a_checkpoint_that_orbax_wrote_is_moved_and_the_pack_starts_again(tmp_path):
    step = tmp_path / "study/packs/pack/30"
    step.mkdir(parents=True)
    (step / "_CHECKPOINT_METADATA").write_text("{}")
    start, ((where, problem, moved),) = resumed(tmp_path)
    assert (start, Path(where)) == (0, step.resolve())
    assert "Orbax" in problem
    assert (Path(moved) / "_CHECKPOINT_METADATA").is_file()
