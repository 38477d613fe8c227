"""Packs spread over slices of one host and of many."""

import pytest
from tests.tpu.conftest import NEEDS_LIBTPU, STUDY

from taetpu.core.chips import parse_slice

pytestmark = [pytest.mark.nightly, NEEDS_LIBTPU]


@pytest.mark.parametrize("name", ["v2-8", "v3-8", "v4-32", "v5e-16", "v5p-64", "v6e-256"])
def test_a_run_on_every_device_compiles(compile_study, name: str) -> None:
    tpu = parse_slice(name)
    (found,) = compile_study(name, text=STUDY.replace("seeds: 2", f"seeds: {tpu.devices}"))[0]["programs"]
    assert (found["width"], found["devices"]) == (tpu.devices, tpu.devices)
    assert found["hbm"]["needed"] < found["hbm"]["available"]
