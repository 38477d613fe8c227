"""`place`: a fake cloud for each backend, and for slices of several hosts, in which nobody may have a machine twice."""

import pytest
from tests.cloud.reconciling import EACH, cloud


@pytest.fixture(params=EACH, ids=lambda kind: kind.name)
def place(request, tmp_path):
    with cloud(request.param, tmp_path) as made:
        yield made
    assert made.world.twice == []
