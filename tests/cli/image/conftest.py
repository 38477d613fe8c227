"""Fixtures: see `tests.images`."""

from tests.images import cloud, docker, put, world  # noqa: F401 (fixtures)
