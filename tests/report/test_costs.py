"""Costs in tables and charts: ratios with their spread, marks of a busy machine, frontiers of any two columns."""

import pytest

from taetpu.core.errors import UserError
from taetpu.report.build import build_report
from taetpu.report.chart_files import as_altair
from taetpu.report.cost_columns import COLUMNS as COST
from taetpu.report.cost_tables import counted_table, ratio_text, timed_notes, timed_table
from taetpu.report.costs import read_costs, read_measured
from taetpu.report.design_charts import frontier_charts
from taetpu.report.frontier import front_columns, front_points, parse_columns
from taetpu.report.terminal_text import COLUMNS, cost_text
from taetpu.stats.verify import verify

MACHINE = {"cpu": "Some CPU", "cores": 8, "device": "cpu", "devices": 1, "platform": "cpu"}


def rounds(base, *pairs, others=0.0):
    """Return rounds from pairs of the baseline's and the arm's seconds."""
    return [
        {"order": [base, "arm"][:: 1 if i % 2 == 0 else -1], "seconds": {base: ours, "arm": theirs}, "others": others}
        for i, (ours, theirs) in enumerate(pairs)
    ]


def timing(results, name, step, decode=(), **more):
    """Return stored times of an arm, whose name takes the place of `arm` in the rounds."""
    arm = next(arm for arm in results["arms"] if arm["name"] == name)

    def named(parts):
        swap = {"arm": name}
        return [
            {
                "order": [swap.get(each, each) for each in part["order"]],
                "seconds": {swap.get(each, each): value for each, value in part["seconds"].items()},
                "others": part["others"],
            }
            for part in parts
        ]

    return {
        "run": arm["runs"][0]["id"] + "0" * 24,
        "against": arm["against"],
        "date": "2026-11-28T00:00:00+00:00",
        "before": 0.0,
        "same_program": False,
        "step": named(step),
        "decode": named(decode),
        "missing": {},
        **more,
    }


def store(folder, key, timings, date="2026-11-28", **more):
    empty = {"versions": {}, "compiled": {}, "machine": MACHINE}
    folder.write_costs(key, {"date": date, **empty, "timings": timings, **more})


@pytest.fixture
def folder(store_study):
    """A study with times of two arms: the second on a busy machine."""
    folder = store_study()
    results = folder.read_results()
    steps = rounds("baseline", (0.010, 0.012), (0.010, 0.011), (0.020, 0.026))
    decode = rounds("baseline", (0.001, 0.002), (0.001, 0.004), (0.001, 0.002))
    store(
        folder,
        "cpu-1",
        {
            "nope": timing(results, "nope", steps, decode),
            "untied": timing(results, "untied", rounds("baseline", (0.01, 0.02), others=0.63)),
            "no-norm": timing(results, "no-norm", [], same_program=True),
            "one-head": timing(results, "one-head", steps, missing={"decode": "it cannot"}),
        },
    )
    return folder


def opened(folder):
    results = folder.read_results()
    measured = read_measured(folder, results)
    return results, read_costs(folder, results, measured), measured


def test_ratios_are_medians_over_rounds_with_their_range(folder):
    _, costs, measured = opened(folder)
    (times,) = measured.machines
    step, decode = (times.ratios["nope"][cost] for cost in ("step_time", "decode_rate"))
    assert [step.median, step.least, step.most] == pytest.approx([1.2, 1.1, 1.3])
    assert [decode.median, decode.least, decode.most] == pytest.approx([0.5, 0.25, 0.5])
    base = costs["baseline"]["step_time"]
    assert base == 0.01
    assert costs["nope"]["step_time"] == pytest.approx(1.2 * base)
    assert costs["nope"]["decode_rate"] == pytest.approx(0.5 * costs["baseline"]["decode_rate"])
    assert costs["no-norm"]["step_time"] == base
    assert "step_time" not in costs["layernorm"]


