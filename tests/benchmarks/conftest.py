"""The training text, and child processes restricted to one core."""

import os

import pytest


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """The benchmarks' text as a file."""
    from benchmarks.shapes import write_text

    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture
def one_core():
    """Child processes use one core: PyTorch's threads wait for each other in loops, a plague where cores are shared."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mine)})
    yield
    os.sched_setaffinity(0, mine)
