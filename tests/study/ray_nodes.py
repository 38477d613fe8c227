"""A Ray cluster of three nodes on this machine, which runs in a separate process (`ray_cluster`)."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Nodes:
    """A cluster in a separate process."""

    process: subprocess.Popen[str]
    address: str

    def kill(self, node: int) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"kill {node}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "killed\n"


@contextmanager
def started_nodes(gpus: int = 0, environment: Mapping[str, str] | None = None) -> Iterator[Nodes]:
    """Yield a cluster of three nodes with two CPUs each, of which the first that can be killed claims to have GPUs."""
    words = [sys.executable, "-m", "tests.study.ray_cluster", str(gpus)]
    variables = {"RAY_DISABLE_IMPORT_WARNING": "1", "RAY_USAGE_STATS_ENABLED": "0", **(environment or {})}
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env=os.environ | variables, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert process.stdout
    address = process.stdout.readline().strip()
    assert address, "the cluster did not start"
    yield Nodes(process, address)
    process.communicate("end\n", timeout=60)
