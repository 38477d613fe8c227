"""Arms on several tasks and under several settings: pooled effects by hand, corrections, and verdicts on verdicts."""

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from taetpu.stats.analyse import analyse, compute_results
from taetpu.stats.plan import Plan
from taetpu.stats.repeats import average, classify, differ_p
from taetpu.stats.results import Results
from taetpu.stats.verdict import holm

TASKS = ("a", "b", "c", "d")
SEEDS = 4


def planned(primary: str = "val/loss", direction: str = "min", chance: float | None = 2.0, **more: object) -> dict:
    known = {"equivalence": None, "chance": chance, "best": 0.0, "metrics": {"loss": {}}}
    return {"primary": primary, "direction": direction, **known, **more}


def arms_on(tasks: tuple[str, ...], arms: tuple[str, ...], design: str) -> tuple[dict, dict]:
    """Return the roles of arms on tasks, of which the first is the baseline's, and the design."""
    roles = {}
    for task in tasks:
        own = task == tasks[0]
        for arm in ("baseline", *arms):
            if (arm, own) != ("baseline", True):
                against = {} if own else {"against": f"baseline@{task}"}
                roles[arm if own else f"{arm}@{task}"] = {**against, "ladder": {"rung": task, "arm": arm}}
    return roles, {design: {"rungs": list(tasks), "own": tasks[0]}}


def drawn(tasks: tuple[str, ...], effects: dict[str, tuple[float, ...]], scale: float = 0.02) -> dict:
    rng, values = np.random.default_rng(3), {}
    for number, task in enumerate(tasks):
        for arm, effect in {"baseline": (0.0,) * len(tasks), **effects}.items():
            row = 1 + number + effect[number] + scale * (number + 1) * rng.normal(size=SEEDS)
            values[arm if number == 0 else f"{arm}@{task}"] = dict(enumerate(map(float, row)))
    return values


@pytest.fixture
def on_tasks(store_study):
    """Return a function that analyses arms on four tasks, with the given plans of the tasks."""

    def analysed(effects: dict, plans: dict, pool: str = "iqm", **more) -> tuple[Results, dict]:
        values = drawn(TASKS, effects)
        values |= more.pop("values", {})
        roles, design = arms_on(TASKS, tuple(effects), "tasks")
        folder = store_study(values, roles=roles, design=design, tasks=plans, pool=pool, rules=2, **more)
        return analyse(folder), values

    return analysed


def scored(values: dict, arm: str) -> np.ndarray:
    """Return the normalised scores `(task, seed)`."""
    rows = [values[arm if task == TASKS[0] else f"{arm}@{task}"] for task in TASKS]
    return np.array([[(row[seed] - 2.0) / (0.0 - 2.0) for seed in range(SEEDS)] for row in rows])


@pytest.mark.parametrize("pool", ["iqm", "mean"])
def test_pooled_effect_equals_the_calculation_by_hand(on_tasks, pool: str) -> None:
    results, values = on_tasks({"x": (-0.4, -0.3, -0.2, 0.5)}, dict.fromkeys(TASKS, planned()), pool)
    design = results["designs"]["tasks"]
    entry = design["arms"]["x"]
    differences = scored(values, "x") - scored(values, "baseline")
    kept = differences[np.argsort(differences.mean(1))[1:3]] if pool == "iqm" else differences
    effect = kept.mean()  # a quarter of four values is one
    errors = [(kept.mean(0).std(ddof=1) / np.sqrt(SEEDS), SEEDS - 1)]
    if pool == "iqm":
        assert effect == pytest.approx(stats.trim_mean(differences.mean(1), 0.25))
    noisiest = np.sort(differences.var(1, ddof=1))[-len(kept) :] / SEEDS / len(kept) ** 2
    errors.append((np.sqrt(noisiest.sum()), (SEEDS - 1) * noisiest.sum() ** 2 / (noisiest**2).sum()))
    half = max(stats.t.isf(0.025, df) * error for error, df in errors)
    assert entry["pooled"]["effect"] == pytest.approx(effect)
    assert entry["pooled"]["ci95"] == pytest.approx([effect - half, effect + half])
    assert entry["pooled"]["p"] == pytest.approx(max(2 * stats.t.sf(abs(effect) / error, df) for error, df in errors))
    assert entry["mean"] == pytest.approx(scored(values, "x").mean())
    assert entry["iqm"] == pytest.approx(stats.trim_mean(scored(values, "x").ravel(), 0.25))
    pairs = [stats.ttest_ind(*pair, equal_var=False).pvalue for pair in combinations(differences, 2)]
    assert entry["p_differs"] == pytest.approx(min(1, 6 * min(pairs)))
    profile = (scored(values, "x")[:, :, None] >= np.array(design["levels"])).mean((0, 1))
    assert (design["scale"], entry["profile"]) == ("normalised", pytest.approx(profile))


