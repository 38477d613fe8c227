"""Pareto fronts of quality against cost contain exactly the arms that no other arm beats."""

from hypothesis import given
from hypothesis import strategies as st

from taetpu.report.frontier import describe_frontiers, frontiers, pareto_front

POINTS = st.lists(st.tuples(st.integers(1, 9), st.integers(-9, 9)), min_size=1)


@given(POINTS, st.booleans())
def test_front_contains_exactly_the_points_that_no_point_beats(points, lower: bool) -> None:
    sign = 1 if lower else -1

    def beaten(i: int) -> bool:
        cost, quality = points[i]
        return any((c <= cost and sign * q < sign * quality) or (c < cost and q == quality) for c, q in points)

    kept = pareto_front(points, lower)
    assert {points[i] for i in kept} == {points[i] for i in range(len(points)) if not beaten(i)}
    assert [points[i][0] for i in kept] == sorted({points[i][0] for i in kept})


def test_differences_within_the_margin_displace_no_point() -> None:
    baseline, hair, clear = (10, 2.0), (10, 1.99), (10, 1.5)
    assert pareto_front([baseline, hair], lower=True, margin=0.1) == [0]
    assert pareto_front([baseline, hair, clear], lower=True, margin=0.1) == [2]
    assert pareto_front([baseline, (12, 1.95), (13, 1.85)], lower=True, margin=0.1) == [0, 2]
    assert pareto_front([baseline, (12, 2.05)], lower=False, margin=0.1) == [0]


def test_costs_that_all_arms_share_are_omitted(results) -> None:
    for arm, flops in zip(results["arms"], (100.0, 100.05, 100.0), strict=False):
        arm["flops"] = flops
    for arm in results["arms"]:
        arm["flops"], arm["params"] = 100.0, 1000.0
    assert frontiers(results, {}) == {}
    results["arms"][1]["params"] = 900.0
    found = frontiers(results, {})
    assert list(found) == ["parameters"]
    assert [point["arm"] for point in found["parameters"]] == [arm["name"] for arm in results["arms"]]
    timed = {arm["name"]: {"train_seconds": 1.0 + i} for i, arm in enumerate(results["arms"])}
    assert list(frontiers(results, timed)) == ["parameters", "seconds of training"]


def test_front_is_described(store_study) -> None:
    results = store_study({"baseline": ({}, 0.0), "cheap": ({}, 0.3), "dear": ({}, 0.1)}).read_results()
    for arm, flops in zip(results["arms"], (100.0, 50.0, 200.0), strict=True):
        arm["flops"], arm["params"] = flops, 10.0
    (sentence,) = describe_frontiers(frontiers(results, {}), "val/loss")
    assert sentence.startswith("Pareto front of val/loss and training FLOPs")
    assert sentence.endswith(": cheap and baseline.")
