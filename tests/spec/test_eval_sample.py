"""The size of the sample that is evaluated during training."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.spec.eval_sample import SHARE, TRAINING, Sample
from taetpu.spec.study_config import RunConfig
from taetpu.spec.train_config import TrainConfig

WINDOWS = 60


def sample(**train) -> Sample:
    task = {"kind": "copy", "seq_len": 16, "symbols": 5, "min_length": 2, "max_length": 6, "eval_size": WINDOWS}
    data = {"task": task, "model": {"dim": 8, "num_layers": 1}, "train": {"steps": 10, **train}}
    config = load_config(RunConfig, data).resolve()
    return Sample.from_config(config, config.task.prepare(None))


@settings(deadline=None, max_examples=8)
@given(steps=st.integers(1, 3000), batch=st.integers(1, 64), every=st.none() | st.integers(1, 500))
def test_evaluations_cost_at_most_a_tenth_of_training(steps: int, batch: int, every: int | None):
    found = sample(steps=steps, batch_size=batch, eval_every=every)
    train = load_config(TrainConfig, {"steps": steps, "eval_every": every})
    times = len(train.evaluations(steps))
    for after in (0, steps // 3, steps - 1, steps):
        assert train.num_evaluations(steps, after) == sum(step > after for step in train.evaluations(steps))
    training = steps * batch * TRAINING  # in forward passes over a window
    assert 1 <= found.windows <= found.total == WINDOWS
    assert found.windows * times <= SHARE * training or found.windows == 1
    if found.windows < WINDOWS and found.windows > batch:  # batches are whole, and no more would fit
        assert found.windows % batch == 0
        assert (found.windows + batch) * times > SHARE * training


def test_the_sample_does_not_depend_on_clipping_or_precision():
    assert sample(steps=2000, batch_size=4) == sample(steps=2000, batch_size=4, clip=None, precision="bfloat16")


def test_a_long_study_evaluates_the_whole_split():
    assert sample(steps=100_000).windows == WINDOWS


@pytest.mark.parametrize(("asked", "windows"), [("all", WINDOWS), (7, 7), (WINDOWS, WINDOWS)])
def test_eval_windows_sets_the_size_of_the_sample(asked, windows: int):
    found = sample(eval_windows=asked)
    assert (found.asked, found.windows) == (asked, windows)


def test_more_windows_than_the_split_has_are_refused():
    with pytest.raises(UserError, match="99999999999") as caught:
        sample(eval_windows=99999999999)
    assert caught.value.path == ("eval_windows",)
    assert f"at most {WINDOWS}, or all" in str(caught.value.remedy)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "some"])
def test_an_invalid_number_of_windows_is_refused(value):
    with pytest.raises(UserError, match="auto, all or") as caught:
        load_config(TrainConfig, {"steps": 1, "eval_windows": value})
    assert caught.value.path == ("eval_windows",)
    assert "at least 1" in str(caught.value.remedy)


@pytest.mark.parametrize(("total", "windows"), [(100, 20), (50, 10), (2, 1), (200, 40)])
def test_an_arm_with_another_number_of_windows_evaluates_the_same_share(total: int, windows: int):
    assert Sample("auto", 20, 100).size_within(total) == windows
    assert Sample("all", 100, 100).size_within(total) == total