def test_verdicts_and_pooled_effects_are_corrected_together(on_tasks) -> None:
    results, _ = on_tasks({"x": (-0.4,) * 4, "y": (-0.4, 0.4, -0.4, 0.4)}, dict.fromkeys(TASKS, planned()))
    pooled = [results["designs"]["tasks"]["arms"][arm]["pooled"] for arm in "xy"]
    judged = [arm for arm in results["arms"] if arm["against"]] + pooled
    assert len(judged) == 2 * 4 + 2
    corrected = holm({number: entry["p"] for number, entry in enumerate(judged)})
    assert [entry["p_holm"] for entry in judged] == pytest.approx([*corrected.values()])
    assert pooled[0]["verdict"] == "better"
    assert pooled[1]["verdict"] == "inconclusive"


def test_each_task_has_its_metric_direction_margin_and_noise(on_tasks) -> None:
    plans = {**dict.fromkeys(TASKS, planned()), "c": planned(direction="max", chance=0.0, best=9.0, equivalence=9.0)}
    results, _ = on_tasks({"x": (0.5,) * 4}, plans)
    verdicts = {arm["name"]: arm["verdict"] for arm in results["arms"] if arm["against"]}
    margins = {arm["name"]: arm["p_equivalent"] is not None for arm in results["arms"] if arm["against"]}
    assert margins == {"x": False, "x@b": False, "x@c": True, "x@d": False}
    assert (verdicts["x"], verdicts["x@b"], verdicts["x@c"]) == ("worse", "worse", "equivalent")
    sds = {group["baseline"]: group["residual_sd"] for group in results["groups"]}
    assert len(sds) == len(set(sds.values())) == 4


def test_without_chance_or_best_scores_are_ranks(on_tasks) -> None:
    plans = {**dict.fromkeys(TASKS, planned()), "d": planned(chance=None)}
    design = on_tasks({"x": (-1.0,) * 4, "y": (1.0,) * 4}, plans)[0]["designs"]["tasks"]
    means = {arm: entry["mean"] for arm, entry in design["arms"].items()}
    assert (design["scale"], means) == ("ranks", {"baseline": 0.5, "x": 1.0, "y": 0.0})
    assert design["arms"]["x"]["profile"] is None


def test_diverged_run_counts_as_the_worst_value_of_its_task(on_tasks) -> None:
    values = drawn(TASKS, {"x": (-0.4,) * 4})
    values["x@b"] = {**dict.fromkeys(range(SEEDS), 1.6), 0: None, 1: 1.59}
    values["baseline@b"][2] = 5.0
    results, _ = on_tasks({"x": (-0.4,) * 4}, dict.fromkeys(TASKS, planned()), values=values)
    pooled = results["designs"]["tasks"]["arms"]["x"]["pooled"]
    assert pooled["worst_case"]["effect"] < pooled["effect"]
    assert pooled["verdict"] == "inconclusive"  # more runs of the arm diverged


