"""A disk that fills up during a checkpoint or at any stage of a run."""

import pytest

CHECKPOINTS = """
import os, sys
from pathlib import Path
import jax.numpy as jnp, numpy as np
from taetpu.core.errors import UserError
from taetpu.store.backend import LocalStore
from taetpu.store.pack_checkpoints import PackFolder
from taetpu.train import checkpoint

disk, room = Path(sys.argv[1]), int(sys.argv[2])
state = [jnp.asarray(np.random.default_rng(i).standard_normal((64, 1024), np.float32)) for i in range(4)]
checkpoint.MARGIN = -2**30  # as when another process takes the space between asking for it and writing
pack = PackFolder(LocalStore(disk), "study", "pack")
checkpoints = checkpoint.Checkpoints(pack)
checkpoints.save(1, state)
(disk / "ballast").write_bytes(bytes(os.statvfs(disk).f_bavail * 4096 - room))
try:
    checkpoints.save(2, state)
except UserError as error:
    print(error)
(disk / "ballast").unlink()
again, step = checkpoints.resume([a * 0 for a in state])
print("kept", step)
assert all((a == b).all() for a, b in zip(again, state))
checkpoints.save(2, state)
print("then", checkpoints.latest())
"""

CROWDED = """
import os, sys
from pathlib import Path
import jax.numpy as jnp, numpy as np
from taetpu.core.atomic_files import free_bytes
from taetpu.store.backend import LocalStore
from taetpu.store.pack_checkpoints import PackFolder
from taetpu.train import checkpoint

disk = Path(sys.argv[1])
state = [jnp.asarray(np.random.default_rng(i).standard_normal((64, 1024), np.float32)) for i in range(4)]
checkpoint.MARGIN = 0
pack = PackFolder(LocalStore(disk), "study", "pack")
checkpoints = checkpoint.Checkpoints(pack)
for step in (1, 2, 3):
    checkpoints.save(step, state)
print(pack.steps())
(disk / "ballast").write_bytes(bytes(free_bytes(disk) - 500_000))
checkpoints.save(4, state)  # in the room of the third
print(pack.steps())
"""


# For nothing at all, and for a part of the arrays.
@pytest.mark.parametrize("room", [pytest.param(0, marks=pytest.mark.slow), 40_000])
def test_disk_full_during_a_checkpoint_keeps_the_previous_checkpoint(here, on_disk, room):
    (here / "checkpoints.py").write_text(CHECKPOINTS)
    done = on_disk("size=4m", f'"$PYTHON" checkpoints.py "$DISK" {room}')
    problem, where, remedy, kept, then = done.out.splitlines()
    assert problem.startswith("cannot write")
    assert ": No space left" in problem
    assert where == f"  where:  {here}/disk/study/packs/pack"
    assert "Free some space" in remedy
    assert "nothing was lost" in remedy
    assert (kept, then) == ("kept 1", "then 2")
    assert done.err == ""  # no traceback of a thread, no log of a library
    assert done.code == 0


@pytest.mark.slow
def test_oldest_checkpoint_is_deleted_if_space_is_short(here, on_disk):
    (here / "crowded.py").write_text(CROWDED)
    done = on_disk("size=4m", '"$PYTHON" crowded.py "$DISK"')
    assert (done.out.splitlines(), done.code) == (["[2, 3]", "[3, 4]"], 0), done.err


GROWING = """
for size in 16k 64k 68k 1100k 1400k 2100k; do
    mount -o remount,size=$size "$DISK"
    taetpu run s.yaml
    echo code $?
done
cp disk/small/results.json grown.json
"""


@pytest.mark.nightly
def test_disk_full_at_any_stage_loses_nothing(here, on_disk, trained):
    """Too small for the runs' configs, for a run's metrics or the times beside them (each file takes a page, and so one
    of two sizes that differ by a page meets the metrics), for the first checkpoint, for the second; then enough.
    """
    root, _ = trained
    done = on_disk("size=16k", GROWING)
    assert [line for line in done.out.splitlines() if line.startswith("code")] == ["code 2"] * 5 + ["code 0"]
    for what in ("/config.json\n", "/metrics/0-10.json\n", "cannot write a checkpoint", "resuming from step 10"):
        assert what in done.err
    assert done.err.count("error: ") == done.err.count("remedy: Free some space") == 5
    for noise in ("Traceback", "ERROR", "Exception"):
        assert noise not in done.err
    assert (here / "grown.json").read_bytes() == (root / "small/results.json").read_bytes()