def test_a_busy_machine_is_marked_in_every_table(folder):
    results, costs, measured = opened(folder)
    rows = {row[0]: row for row in timed_table(results, measured.machines[0], results["arms"]).rows}
    assert rows["nope"][1:3] == ["1.20 (1.10-1.30)", "0.50 (0.25-0.50)"]
    assert rows["untied"][1] == "2.00 (2.00-2.00)*"
    assert rows["no-norm"][1] == "same program"
    marked = [note for note in timed_notes(results, measured.machines[0]) if note.startswith("*")]
    assert len(marked) == 1
    assert "63%" in marked[0]
    written = build_report(folder)
    for text in (cost_text(results, costs, measured), *(read(written[name]) for name in ("html", "markdown"))):
        assert "2.00 (2.00-2.00)" in text
        assert "63%" in text
        assert "it cannot" in text


def read(file):
    with open(file, encoding="utf-8") as opened:
        return opened.read().replace("\\", "")


def test_an_idle_machine_is_not_marked(folder):
    results = folder.read_results()
    store(folder, "cpu-1", {"nope": timing(results, "nope", rounds("baseline", (1.0, 2.0), others=0.01))})
    results, costs, measured = opened(folder)
    assert "*" not in cost_text(results, costs, measured)


def test_each_machine_has_a_table_and_the_latest_is_first(folder):
    results = folder.read_results()
    other = {**MACHINE, "device": "Some GPU", "platform": "gpu"}
    step = rounds("baseline", (1.0, 3.0))
    store(folder, "gpu-1", {"nope": timing(results, "nope", step)}, date="2026-11-29", machine=other)
    results, costs, measured = opened(folder)
    assert [times.where for times in measured.machines] == ["Some GPU", "Some CPU (8 cores)"]
    assert costs["nope"]["step_time"] == 3.0
    text = cost_text(results, costs, measured)
    assert "3.00 (3.00-3.00)" in text
    assert "Some CPU" in text
    page = read(build_report(folder)["html"])
    assert "3.00 (3.00-3.00)" in page
    assert "1.20 (1.10-1.30)" in page


def test_costs_of_runs_that_are_not_in_the_results_are_left_out(folder):
    results = folder.read_results()
    stale = timing(results, "nope", rounds("baseline", (1.0, 2.0)), run="f" * 32)
    compiled = {arm["name"]: {"run": "f" * 32, "bytes": 5} for arm in results["arms"]}
    store(folder, "cpu-1", {"nope": stale}, compiled=compiled)
    measured = read_measured(folder, results)
    assert (list(measured.machines), dict(measured.memory)) == ([], {})


def test_counted_costs_are_ratios_to_the_baseline(folder):
    results, costs, measured = opened(folder)
    memory = {arm["name"]: {"run": arm["runs"][0]["id"], "bytes": 1000 * i} for i, arm in enumerate(results["arms"], 1)}
    cycles = {name: {**entry, "cycles": 7.0 * entry["bytes"]} for name, entry in memory.items()}
    store(folder, "cpu-2", {}, compiled=memory)
    folder.write_costs("tpu-v5e-1", {"date": "2026-11-28", "versions": {}, "tpu": "v5e-1", "compiled": cycles})
    results, costs, measured = opened(folder)
    table = counted_table(results, costs, results["arms"])
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    arm = next(arm for arm in results["arms"] if arm["name"] == "nope")
    assert rows["nope"]["params"] == ratio_text(arm["params"] / results["arms"][0]["params"])
    assert rows["baseline"]["memory"] == "1.00 kB"
    assert rows["nope"]["memory"] == "2.00"
    assert rows["baseline"]["cache/token"] == "1.02 kB"
    assert rows["nope"]["TPU cycles"] == "2.00"
    assert rows["nope"]["verdict"] == (arm["verdict"] or "")
    assert "v5e-1" in cost_text(results, costs, measured)


@pytest.mark.parametrize(
    ("ratio", "text"), [(1.0, "1.00"), (0.1, "0.10"), (0.0123, "0.0123"), (99.5, "99.50"), (1234.0, "1.23k")]
)
def test_ratios_hide_no_digits(ratio, text):
    assert ratio_text(ratio) == text


