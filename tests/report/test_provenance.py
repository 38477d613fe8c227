"""Provenance of results, in groups."""

from pathlib import Path

from taetpu.report.inputs import read_inputs
from taetpu.report.provenance import LISTED


def test_facts_are_grouped_and_counted_if_they_are_many(store_study) -> None:
    folder = store_study({"baseline": ({}, 0.0), "x": ({"model.dim": 8}, 0.1), "bad": ({"model.dim": 9}, None)})
    for i, run in enumerate(folder.runs()):
        result = run.result()
        data = {"tokens": {"train": 123456, "val": 7, "test": 0}, "sha256": "ab12"}
        facts = {"environment": {**result["environment"], "data": data}, "pack": {"id": f"p{i}", "width": 8 + i % 2}}
        Path(run.where, "result.json").unlink()
        run.finish({**result, **facts})
    groups = {title: dict(facts) for title, facts in read_inputs(folder, folder.read_results()).provenance}
    assert list(groups) == ["Study", "Data", "Software", "Packs", "Machine"]
    assert groups["Study"]["runs"] == "7 finished, 2 diverged"
    assert groups["Study"]["steps"] == "40"
    assert groups["Data"]["tokens"] == "train 123,456, val 7"
    assert groups["Software"] == {"taetpu": "0.1.0", "jax": "0.10.2"}
    assert len(folder.runs()) > LISTED
    assert groups["Packs"]["id"] == f"{len(folder.runs())} different values"
    assert sorted(groups["Packs"]["width"]) == sorted("8, 9")
    assert groups["Machine"]["device"] == "cpu"
