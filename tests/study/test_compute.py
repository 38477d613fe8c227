"""Compute options change the last bits of a study but not its run IDs, and the results record the options."""

import numpy as np
import pytest
from tests.small import TINY

from taetpu.study.pack_store import stored_plans

HOW = "compute: {remat: dots, loss_chunk: 12}"


@pytest.mark.slow
def test_compute_options_change_neither_curves_nor_run_ids(study):
    text = TINY.replace("sample: none", f"sample: none, accumulate: 2, {HOW}")
    (other, folder), (plain, first) = study(text), study(text.replace(f", {HOW}", ""), "first")
    assert [run.id for run in folder.runs()] == [run.id for run in first.runs()]
    assert {(c.remat, c.loss_chunk, c.attention) for p in stored_plans(folder) for c in [p.compute]} == {
        ("dots", 12, "plain")
    }
    for ours, theirs in zip(folder.runs(), first.runs(), strict=True):
        for name, series in theirs.metrics().items():
            np.testing.assert_allclose(ours.metrics()[name].value, series.value, rtol=1e-5, err_msg=name)
    (pack,), (before,) = other.results["packs"], plain.results["packs"]
    assert pack == before | {"remat": "dots", "loss_chunk": 12}
