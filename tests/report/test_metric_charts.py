"""Plots show the points of the runs on the chosen axis, and mistakes are refused."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import vl_convert
from tests.suites import by_default

from taetpu.core.errors import UserError
from taetpu.report.chart_files import save_chart
from taetpu.report.metric_charts import plot
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder

Made = Callable[..., StudyFolder]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Return a function that stores a study whose runs end at `losses[arm][seed]`, with a learning rate per arm."""

    def stored(losses: dict[str, list[float]], name: str = "one", lr: float = 0.1) -> StudyFolder:
        folder = StudyFolder(open_store(tmp_path), name)
        folder.write_study({"study": name, "arms": {arm: {} for arm in losses}, "seeds": [0, 1]})
        for i, (arm, values) in enumerate(losses.items()):
            for seed, last in enumerate(values):
                run = folder.run(arm, seed, f"{i:04x}{seed:04x}")
                train = {"batch_size": 4, "optimizer": {"kind": "adamw", "lr": lr * 10**i}}
                run.start({"config": {"model": {"dim": 8, "layers": [{}]}, "train": train}})
                series = {"val/loss": ([5, 10], [2 * last, last]), "tokens": ([5, 10], [500, 1000])}
                run.append(0, 10, series, {"seconds": ([5, 10], [3.0, 4.0])})
                run.append(10, 20, {"val/loss": ([20], [last])}, {"seconds": ([20], [2.0])})
        return folder

    return stored


def rows(chart) -> list[dict]:
    """Return all rows of data in a chart."""
    spec = chart.to_dict()
    return (
        [row for name in sorted(spec["datasets"]) for row in spec["datasets"][name]]
        if "datasets" in spec
        else _inner(spec)
    )


def _inner(spec) -> list[dict]:
    found = list(spec.get("data", {}).get("values", []))
    for key in ("layer", "vconcat"):
        for part in spec.get(key, []):
            found += [row for row in _inner(part) if row not in found]
    return found


def line(chart, name: str) -> dict[float, tuple[float, float, float]]:
    return {row["x"]: (row["low"], row["mean"], row["high"]) for row in rows(chart) if row.get("line") == name}


def test_baseline_is_dashed_and_on_top(made: Made) -> None:
    study = made({"baseline": [1.0, 2.0], "other": [1.0, 2.0], "baseline@dim=8": [1.0, 2.0]})
    *_, below, above = plot([study], "val/loss").to_dict()["layer"]
    assert [layer["transform"][0]["filter"] for layer in (below, above)] == ["!datum.baseline", "datum.baseline"]
    scales = [above["encoding"][channel]["scale"] for channel in ("strokeDash", "color")]
    dashes, colours = (dict(zip(scale["domain"], map(str, scale["range"]), strict=True)) for scale in scales)
    for styles in (dashes, colours):
        assert styles["baseline"] == styles["baseline@dim=8"] != styles["other"]


def test_line_is_the_mean_over_runs_with_its_range(made: Made) -> None:
    study = made({"baseline": [1.0, 2.0], "other": [4.0, 4.0]})
    assert line(plot([study], "val/loss"), "baseline") == {5: (2.0, 3.0, 4.0), 10: (1.0, 1.5, 2.0), 20: (1.0, 1.5, 2.0)}
    assert set(line(plot([study], "val/loss", arms=["other"]), "baseline")) == set()


@pytest.mark.parametrize(
    ("x", "places"),
    [("samples", [20, 40, 80]), ("tokens", [500, 1000]), ("time", [3.0, 4.0, 6.0])],
    ids=["samples", "tokens end", "time continues"],
)
def test_axis_other_than_steps(made: Made, x: str, places: list[float]) -> None:
    assert list(line(plot([made({"baseline": [1.0, 2.0]})], "val/loss", x), "baseline")) == places


def test_lines_are_grouped_by_study_run_or_setting(made: Made) -> None:
    studies = [made({"baseline": [1.0, 3.0], "b": [5.0, 5.0]}, name) for name in ("one", "two")]
    names = {by: {row["line"] for row in rows(plot(studies, "val/loss", by=by))} for by in ("arm", "study", "run")}
    assert names["arm"] == {"one/baseline", "one/b", "two/baseline", "two/b"}
    assert names["study"] == {"one", "two"}
    assert len(names["run"]) == 8
    by_lr = plot(studies, "val/loss", by="train.optimizer.lr")
    assert line(by_lr, "lr 0.1")[20] == (1.0, 2.0, 3.0)
    assert line(by_lr, "lr 1.0")[20] == (5.0, 5.0, 5.0)


def test_last_values_are_drawn_over_a_setting(made: Made) -> None:
    studies = [made({"a": [1.0, 3.0], "b": [5.0, np.nan]}), made({"a": [2.0, 2.0]}, "two", lr=1.0)]
    found = rows(plot(studies, "val/loss", x="train.optimizer.lr"))
    assert {row["setting"]: row["mean"] for row in found if "mean" in row} == {0.1: 2.0, 1.0: 3.0}
    assert sorted(row["value"] for row in found if "value" in row) == [1.0, 2.0, 2.0, 3.0, 5.0]


@pytest.mark.parametrize("suffix", by_default([".svg", ".pdf", ".png", ".json", ".html"], ".svg", ".json"))
def test_every_format_is_written(made: Made, tmp_path: Path, suffix: str) -> None:
    start = {".svg": b"<svg", ".pdf": b"%PDF", ".png": b"\x89PNG", ".json": b"{", ".html": b"<!DOCTYPE"}[suffix]
    file = tmp_path / f"loss{suffix}"
    save_chart(plot([made({"baseline": [1.0, 2.0]})], "val/loss"), file)
    assert file.read_bytes().lstrip().startswith(start)
    if suffix == ".json":
        assert "vega-lite" in json.loads(file.read_text())["$schema"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"metric": "val/los"}, "no .*metric 'val/los'"),
        ({"x": "train.optimizer.lt"}, "no .*setting 'train.optimizer.lt'"),
        ({"by": "arms"}, "no .*setting 'arms'"),
        ({"arms": ["bseline"]}, "no .*arm 'bseline'"),
    ],
)
def test_mistakes_are_refused(made: Made, settings: dict, says: str) -> None:
    study = made({"baseline": [1.0, 2.0], "b": [1.0, 2.0]})
    with pytest.raises(UserError, match=says) as error:
        plot([study], **{"metric": "val/loss", **settings})
    assert error.value.remedy


def test_too_many_lines_and_unknown_formats_are_refused(made: Made, tmp_path: Path) -> None:
    study = made({f"arm{i}": [1.0] for i in range(21)})
    with pytest.raises(UserError, match=r"at most 20 lines .* got 21"):
        plot([study], "val/loss")
    with pytest.raises(UserError, match=r"unknown chart format .*\.doc"):
        save_chart(plot([study], "val/loss", by="study"), tmp_path / "loss.doc")


def test_long_names_stay_distinct_in_the_legend(made: Made) -> None:
    names = [f"mixer.kind=attention,num_heads=8,position=rope,optimizer.lr={lr}" for lr in ("1e-3", "3e-3")]
    drawn = plot([made({name: [1.0, 2.0] for name in names})], "val/loss")
    texts = re.findall(r"<text[^>]*>(mixer[^<]*)</text>", vl_convert.vegalite_to_svg(drawn.to_dict()))
    assert {text[-4:] for text in texts} == {"1e-3", "3e-3"}
