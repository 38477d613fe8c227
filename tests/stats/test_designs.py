"""Designs are analysed from stored runs: excess of all parts, factorials, ladders, limitations."""

import numpy as np
import pytest

from taetpu.core.errors import UserError
from taetpu.report.designs import joint_effects
from taetpu.report.terminal_text import table_text
from taetpu.stats import designs
from taetpu.stats.analyse import analyse
from taetpu.stats.designs import LIMITS, parts_that_matter

PARTS = {
    "without-x": {"design": "leave_one_out", "part": "x"},
    "without-y": {"design": "leave_one_out", "part": "y"},
    "without-all": {"design": "leave_one_out", "part": None},
}


def parted(excess: float) -> dict[str, np.ndarray]:
    noise = 0.01 * np.random.default_rng(0).normal(size=(4, 5))
    effects = {"baseline": 0.0, "without-x": 0.1, "without-y": 0.2, "without-all": 0.3 + excess}
    return {name: 3 + effect + row for (name, effect), row in zip(effects.items(), noise, strict=True)}


@pytest.mark.parametrize("excess", [0.0, 0.25])
def test_excess_is_the_joint_effect_minus_the_sum_of_single_effects(table, store_study, excess: float) -> None:
    y = parted(excess)
    results = analyse(store_study(table(np.array(list(y.values())), list(y)), roles=PARTS))
    found = results["designs"]["leave_one_out"]["scales"][""]
    means = {name: row.mean() for name, row in y.items()}
    single = [means[name] - means["baseline"] for name in ("without-x", "without-y")]
    assert found["excess"] == pytest.approx(means["without-all"] - means["baseline"] - sum(single))
    assert (found["p"] < 0.05) == (excess > 0)
    low, high = found["ci95"]
    assert low < found["excess"] < high
    # Weights 1, -1, -1 and 1 on four means of five seeds.
    df, sd = results["model"]["df"], results["model"]["residual_sd"]
    assert (df, high - low >= 2 * sd * np.sqrt(4 / 5) * 2.0) == (12, True)
    assert (found["arm"], found["parts"]) == ("without-all", ["without-x", "without-y"])
    assert results["designs"]["limits"] == [LIMITS["leave_one_out"]]


WAYS = {"x": (0.4, 0.1), "y": (-0.1, 0.3), "z": (0.2, 0.2)}
"""The effect of each part alone, and last."""


@pytest.fixture
def both_ways(table, store_study):
    """The means by arm, and the results of a study with parts that change alone and last."""
    effects = {"baseline": 0.0, "with-all": 0.5}
    roles = {"with-all": {"design": "add_one_in", "part": None}}
    for part, (alone, last) in WAYS.items():
        effects |= {f"with-{part}": alone, f"with-all-but-{part}": 0.5 - last}
        roles[f"with-{part}"] = {"design": "add_one_in", "part": part}
        roles[f"with-all-but-{part}"] = {"design": "add_one_in", "part_left": part, "against": "with-all"}
    noise = 0.01 * np.random.default_rng(0).normal(size=(len(effects), 5))
    y = {name: 3 + effect + row for (name, effect), row in zip(effects.items(), noise, strict=True)}
    return {name: row.mean() for name, row in y.items()}, analyse(
        store_study(table(np.array(list(y.values())), list(y)), roles=roles)
    )


def test_the_interaction_of_a_part_is_its_last_effect_minus_its_effect_alone(both_ways) -> None:
    means, results = both_ways
    rows = {row["part"]: row for row in results["designs"]["add_one_in"]["both_ways"]}
    assert list(rows) == ["x", "y", "z"]
    for part, row in rows.items():
        alone = means[f"with-{part}"] - means["baseline"]
        last = means["with-all"] - means[f"with-all-but-{part}"]
        assert (row["alone"], row["last"]) == (pytest.approx(alone), pytest.approx(last))
        assert row["difference"] == pytest.approx(last - alone)
        assert row["ci95"][0] < row["difference"] < row["ci95"][1]
        assert (row["p_holm"] < 0.05) == (part != "z")
        assert row["p"] <= row["p_holm"]


