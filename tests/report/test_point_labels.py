"""Labels of points in scatter plots."""

from hypothesis import given
from hypothesis import strategies as st

from taetpu.report.point_labels import place_labels

SIZE = (240.0, 230.0)
POINTS = st.lists(st.tuples(st.floats(0, 1e6), st.floats(-5, 5)), min_size=1, max_size=30)


@given(POINTS)
def test_the_most_important_point_is_labelled_if_it_stands_alone(points) -> None:
    names = [f"arm-{i}" for i in range(len(points))]
    sides = place_labels(points, names, range(len(points)), SIZE)
    assert len(sides) == len(points)
    if len(points) == 1:
        assert sides != [""]


def test_points_too_close_for_their_labels_keep_the_label_of_the_first() -> None:
    points = [(1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (9.0, 9.0)]
    assert [bool(side) for side in place_labels(points, ["a-long-name"] * 4, [3, 2, 1, 0], SIZE)][3]
    crowd = [(float(i % 4), float(i // 4) / 50) for i in range(16)] + [(3.0, 40.0)]
    sides = place_labels(crowd, ["some-arm"] * 17, [16, *range(16)], SIZE)
    assert sides[16]
    assert sides.count("") > 8


def test_labels_stay_inside_the_plot() -> None:
    left, right = place_labels([(0.0, 0.0), (1.0, 0.0)], ["a-name-of-twenty-char"] * 2, [0, 1], SIZE)
    assert (left, right) == ("right", "")
