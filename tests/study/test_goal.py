"""Studies with a goal: what is frozen, a search that is killed and resumed, and mistakes."""

import pytest
from tests.small import TINY

import taetpu
from taetpu.core.errors import UserError
from taetpu.report.goal import candidate_table
from taetpu.report.terminal_text import table_text, text_table
from taetpu.spec.loading import load_study
from taetpu.stats.load import read_study
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.freeze import analysis_plan

LADDER = f"""{TINY}seeds: 2
ladder: {{model.dim: [4, 8, 16, 32]}}
goal: {{at_most: 1.2, minimise: params, monotone: true}}
"""


def written(tmp_path, text):
    file = tmp_path / "tiny.yaml"
    file.write_text(text)
    return file


def folder_at(root):
    return StudyFolder(open_store(str(root)), "tiny")


# --- what is frozen --------------------------------------------------------------------------------------------------


def test_a_goal_changes_the_plan_and_no_run(tmp_path):
    goal = load_study(written(tmp_path, LADDER))
    plain = load_study(written(tmp_path, LADDER[: LADDER.index("goal:")]))
    assert [run.id for run in goal.runs()] == [run.id for run in plain.runs()]
    assert analysis_plan(goal).sha256 != analysis_plan(plain).sha256
    assert "goal" not in analysis_plan(plain).frozen()
    assert analysis_plan(goal).goal["metric"] == "val/loss"


TASKS = f"""{TINY}seeds: 2
arms: {{wide: {{model.dim: 16}}, wider: {{model.dim: 32}}}}
tasks:
  copy: {{}}
  sort: {{task: {{kind: sort, seq_len: 16, symbols: 8}}, measure: {{primary: val/accuracy}}}}
goal: {{tasks: {{copy: {{at_most: 1.2}}, sort: {{at_least: 0.2}}}}, minimise: params, monotone: true}}
"""


def test_a_goal_has_a_threshold_for_each_task_and_a_cost_for_each_candidate(tmp_path):
    from taetpu.study.goal_costs import goal_costs
    from taetpu.study.matching import num_arm_params

    study = load_study(written(tmp_path, TASKS))
    assert analysis_plan(study).goal["tasks"] == {
        "copy": {"metric": "val/loss", "side": "at_most", "level": 1.2},
        "sort": {"metric": "val/accuracy", "side": "at_least", "level": 0.2},
    }
    sizes = {arm.name: num_arm_params(study, arm) for arm in study.arms}
    costs = goal_costs(study, {})
    assert list(costs) == ["baseline", "wide", "wider"]
    assert costs["wide"] == (sizes["wide"] + sizes["wide@sort"]) / 2


@pytest.mark.parametrize(
    ("goal", "path"),
    [
        ("{at_most: 1.2}", ("goal",)),
        ("{tasks: {copy: {at_most: 1.2}}}", ("goal",)),
        ("{tasks: {copy: {at_most: 1.2}, sort: {at_least: 0.2}, text: {at_most: 2}}}", ("goal", "tasks", "text")),
        ("{tasks: {copy: {at_most: 1.2}, sort: {at_most: 0.2}}}", ("goal", "tasks", "sort", "at_most")),
        ("{tasks: {copy: {}, sort: {at_least: 0.2}}}", ("goal", "tasks", "copy")),
        ("{at_most: 2, tasks: {copy: {at_most: 1.2}, sort: {at_least: 0.2}}}", ("goal", "at_most")),
    ],
)
def test_wrong_thresholds_of_tasks_are_refused_with_their_place(tmp_path, goal, path):
    with pytest.raises(UserError) as error:
        load_study(written(tmp_path, TASKS[: TASKS.index("goal:")] + f"goal: {goal}\n"))
    assert error.value.path == path
    assert error.value.remedy