def test_results_follow_from_the_stored_runs(on_tasks, tmp_path, store_study) -> None:
    results, values = on_tasks({"x": (-0.4,) * 4}, dict.fromkeys(TASKS, planned()))
    roles, design = arms_on(TASKS, ("x",), "tasks")
    again = store_study(values, name="again", roles=roles, design=design, rules=2, pool="iqm",
                        tasks=dict.fromkeys(TASKS, planned()))  # fmt: skip
    assert compute_results(again)["designs"] == results["designs"]


def test_plan_without_tasks_has_the_hash_of_an_earlier_plan() -> None:
    fields = {"primary": "val/loss", "direction": "min", "arms": ("baseline",), "seeds": (0,), "looks": (1,)}
    plan = Plan(**fields)
    assert not {"tasks", "pool", "across"} & {*plan.frozen()}
    assert Plan(**fields, pool="iqm").sha256 != plan.sha256


@pytest.mark.parametrize(
    ("values", "expected"), [([1, 2, 3, 10], 2.5), ([1, 2, 9], 4.0), ([0, 1, 1, 1, 1, 1, 1, 9], 1.0)]
)
def test_interquartile_mean_leaves_out_a_quarter_at_each_end(values, expected) -> None:
    assert average(values, "iqm") == pytest.approx(expected)


# --- settings --------------------------------------------------------------------------------------------------------

SETTINGS = ("as written", "init=fan-in", "lr=0.003", "lr=0.01")
FACTORS = {"init": ["init=fan-in"], "lr": ["lr=0.003", "lr=0.01"]}


def test_reversal_names_the_setting(store_study) -> None:
    effects = {"turns": (-0.5, 0.6, -0.5, -0.5), "stays": (-0.5,) * 4, "none": (0.0,) * 4}
    roles, design = arms_on(SETTINGS, tuple(effects), "across")
    results = analyse(store_study(drawn(SETTINGS, effects), roles=roles, design=design, across=FACTORS, rules=2))
    arms = results["designs"]["across"]["arms"]
    assert (arms["turns"]["holds"], arms["turns"]["on"]) == ("reverses", ["init"])
    assert arms["stays"]["holds"] == "holds"
    assert arms["none"]["holds"] == "unclear"
    p = [entry["p_differs"][factor] for entry in arms.values() for factor in FACTORS]
    corrected = [entry["p_differs_holm"][factor] for entry in arms.values() for factor in FACTORS]
    assert corrected == pytest.approx([*holm(dict(enumerate(p))).values()])


@pytest.mark.parametrize(
    ("verdicts", "p", "expected"),
    [
        (("better", "worse", "better", "better"), (1, 1), ("reverses", ["init"])),
        (("better", "better", "worse", "better"), (1, 1), ("reverses", ["lr"])),
        (("inconclusive", "better", "worse", "inconclusive"), (1, 1), ("reverses", ["init", "lr"])),
        (("better",) * 4, (1, 1), ("holds", [])),
        (("better",) * 4, (1, 0.01), ("holds", ["lr"])),
        (("equivalent",) * 4, (1, 1), ("holds", [])),
        (("better", "inconclusive", "better", "better"), (0.01, 1), ("depends", ["init"])),
        (("better", "inconclusive", "better", "better"), (0.2, None), ("unclear", [])),
        (("inconclusive",) * 4, (1, 1), ("unclear", [])),
    ],
)
def test_verdict_on_a_verdict(verdicts, p, expected) -> None:
    named = dict(zip(SETTINGS, verdicts, strict=True))
    assert classify(named, "as written", FACTORS, dict(zip(FACTORS, p, strict=True)), 0.05) == expected


def test_effects_without_noise_have_no_test_of_differences() -> None:
    assert differ_p([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]) is None
    assert differ_p([[1.0], [2.0]]) is None
    assert differ_p([[1.0, 1.0], [1.0, 1.0], [5.0, 5.1]]) < 0.2
