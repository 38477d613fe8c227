"""Goals: tests against the threshold, Holm's procedure along the costs, the answer, and the order of a search."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from taetpu.core.errors import UserError
from taetpu.report.goal import goal_section
from taetpu.report.goal_chart import goal_charts
from taetpu.stats.goal import Comparison, Decision, Level, answer_goal, compare_levels, decide, possible
from taetpu.stats.goal_search import check_max_runs, count_looks, count_runs, next_step
from taetpu.stats.levels import errors_of_studies, level_errors

GOAL = {"metric": "val/loss", "side": "at_most", "level": 1.9, "minimise": "params", "monotone": True}
ANY = {**GOAL, "monotone": False}
ALPHA = 0.05


def compared(ps, costs=()):
    """Return trained candidates with the given pairs of p-values; None for an untrained one."""
    costs = costs or range(len(ps))
    sides = [{"meets": 1.0, "fails": 1.0} if p is None else {"meets": p[0], "fails": p[1]} for p in ps]
    return [
        Comparison(Level(str(i), cost, () if p is None else (1.0, 2.0)), 1.5, 0.1, 4.0, side)
        for i, (p, cost, side) in enumerate(zip(ps, costs, sides, strict=True))
    ]


# --- the error of a mean ---------------------------------------------------------------------------------------------


def test_two_candidates_have_the_t_interval_of_their_own_seeds():
    values = [1.8, 1.9, 1.7], [2.1, 2.4, 2.2]
    errors, df = level_errors([np.array(row) for row in values])
    np.testing.assert_allclose(errors, [stats.sem(row) for row in values])
    np.testing.assert_array_equal(df, [2, 2])


def test_what_seeds_share_stays_in_the_error_and_lowers_its_degrees_of_freedom():
    rng = np.random.default_rng(0)
    noise, shared = rng.standard_normal((400, 8, 5)), rng.standard_normal((400, 1, 5))
    alone, df_alone = errors_of_studies(noise)
    together, df_together = errors_of_studies(noise + 4 * shared)
    assert np.median(df_together) < 5 < 12 < np.median(df_alone)
    assert 3.2 < np.median(together) / np.median(alone) < 4.6


@pytest.mark.parametrize("block", [0.0, 1.0])
def test_intervals_of_means_cover_the_truth(block):
    rng, studies = np.random.default_rng(1), 600
    y = rng.standard_normal((studies, 6, 4)) + block * rng.standard_normal((studies, 1, 4))
    errors, df = errors_of_studies(y)
    covered = (np.abs(y.mean(2)) < stats.t.ppf(0.975, df) * errors).mean()
    assert covered > 0.95 - 2 * math.sqrt(0.95 * 0.05 / studies)


def test_a_noisy_candidate_has_a_larger_error_and_one_without_two_values_has_none():
    rng = np.random.default_rng(2)
    y = rng.standard_normal((6, 5)) * np.array([1, 1, 10, 1, 1, 1])[:, None]
    y[5, 1:] = np.nan
    errors, _ = level_errors(list(y))
    assert errors[2] > 3 * np.median(errors[:5])
    assert math.isnan(errors[5])


# --- tests and decisions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("side", "meeting"), [("at_most", "0"), ("at_least", "1")])
def test_p_values_are_those_of_a_one_sided_t_test(side, meeting):
    values = {"0": (1.8, 1.7, 1.75), "1": (2.1, 2.3, 2.2)}
    goal = {**GOAL, "side": side}
    for each in compare_levels(goal, [Level(name, float(name), row) for name, row in values.items()]):
        alternative = "less" if side == "at_most" else "greater"
        expected = stats.ttest_1samp(values[each.level.name], 1.9, alternative=alternative).pvalue
        assert each.p["meets"] == pytest.approx(expected)
        assert each.p["fails"] == pytest.approx(1 - expected)
        assert (each.side == "meets") == (each.level.name == meeting)


def test_a_candidate_with_a_diverged_run_never_meets_and_equal_runs_have_the_sign_test():
    lost, equal, gone = compare_levels(
        GOAL,
        [Level("lost", 0, (1.0, 1.1, math.nan), 1), Level("equal", 1, (1.5, 1.5, 1.5)), Level("gone", 2, (), 3)],
    )
    assert lost.p["meets"] == 1.0
    assert equal.p["meets"] == 0.125
    assert gone.p == {"meets": 1.0, "fails": 0.125}


def test_holm_counts_untrained_candidates():
    decided = decide(compared([(1.0, 0.001), (0.01, 0.99), None, (0.004, 0.99)]), monotone=False)
    assert decided == [Decision("fails", 0.004), Decision("meets", 0.02), None, Decision("meets", 0.012)]
    assert decide(compared([(1.0, 0.001)]), monotone=False, looks=2) == [Decision("fails", 0.002)]


def test_a_monotone_decision_decides_its_side_and_leaves_fewer_candidates():
    ps = None, (0.999, 0.001), None, (0.02, 0.98), None, (0.003, 0.997), None
    decided = decide(compared(ps), monotone=True)
    # 7 candidates are left, then 5 above the second, then 3 between the second and the sixth, of which one is decided.
    assert [each and each.side for each in decided] == ["fails"] * 2 + [None] + ["meets"] * 4
    assert [each and each.p for each in decided] == [0.007, 0.007, None, *[pytest.approx(0.06)] * 2, 0.015, 0.015]


def test_equal_costs_decide_nothing_about_each_other():
    decided = decide(compared([(0.001, 1.0), None], costs=[5, 5]), monotone=True)
    assert decided[1] is None


# --- the answer ------------------------------------------------------------------------------------------------------


def test_possible_candidates_end_at_the_first_that_meets():
    many = compared([(1.0, 1e-9), (0.5, 0.5), (1e-9, 1.0), (0.4, 0.6)])
    assert possible(many, decide(many, monotone=False), ALPHA) == ([1, 2], False)
    failing = compared([(1.0, 1e-9), (1.0, 1e-9)])
    assert possible(failing, decide(failing, monotone=False), ALPHA) == ([], True)
    equal = compared([(1e-6, 1.0), (1e-9, 1.0)], costs=[3, 3])
    assert possible(equal, decide(equal, monotone=False), ALPHA) == ([1], False)


def ladder(means, noise=0.01, seeds=4, shown=None):
    rng = np.random.default_rng(3)
    values = np.array(means)[:, None] + noise * rng.standard_normal((len(means), seeds))
    rows = [tuple(row) if shown is None or i in shown else () for i, row in enumerate(values.tolist())]
    return [Level(f"c{i}", 10.0 * (i + 1), row) for i, row in enumerate(rows)]


def test_the_answer_names_the_smallest_with_its_confidence():
    answer = answer_goal(GOAL, ladder([2.5, 2.2, 1.8, 1.5]), ALPHA)
    assert (answer["smallest"], answer["best"], answer["possible"]) == ("c2", "c2", ["c2"])
    assert answer["confidence"] == min(answer["meets"], answer["no_smaller"]) > 0.95
    assert answer["more_seeds"] is None
    assert [each["side"] for each in answer["candidates"]] == ["fails", "fails", "meets", "meets"]


def test_no_candidate_is_named_where_two_are_possible():
    answer = answer_goal(GOAL, ladder([2.5, 1.905, 1.87, 1.5], noise=0.05), ALPHA)
    assert answer["smallest"] is None
    assert {"c1", "c2"} <= {*answer["possible"]}
    assert answer["more_seeds"] > 0
    assert answer["confidence"] < 0.95


def test_a_goal_that_nothing_meets_has_no_candidate():
    answer = answer_goal(GOAL, ladder([2.5, 2.3, 2.2]), ALPHA)
    assert answer["none"]
    assert answer["possible"] == []
    assert answer["best"] is None


def test_the_stated_seeds_give_the_stated_power():
    gap, sd, rng = 0.06, 0.1, np.random.default_rng(4)
    values = rng.standard_normal(5)
    values = 1.9 - gap + sd * (values - values.mean()) / values.std(ddof=1)
    answer = answer_goal(GOAL, [Level("only", 1.0, tuple(values))], ALPHA)
    quantiles = stats.norm.isf(ALPHA) + stats.norm.isf(0.2)
    assert answer["more_seeds"] == math.ceil((quantiles * sd / gap) ** 2) - 5


# --- several tasks ---------------------------------------------------------------------------------------------------

TASKS = {
    "text": {"metric": "val/loss", "side": "at_most", "level": 1.9},
    "sort": {"metric": "val/accuracy", "side": "at_least", "level": 0.9},
}
EVERY = {**GOAL, "tasks": TASKS}


def on_tasks(losses, accuracies, noise=0.005, seeds=4):
    """Return candidates with the given means on the two tasks."""
    rows = zip(ladder(losses, noise, seeds), ladder(accuracies, noise, seeds), strict=True)
    parts = [
        [replace(level, name=f"{level.name}@{task}") for level, task in zip(row, TASKS, strict=True)] for row in rows
    ]
    return [Level(f"c{i}", 10.0 * (i + 1), tasks=tuple(row)) for i, row in enumerate(parts)]


def test_a_candidate_meets_all_thresholds_with_the_largest_p_and_fails_with_the_smallest():
    levels = on_tasks([1.8, 1.8, 2.5], [0.95, 0.8, 0.8], noise=0.05)
    alone = [
        compare_levels({**GOAL, **threshold}, [replace(level.tasks[i], cost=level.cost) for level in levels])
        for i, threshold in enumerate(TASKS.values())
    ]
    for number, each in enumerate(compare_levels(EVERY, levels)):
        parts = [row[number].p for row in alone]
        assert each.p["meets"] == max(p["meets"] for p in parts)
        assert each.p["fails"] == min(1, 2 * min(p["fails"] for p in parts))
    assert [each.side for each in compare_levels(EVERY, levels)] == ["meets", "fails", "fails"]


def test_the_smallest_candidate_meets_the_threshold_of_every_task():
    levels = on_tasks([2.5, 1.5, 1.5, 1.5, 1.4], [0.5, 0.5, 0.6, 0.97, 0.98])
    answer = answer_goal(EVERY, levels, ALPHA)
    assert answer["smallest"] == "c3"
    shown = answer["candidates"][3]["tasks"]
    assert shown["text"]["mean"] == pytest.approx(1.5, abs=0.02)
    assert shown["sort"]["mean"] == pytest.approx(0.97, abs=0.02)
    assert answer["candidates"][3]["mean"] is None
    steps = search(EVERY, levels)[0]
    assert all(step["arms"] == [f"{name}@text", f"{name}@sort"] for step in steps for name in [step["arms"][0][:2]])
    assert len(steps) <= 3
    assert search(EVERY, levels)[1]["smallest"] == "c3"


def test_the_table_has_the_side_before_the_values_on_each_task():
    answer = answer_goal(EVERY, on_tasks([2.5, 1.5], [0.5, 0.97]), ALPHA)
    section = goal_section({"goal": answer, "plan": {}})
    (table,) = section.tables
    assert table.columns[3:] == ("side", "Holm p", "val/loss on text", "val/accuracy on sort")
    assert [row[3] for row in table.rows] == ["fails", "meets"]
    for row, each in zip(table.rows, answer["candidates"], strict=True):
        ends = [part["ci95"] for part in each["tasks"].values()]
        shown = [[float(word.strip("()")) for word in cell.split()[1::2]] for cell in row[5:]]
        assert shown == [pytest.approx(end, rel=0.01) for end in ends]
    drawn = goal_charts({"goal": answer, "plan": {}})
    assert [*drawn] == [name for _, name in section.charts]


def test_a_task_that_only_diverged_runs_have_is_not_met():
    levels = on_tasks([1.5, 1.4], [0.97, 0.98])
    lost = replace(levels[0].tasks[1], values=(0.97, 0.97, 0.97, math.nan), diverged=1)
    levels[0] = replace(levels[0], tasks=(levels[0].tasks[0], lost))
    answer = answer_goal({**EVERY, "monotone": False}, levels, ALPHA)
    assert answer["smallest"] is None
    assert answer["candidates"][0]["diverged"] == 1


def test_a_task_decides_how_many_more_seeds_are_needed():
    levels = on_tasks([1.87], [0.99], noise=0.05)
    alone = [Level("only", 10.0, levels[0].tasks[0].values)]
    assert answer_goal(EVERY, levels, ALPHA)["more_seeds"] == answer_goal(GOAL, alone, ALPHA)["more_seeds"] > 0


# --- the search ------------------------------------------------------------------------------------------------------


def search(goal, levels, seeds=4, limit=math.inf):
    """Return the steps of a search over candidates whose runs are known."""
    steps, known = [], {arm: () for level in levels for arm in level.arms}
    while True:
        shown = [
            replace(
                each, values=known.get(each.name, ()), tasks=tuple(replace(t, values=known[t.name]) for t in each.tasks)
            )
            for each in levels
        ]
        step = next_step(goal, shown, range(seeds), ALPHA)
        if step is None or count_runs([*steps, step]) > limit:
            return steps, answer_goal(goal, shown, ALPHA, looks=count_looks(steps, goal, seeds))
        steps.append(step)
        for level in [part for each in levels for part in each.tasks or [each]]:
            if level.name in step["arms"]:
                row = level.values[: len(step["seeds"])]
                known[level.name] = (*row, *[math.nan] * (seeds - len(row)))


@pytest.mark.parametrize("true", range(13))
def test_bisection_of_twelve_candidates_trains_at_most_four_and_finds_the_smallest(true):
    levels = ladder([2.5 if i < true else 1.3 for i in range(12)])
    steps, answer = search(GOAL, levels)
    assert len(steps) <= 4
    assert answer["smallest"] == (f"c{true}" if true < 12 else None)
    assert answer["none"] == (true == 12)


def test_bisection_starts_in_the_middle_and_halves_the_side_of_the_threshold():
    steps, _ = search(GOAL, ladder([2.5] * 6 + [1.3] * 6))
    assert [step["arms"] for step in steps] == [["c5"], ["c8"], ["c6"]]


def test_bisection_trains_the_neighbours_of_a_candidate_that_is_not_decided():
    steps, answer = search(GOAL, ladder([2.5, 2.4, 2.3, 1.9, 1.5, 1.4, 1.3], noise=0.05))
    assert [step["arms"][0] for step in steps[:2]] == ["c3", "c1"]
    assert {step["arms"][0] for step in steps} == {"c1", "c2", "c3", "c4"}
    assert answer["possible"] == ["c3", "c4"]


def test_a_race_trains_two_seeds_first_in_the_order_of_costs_and_stops_at_the_first_that_meets():
    steps, answer = search(ANY, ladder([2.5, 2.4, 2.45, 1.5, 1.4, 1.3]))
    order = [(step["arms"][0], len(step["seeds"])) for step in steps]
    assert order[0] == ("c0", 2)
    assert {name for name, _ in order} == {"c0", "c1", "c2", "c3"}
    assert ("c1", 2) in order
    assert ("c1", 4) not in order
    assert answer["smallest"] == "c3"


def test_a_longer_search_begins_with_the_steps_of_a_shorter_one():
    levels = ladder(np.linspace(2.6, 1.2, 12), noise=0.1)
    whole, _ = search(GOAL, levels)
    for limit in range(4, 4 * len(whole), 4):
        assert search(GOAL, levels, limit=limit)[0] == whole[: limit // 4]


@pytest.mark.parametrize(("goal", "least"), [(GOAL, 4 * 3), (ANY, 3)])
def test_max_runs_below_the_need_of_a_search_is_refused(goal, least):
    check_max_runs(goal, 12, 3, least)
    check_max_runs(goal, 12, 3, None)
    with pytest.raises(UserError) as error:
        check_max_runs(goal, 12, 3, least - 1)
    assert f"--max-runs {least}" in error.value.remedy
