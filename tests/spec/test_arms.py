"""Arms: the expansion of lists and grids, and their names."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import ErrorList, UserError
from taetpu.spec.arms import candidates, label
from taetpu.spec.frozen import frozen_data
from taetpu.spec.study_file import NAME
from taetpu.spec.study_spec import StudySpec

BASE = {
    "task": {"kind": "copy", "seq_len": 8},
    "model": {"dim": 16, "num_layers": 4},
    "train": {"steps": 10},
}

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=60)
values = scalars | st.lists(scalars, min_size=1, max_size=3) | st.dictionaries(st.text(min_size=1), scalars, min_size=1)


def arms(**parts):
    mistakes = ErrorList()
    made = candidates(load_config(StudySpec, {"study": "s", "base": BASE, **parts}), BASE, mistakes)
    mistakes.raise_all()
    return made


@settings(max_examples=50)
@given(st.lists(values, min_size=1, max_size=6), st.text(max_size=5))
def test_generated_names_are_path_safe_and_unique(listed, suffix):
    parts = {"arms": {"x": {"model.ffn": [*listed]}}, "grid": {"model.ffn": [*listed], "model.dim": [1, suffix]}}
    written = {label(value).casefold() for value in listed}
    equal = any(a == b and type(a) is type(b) for i, a in enumerate(listed) for b in listed[:i])  # such as 0.0 and -0.0
    if len(written) < len(listed) or equal or suffix == "1":  # such as 1 and '1': refused rather than renamed
        with pytest.raises(UserError, match=r"names must differ|listed twice"):
            arms(**parts)
        return
    made = arms(**parts)
    names = [arm.name.casefold() for arm in made]
    assert all(NAME.fullmatch(name) for name in names)
    assert len(set(names)) == len(names) == 3 * len(listed)


@given(st.text(), st.text())
def test_different_texts_have_different_labels(a, b):
    assert (label(a) == label(b)) == (a == b)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (8, "8"), (1e-3, "0.001"), (1e-5, "1e-05"), (-1, "-1"), (True, "true"), (None, "none"),
        ("gelu-tanh", "gelu-tanh"), ([0, 1], "0+1"), ({"kind": "swiglu", "mult": 2}, "swiglu+mult=2"),
    ],
)  # fmt: skip
def test_labels_read_like_the_study_file(value, expected):
    assert label(value) == expected


def test_a_list_makes_an_arm_of_each_value():
    made = arms(arms={"heads": {"model.mixer.num_heads": [1, 2, 8]}})
    assert [arm.name for arm in made] == ["heads=1", "heads=2", "heads=8"]
    assert [arm.overrides for arm in made] == [{"model.mixer.num_heads": n} for n in (1, 2, 8)]
    assert made[2].origins == {"model.mixer.num_heads": ("arms", "heads", "model.mixer.num_heads", 2)}


def test_a_list_is_one_value_if_the_field_is_a_list():
    one, *each = arms(arms={"a": {"model.mixer.drop_heads": [0, 1]}, "b": {"model.mixer.drop_heads": [[0], [0, 1]]}})
    assert (one.name, one.overrides) == ("a", {"model.mixer.drop_heads": [0, 1]})
    assert [(arm.name, arm.overrides["model.mixer.drop_heads"]) for arm in each] == [("b=0", [0]), ("b=0+1", [0, 1])]


def test_a_list_is_read_as_a_field_of_the_arms_kind():
    made = arms(arms={"a": {"model.norm.kind": "layer", "model.norm.bias": [True, False]}})
    assert [arm.name for arm in made] == ["a=true", "a=false"]


def test_several_lists_are_crossed():
    made = arms(arms={"x": {"model.mixer.num_heads": [1, 2], "model.bias": True, "model.dim": [8, 32]}})
    assert [arm.name for arm in made] == [f"x-num_heads={n},dim={d}" for n in (1, 2) for d in (8, 32)]
    assert made[1].overrides == {"model.mixer.num_heads": 1, "model.bias": True, "model.dim": 32}


def test_cells_of_a_grid_have_names_with_distinct_paths():
    made = arms(grid={"model.mixer.bias": [True], "model.ffn.bias": [True, False], "model.norm.kind": ["layer"]})
    assert [arm.name for arm in made] == [f"mixer.bias=true,ffn.bias={b},model.norm=layer" for b in ("true", "false")]


def test_a_cell_of_a_grid_lists_the_values_that_equal_the_baselines(study):
    """This includes values that the baseline leaves at their default, and components given by their kind."""
    loaded = study("grid: {model.position: [rope, none], train.optimizer.lr: [1e-3, 3e-3]}\n")
    own = loaded.arms[0].config.train.optimizer.lr
    for arm in loaded.arms[1:]:
        idle = {path for path, value in arm.overrides.items() if value == ("rope" if "position" in path else own)}
        assert set(arm.idle) == idle
        assert {path.removesuffix(".kind") for path in arm.diff} == set(arm.overrides) - idle
    assert frozen_data(loaded)["idle"] == {arm.name: list(arm.idle) for arm in loaded.arms if arm.idle}


def test_the_cell_of_a_grid_that_equals_the_baseline_is_dropped(study):
    loaded = study("grid: {model.dim: [16, 32], model.num_layers: [2, 4]}\n")
    assert [a.name for a in loaded.arms] == [
        "baseline", "dim=16,num_layers=2", "dim=32,num_layers=2", "dim=32,num_layers=4",
    ]  # fmt: skip


def test_long_names_are_shortened_and_stay_unique():
    one, two = arms(arms={"x" * 95: {"model.dim": [123456, 123457]}})
    assert NAME.fullmatch(one.name)
    assert NAME.fullmatch(two.name)
    assert one.name != two.name


SCHEDULE = ("steps: 10", "steps: 10, schedule: {kind: cosine, warmup: 5, min_lr: 0.001}")


@pytest.mark.parametrize(
    ("override", "resets"),
    [
        ("train.schedule: wsd", {"train.schedule.warmup": [5, 0], "train.schedule.min_lr": [0.001, 0.0]}),
        ("train.schedule: constant", {"train.schedule.warmup": [5, 0]}),
        ("train.schedule: {kind: wsd, warmup: 5, min_lr: 0.001}", {}),
        ("train.schedule: {kind: cosine, min_lr: 0.002}", {"train.schedule.warmup": [5, 0]}),
        ("train.schedule: {kind: wsd, warmup: 3}", {"train.schedule.min_lr": [0.001, 0.0]}),
        ("train.schedule.kind: wsd, train.schedule.warmup: 3", {}),
        ("train.schedule.kind: wsd", {}),
        ("train.schedule.warmup: 3", {}),
    ],
)
def test_the_fields_that_a_replaced_slot_resets_are_known_and_frozen(study, override, resets):
    loaded = study(f"arms: {{one: {{{override}}}}}\n", (), SCHEDULE)
    assert {path: [*pair] for path, pair in loaded.arms[1].resets.items()} == resets
    assert frozen_data(loaded).get("resets", {}) == ({"one": resets} if resets else {})
