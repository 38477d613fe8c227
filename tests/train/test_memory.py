"""What memory there is, and how running out of it shows."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest

from taetpu.train.memory import host_bytes, out_of_memory

SCRIPT = """
import json, os, resource
import jax, jax.numpy as jnp, numpy as np
from taetpu.train.memory import out_of_memory, peak_bytes
before = peak_bytes()
block = np.ones(before // 8)  # as much again as was ever held
found = {"grown": (peak_bytes() - before) / before}
jnp.ones(8).block_until_ready()
size = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 29), resource.RLIM_INFINITY))
try:
    jnp.ones(1 << 28).block_until_ready()
except Exception as error:
    found |= {"raised": type(error).__name__, "known": out_of_memory(error)}
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_process_knows_what_it_has_held_and_when_it_gets_no_more():
    """In a process that may not have a gigabyte: what jax raises then."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 0.5 < found["grown"] < 1.5
    assert (found["raised"], found["known"]) == ("JaxRuntimeError", True)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (np.exceptions.AxisError(1), False),
        (jax.errors.JaxRuntimeError("INVALID_ARGUMENT: no"), False),
        (RuntimeError("RESOURCE_EXHAUSTED: said by somebody else"), False),
    ],
)
def test_other_failures_are_not(error, expected):
    assert out_of_memory(error) is expected


@pytest.mark.parametrize("version", [1, 2])
def test_the_smallest_limit_of_the_control_groups_counts(tmp_path, version):
    base, name = (tmp_path / "memory", "memory.limit_in_bytes") if version == 1 else (tmp_path, "memory.max")
    (tmp_path / "member").write_text("5:cpu,memory:/a/b\n" if version == 1 else "0::/a/b\n")
    groups = [base, base / "a", base / "a/b"]
    groups[-1].mkdir(parents=True)
    whole = host_bytes(tmp_path, tmp_path / "member")
    assert whole > 1 << 20
    for group, limit in zip(groups, ("max" if version == 2 else str(1 << 62), "1000000", "2000000"), strict=True):
        (group / name).write_text(f"{limit}\n")
    assert host_bytes(tmp_path, tmp_path / "member") == 1_000_000
    (tmp_path / "member").write_text("7:cpu:/a/b\n")
    assert host_bytes(tmp_path, tmp_path / "member") == whole
