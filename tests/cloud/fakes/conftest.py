"""A fake Compute Engine."""

from tests.cloud.gce import compute  # noqa: F401 (a fixture)
