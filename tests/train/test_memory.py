"""The memory of this machine, and errors of running out of it."""

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
from taetpu.train.memory import out_of_memory
jnp.ones(8).block_until_ready()
size = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 29), resource.RLIM_INFINITY))
try:
    jnp.ones(1 << 28).block_until_ready()
except Exception as error:
    print(json.dumps([type(error).__name__, out_of_memory(error)]))
"""


@pytest.mark.slow
def test_out_of_memory_error_of_jax_is_recognised():
    """The error is raised in a process whose address space is limited."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["JaxRuntimeError", True]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (np.exceptions.AxisError(1), False),
        (jax.errors.JaxRuntimeError("INVALID_ARGUMENT: no"), False),
        (RuntimeError("RESOURCE_EXHAUSTED: elsewhere"), False),
    ],
)
def test_other_errors_are_not_out_of_memory(error, expected):
    assert out_of_memory(error) is expected


def test_smallest_limit_of_the_control_groups_counts(tmp_path):
    (tmp_path / "member").write_text("0::/a/b\n")
    groups = [tmp_path, tmp_path / "a", tmp_path / "a/b"]
    groups[-1].mkdir(parents=True)
    whole = host_bytes(tmp_path, tmp_path / "member")
    assert whole > 1 << 20
    for group, limit in zip(groups, ("max", "1000000", "2000000"), strict=True):
        (group / "memory.max").write_text(f"{limit}\n")
    assert host_bytes(tmp_path, tmp_path / "member") == 1_000_000