def test_effects_of_parts_that_change_last_are_summed_too(both_ways) -> None:
    means, results = both_ways
    analysed, whole = results["designs"]["add_one_in"], means["with-all"] - means["baseline"]
    last = sum(means["with-all"] - means[f"with-all-but-{part}"] for part in WAYS)
    assert analysed["last"]["excess"] == pytest.approx(whole - last)
    alone = sum(means[f"with-{part}"] - means["baseline"] for part in WAYS)
    assert analysed["scales"][""]["excess"] == pytest.approx(whole - alone)
    shown = [[cell for i, cell in enumerate(row) if i in (1, 3)] for row in joint_effects(analysed, results)]
    assert [number for number, _ in shown] == ["3", "3 last"]
    assert [float(figure) for _, figure in shown] == pytest.approx([alone, last], abs=0.005)


def test_both_ways_are_beside_each_other_on_the_terminal(both_ways, wording) -> None:
    _, results = both_ways
    lines = table_text(results).splitlines()
    assert max(map(len, lines)) <= 80
    signs = {line.split()[0]: line.split()[-1] for line in lines if line[:2] in ("x ", "y ", "z ")}
    assert signs == {"x": "weaker", "y": "opposite", "z": "-"}
    wording("\n".join(lines))


def test_the_parts_that_matter_are_those_with_the_largest_verdicts(both_ways) -> None:
    _, results = both_ways
    assert parts_that_matter(results, 2) == ["x", "y"]
    assert parts_that_matter(results, 5) == ["x", "y", "z"]
    for arm in results["arms"]:
        arm["verdict"] = "worse" if arm["name"] == "with-z" else "equivalent"
    with pytest.raises(UserError, match="1 parts"):
        parts_that_matter(results, 5)


def test_parts_without_an_arm_for_all_have_no_excess(table, store_study) -> None:
    role = {"with-x": {"design": "add_one_in", "part": "x"}}
    values = table(np.random.default_rng(0).normal(size=(2, 3)), ["baseline", "with-x"])
    assert analyse(store_study(values, roles=role))["designs"]["add_one_in"] == {"scales": {"": None}}


def test_ladder_is_analysed_over_all_rungs(store_study) -> None:
    """The effect halves from rung to rung, and every rung has its own baseline."""
    rng, values, roles, sizes = np.random.default_rng(0), {}, {}, {"dim=8": 10**3, "dim=16": 10**4, "dim=32": 10**5}
    for rung, effect in zip(sizes, (0.4, 0.2, 0.1), strict=True):
        own = "" if rung == "dim=8" else f"@{rung}"
        level, against = rng.normal(), f"baseline{own}"
        for name, size in (("baseline", 0.0), ("a", effect)):
            values[f"{name}{own}"] = {s: float(level + size + 0.005 * rng.normal()) for s in range(4)}
            if name != "baseline" or own:
                roles[f"{name}{own}"] = {"against": against, "ladder": {"rung": rung, "arm": name}}
    of = {
        f"{name}{own}": size
        for (r, size) in sizes.items()
        for own in ["" if r == "dim=8" else f"@{r}"]
        for name in ("a", "baseline")
    }
    folder = store_study(
        values,
        roles=roles,
        design={"ladder": {"rungs": list(sizes), "own": "dim=8"}},
        result=lambda arm, seed: {"params": of[arm], "tokens": 20_000},
    )
    results = analyse(folder)
    assert [group["baseline"] for group in results["groups"]] == ["baseline", "baseline@dim=16", "baseline@dim=32"]
    found = results["designs"]["ladder"]
    assert found["scales"]["dim=16"] == {"baseline": "baseline@dim=16", "params": 10**4, "tokens_per_parameter": 2.0}
    (arm,) = found["arms"].values()
    assert arm["rungs"] == {"dim=8": "a", "dim=16": "a@dim=16", "dim=32": "a@dim=32"}
    assert arm["fate"] == "shrinks"
    assert arm["trend"]["per_doubling"] == pytest.approx(-0.3 / (2 * np.log2(10)), rel=0.05)
    assert arm["extrapolated"]["params"] == 4 * 10**5
    assert results["designs"]["limits"] == [LIMITS["ladder"]]


