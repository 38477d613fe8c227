"""The length of a run in steps or epochs."""

import pytest

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.spec.train_config import TrainConfig


@pytest.mark.parametrize(("epochs", "windows", "steps"), [(1, 320, 10), (2.5, 320, 25), (1, 330, 10), (1, 3, 1)])
def test_epochs_are_passes_over_the_windows(epochs, windows, steps):
    assert load_config(TrainConfig, {"epochs": epochs, "batch_size": 32}).total_steps(windows) == steps


def test_steps_do_not_depend_on_the_data():
    config = load_config(TrainConfig, {"steps": 7})
    assert config.total_steps(None) == config.total_steps(1000) == 7


def test_warm_up_must_be_shorter_than_training():
    schedule = {"kind": "linear", "warmup": 9}
    assert load_config(TrainConfig, {"steps": 10, "schedule": schedule}).schedule.warmup == 9
    with pytest.raises(UserError, match=r"warmup=9 .* the 9 steps"):
        load_config(TrainConfig, {"steps": 9, "schedule": schedule})


def test_warm_up_must_end_before_decay():
    def load(warmup, steps, share):
        schedule = {"kind": "wsd", "warmup": warmup, "decay_share": share}
        return load_config(TrainConfig, {"steps": steps, "schedule": schedule})

    assert load(8, 10, 0.2).schedule.warmup == 8
    with pytest.raises(UserError, match=r"warmup=9 and decay_share=0.2 exceed the 10 steps") as caught:
        load(9, 10, 0.2)
    assert caught.value.path == ("schedule", "decay_share")
    assert "at most 8" in caught.value.remedy


@pytest.mark.parametrize("rule", ["eval", "log", "end", 5])
def test_checkpoint_rules(rule):
    assert load_config(TrainConfig, {"steps": 7, "checkpoint": rule}).checkpoint == rule


@pytest.mark.parametrize("rule", ["never", 0, -1, True, 1.5, None])
def test_invalid_checkpoint_rules_are_refused(rule):
    with pytest.raises(UserError, match="eval, log, end or") as caught:
        load_config(TrainConfig, {"steps": 7, "checkpoint": rule})
    assert caught.value.path == ("checkpoint",)


def test_the_text_none_means_none():
    config = load_config(TrainConfig, {"steps": 7, "clip": "none", "sample": "none", "eval_every": None})
    assert (config.clip, config.sample, config.eval_every) == (None, None, None)