def test_tables_fit_a_terminal(store_study):
    names = [f"an-arm-with-a-long-name-that-differs-at-its-end-or-in-the-middle-{i}-of-it" for i in range(15)]
    folder = store_study({"baseline": ({}, 0.0), **{name: ({"model.dim": 32}, 0.1) for name in names}})
    results = folder.read_results()
    step = rounds("baseline", (0.01, 0.0123), (0.01, 0.6), others=0.4)
    store(folder, "cpu-1", {name: timing(results, name, step, step) for name in names},
          compiled={arm["name"]: {"run": arm["runs"][0]["id"], "bytes": 123456789 + i} for i, arm in
                    enumerate(results["arms"])})  # fmt: skip
    cycles = {arm["name"]: {"run": arm["runs"][0]["id"], "bytes": 1, "cycles": 1e9 + i} for i, arm in
              enumerate(results["arms"])}  # fmt: skip
    folder.write_costs("tpu-v5e-1", {"date": "2026-11-28", "versions": {}, "tpu": "v5e-1", "compiled": cycles})
    text = cost_text(*opened(folder))
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= COLUMNS
    for name in names:
        assert name in text


def test_equal_costs_need_no_table(store_study):
    folder = store_study({"baseline": ({}, 0.0), "same": ({"train.optimizer.lr": 1e-4}, 0.1)})
    results = folder.read_results()
    for arm in results["arms"]:
        arm["params"], arm["flops"], arm["memory"] = 10.0, 100.0, {"training": 5.0, "kv_cache": 4.0}
    folder.write_results(results)
    results, costs, measured = opened(folder)
    text = cost_text(results, costs, measured)
    assert "same" not in text.split()
    assert "taetpu costs what-matters --time" in " ".join(text.split())


def test_measured_costs_do_not_change_the_results(folder):
    with_costs = verify(folder)
    folder.store.delete(f"{folder.name}/costs")
    assert folder.read_costs() == {}
    assert verify(folder) == with_costs


# --- frontiers --------------------------------------------------------------------------------------------------------


def test_the_frontier_of_two_columns_has_the_arms_that_none_beats(folder):
    """More tokens per second and fewer parameters are better."""
    results, costs, _ = opened(folder)
    points = {point["arm"]: point for point in front_points(results, costs, "params", "decode_rate")}
    assert set(points) == {"baseline", "nope", "no-norm"}
    assert {arm for arm, point in points.items() if point["front"]} == {"baseline"}
    swapped = {point["arm"]: point["front"] for point in front_points(results, costs, "decode_rate", "params")}
    assert swapped == {arm: point["front"] for arm, point in points.items()}


def test_a_chart_exists_for_every_two_columns(folder):
    results, costs, _ = opened(folder)
    names = front_columns(results, costs)
    assert {"val/loss", "params", "memory", "step_time", "decode_rate"} <= set(names)
    charts = frontier_charts(results, costs)
    assert set(charts) == {f"{x} {y}" for x in names for y in names if x != y}
    spec = charts["params decode_rate"]
    assert as_altair(spec).to_dict()
    assert {point["arm"] for point in spec["datasets"]["points"]} == {"baseline", "nope", "no-norm"}
    titles = {(layer["encoding"]["x"]["title"], layer["encoding"]["y"]["title"]) for layer in spec["layer"]}
    assert titles == {tuple(COST[name].title for name in ("params", "decode_rate"))}


@pytest.mark.parametrize(
    ("given", "value", "hint"),
    [
        ("paramz,val/loss", "'paramz'", "params"),
        ("params,cycles", "'cycles'", "params"),
        ("params", "'params'", "val/loss"),
        ("params,params", "'params,params'", "val/loss"),
    ],
)
def test_unknown_columns_are_refused(folder, given, value, hint):
    results, costs, _ = opened(folder)
    with pytest.raises(UserError) as refused:
        parse_columns(given, results, costs)
    assert value in refused.value.problem
    assert hint in refused.value.remedy
    assert refused.value.path == ("--frontier",)