def test_factorial_is_analysed_over_all_cells(store_study) -> None:
    rng = np.random.default_rng(1)
    cells = {"baseline": (0, 0), "x": (1, 0), "y": (0, 1), "x,y": (1, 1)}
    values = {
        a: {s: 3 + 0.2 * i - 0.1 * j + 0.3 * i * j + 0.01 * rng.normal() for s in range(4)}
        for a, (i, j) in cells.items()
    }
    roles = {
        arm: {"design": "factorial", "levels": {"x": i, "y": j}} for arm, (i, j) in cells.items() if arm != "baseline"
    }
    design = {
        "factorial": {"factors": {"x": ["", "x"], "y": ["", "y"]}, "fraction": "1", "resolution": None, "words": []}
    }
    found = analyse(store_study(values, roles=roles, design=design))["designs"]
    terms = {tuple(term["factors"]): term["effect"] for term in found["factorial"]["scales"][""]["terms"]}
    assert terms == {
        ("x",): pytest.approx(0.35, abs=0.02),
        ("y",): pytest.approx(0.05, abs=0.02),
        ("x", "y"): pytest.approx(0.3, abs=0.03),
    }
    assert found["limits"] == []  # two factors have no three-factor interaction


@pytest.mark.parametrize(
    ("arms", "limits"),
    [
        ({"a": {"x": 1}, "b": {"y": 1}}, [LIMITS["arms"]]),
        ({"a": {"x": 1}}, []),
        ({"a": {"x": 1}, "b": {"y": 1}, "ab": {"x": 1, "y": 1}}, [LIMITS["combined"].format(arms="ab")]),
        ({"a": {"x": 1}, "ac": {"x": 1, "z": 1}}, [LIMITS["together"].format(arms="ac")]),
        ({"xy": {"x": 1, "y": 1}, "yz": {"y": 1, "z": 1}}, [LIMITS["together"].format(arms="xy, yz")]),
    ],
)
def test_limitations_follow_from_the_changes_of_arms(arms, limits) -> None:
    """Idle overrides, which repeat the baseline's value, do not count."""
    study = {"base": {}, "arms": {"baseline": {}, **arms}, "idle": {}}
    assert designs.design_limits(study) == limits
    crossed = {name: {"idle": 0, **changes} for name, changes in study["arms"].items()}
    assert designs.design_limits({**study, "arms": crossed, "idle": {name: ["idle"] for name in crossed}}) == limits
    earlier = {"base": {"idle": 0}, "arms": crossed}  # a version that did not record idle overrides
    assert designs.design_limits({**earlier, "arms": {**crossed, "baseline": {}}}) == limits


def test_limitation_of_leave_one_out_requires_an_arm_for_all_parts() -> None:
    one = {"without-a": {"design": "leave_one_out", "part": "a"}}
    study = {"base": {}, "arms": {"baseline": {}, "without-a": {"x": 1}}, "idle": {}, "roles": one}
    assert designs.design_limits(study) == []
    both = {"without-all": {"design": "leave_one_out", "part": None}}
    assert designs.design_limits({**study, "roles": {**one, **both}}) == [LIMITS["leave_one_out"]]


def test_single_changes_have_a_limitation(table, store_study) -> None:
    values = table(np.random.default_rng(0).normal(size=(3, 3)))
    assert analyse(store_study(values))["designs"] == {"limits": [LIMITS["arms"]]}
