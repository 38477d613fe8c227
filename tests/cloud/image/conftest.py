"""Fixtures: see `tests.images`."""

from tests.images import builder, cloud, docker, plain, put, registry, told, world  # noqa: F401 (fixtures)