@pytest.mark.slow
def test_a_search_on_tasks_trains_candidates_on_all_of_them(tmp_path):
    results = taetpu.run(written(tmp_path, TASKS), root=str(tmp_path / "root"), search=True).results
    for step in folder_at(tmp_path / "root").read_search():
        assert [name.partition("@")[2] for name in step["arms"]] == ["", "sort"]
    shown = next(each for each in results["goal"]["candidates"] if each["trained"])
    assert {*shown["tasks"]} == {"copy", "sort"}
    page = (tmp_path / "root/tiny/report/report.md").read_text()
    assert "val/accuracy on sort" in page


@pytest.mark.parametrize("minimise", ["params", "flops", "memory", "cache_bytes", "model.dim"])
def test_costs_of_a_ladder_of_widths_grow(tmp_path, minimise):
    from taetpu.study.goal_costs import goal_costs

    costs = goal_costs(load_study(written(tmp_path, LADDER.replace("params", minimise))), {})
    order = ["baseline@dim=4", "baseline", "baseline@dim=16", "baseline@dim=32"]
    assert sorted(costs, key=lambda name: costs[name]) == order
    assert len({*costs.values()}) == 4
    if minimise == "model.dim":
        assert list(costs.values()) == [8, 4, 16, 32]


# --- the search ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_search_that_was_killed_resumes_with_the_same_decisions_and_results(tmp_path, interrupting):
    file = written(tmp_path, LADDER)
    whole = taetpu.run(file, root=str(tmp_path / "whole"), search=True)
    steps = folder_at(tmp_path / "whole").read_search()
    assert len(steps) > 2
    with pytest.raises(KeyboardInterrupt):
        taetpu.run(file, root=str(tmp_path / "cut"), search=True, callback=interrupting("on_steps"))
    assert len(folder_at(tmp_path / "cut").read_search()) == 1
    limited = taetpu.run(file, root=str(tmp_path / "cut"), search=True, max_runs=6)
    assert folder_at(tmp_path / "cut").read_search() == steps[:3]
    resumed = taetpu.run(file, root=str(tmp_path / "cut"), search=True)
    assert folder_at(tmp_path / "cut").read_search() == steps
    assert resumed.results["goal"] == whole.results["goal"]
    assert limited.results["goal"]["candidates"][0]["name"] == "baseline@dim=4"


@pytest.mark.slow
def test_untrained_candidates_are_named_so_and_a_later_run_trains_them(tmp_path):
    file = written(tmp_path, LADDER)
    results = taetpu.run(file, root=str(tmp_path / "root"), search=True, max_runs=6).results
    outcomes = {arm["name"]: {run["outcome"] for run in arm["runs"]} for arm in results["arms"]}
    left = {name for name, kinds in outcomes.items() if kinds == {"untrained"}}
    assert left == {each["name"] for each in results["goal"]["candidates"] if not each["trained"]}
    assert left
    assert results["complete"]
    assert not results["final"]
    report = (tmp_path / "root/tiny/report/report.md").read_text()
    assert "missing" not in report
    assert "have not finished" not in report
    assert report.split("\n## ")[1].startswith("Goal")  # no table of verdicts that are all missing
    shown = candidate_table(results["goal"])
    assert [row[0] for row in shown.rows] == [name for name in outcomes if name not in left]
    assert {row[-1] for row in shown.rows} <= {"meets", "fails", "undecided"}
    assert "\n".join(text_table(shown.columns, shown.rows)) in table_text(results)
    later = taetpu.run(file, root=str(tmp_path / "root")).results
    assert later["final"]
    assert "searched" not in later
    assert all(each["trained"] for each in later["goal"]["candidates"])


@pytest.mark.slow
def test_measured_step_times_are_frozen(tmp_path):
    text = LADDER.replace("params", "step_time").replace("[4, 8, 16, 32]", "[4, 8]")
    taetpu.run(written(tmp_path, text), root=str(tmp_path / "root"))
    first = read_study(folder_at(tmp_path / "root")).get("goal_costs")
    assert all(cost > 0 for cost in first.values())
    taetpu.run(tmp_path / "tiny.yaml", root=str(tmp_path / "root"))
    assert read_study(folder_at(tmp_path / "root")).get("goal_costs") == first


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "path", "value"),
    [
        ("goal: {metric: val/los, at_most: 1.2}", ("goal", "metric"), "val/los"),
        ("goal: {metric: val/accuracy, at_least: 1.5}", ("goal", "at_least"), "1.5"),
        ("goal: {metric: val/accuracy, at_least: 1}", ("goal", "at_least"), "any"),
        ("goal: {metric: val/accuracy, at_least: 0}", ("goal", "at_least"), "every"),
        ("goal: {at_most: -1}", ("goal", "at_most"), "-1"),
        ("goal: {at_least: 1.2}", ("goal", "at_least"), "at_least"),
        ("goal: {at_least: 1.2, at_most: 2}", ("goal", "at_most"), "2"),
        ("goal: {monotone: true}", ("goal",), "0"),
        ("goal: {at_most: 1.2, minimise: model.norm}", ("goal", "minimise"), "model.norm"),
        ("goal: {at_most: 1.2, minimise: size}", ("goal", "minimise"), "size"),
        ("goal: {at_most: 1.2}\nmeasure: {looks: [2, 4]}", ("measure", "looks"), "looks"),
        ("goal: {at_most: 1.2}\ntune: {train.optimizer.lr: [1e-3, 1e-2]}", ("tune",), "tune"),
        ("goal: {at_most: 1.2}\nmatch: flops", ("match",), "match"),
    ],
)
def test_wrong_goals_are_refused_with_their_place(tmp_path, line, path, value):
    with pytest.raises(UserError) as error:
        load_study(written(tmp_path, LADDER.replace(LADDER[LADDER.index("goal:") :], line + "\n")))
    assert error.value.path == path
    assert value in error.value.problem
    assert error.value.remedy


def test_data_by_which_runs_choose_has_no_goal(tmp_path):
    text = LADDER.replace("sample: none}", "sample: none, evaluate: {kind: best, every: 2, windows: 2}}")
    text = text.replace("{at_most", "{metric: val/loss, at_most") + "measure: {primary: test/loss}\n"
    with pytest.raises(UserError) as error:
        load_study(written(tmp_path, text))
    assert error.value.path == ("goal", "metric")
    load_study(written(tmp_path, text.replace("metric: val/loss", "metric: test/loss")))


def test_a_single_seed_has_no_goal(tmp_path):
    with pytest.raises(UserError) as error:
        load_study(written(tmp_path, LADDER.replace("seeds: 2", "seeds: 1")))
    assert error.value.path == ("seeds",)


def test_options_of_a_search_are_refused_without_a_goal_or_with_too_few_runs(tmp_path):
    root = str(tmp_path / "root")
    plain = written(tmp_path, LADDER[: LADDER.index("goal:")])
    for options, path in (({"search": True}, ("goal",)), ({"max_runs": 9}, ("--max-runs",))):
        with pytest.raises(UserError) as error:
            taetpu.run(plain, root=root, **options)
        assert error.value.path == path
    file = written(tmp_path, LADDER)
    for options in ({"max_runs": 5}, {"shard": "0/2"}, {"until_resolved": True}):
        with pytest.raises(UserError) as error:
            taetpu.run(file, root=root, search=True, **options)
        assert error.value.path in {("--max-runs",), ("--search",)}
    assert not folder_at(root).exists()


@pytest.mark.slow
def test_a_changed_goal_is_refused(tmp_path):
    taetpu.run(written(tmp_path, LADDER), root=str(tmp_path / "root"), search=True, max_runs=6)
    with pytest.raises(UserError) as error:
        taetpu.run(written(tmp_path, LADDER.replace("1.2", "1.3")), root=str(tmp_path / "root"), search=True)
    assert error.value.path == ("goal", "level")
    assert "1.3" in error.value.problem
