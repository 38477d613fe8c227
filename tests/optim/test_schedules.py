"""Schedules at the first step, the end of warm-up and the last step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError

PEAK, STEPS = 2.0, 11


def rates(steps=STEPS, **settings):
    schedule = build_component("schedule", settings)
    return np.asarray(jax.vmap(lambda i: schedule.lr(i, steps, PEAK))(jnp.arange(steps)))


def test_warm_up_is_linear_and_reaches_the_peak_in_its_last_step():
    for kind in ("constant", "cosine", "linear"):
        np.testing.assert_allclose(rates(kind=kind, warmup=4)[:4], [0.5, 1.0, 1.5, 2.0], rtol=1e-6)


def test_the_constant_schedule_stays_at_the_peak():
    np.testing.assert_allclose(rates(kind="constant"), PEAK)
    np.testing.assert_allclose(rates(kind="constant", warmup=4)[4:], PEAK)


@pytest.mark.parametrize("warmup", [0, 4])
def test_cosine_and_linear_fall_from_the_peak_to_the_minimum(warmup):
    share = np.arange(STEPS - warmup) / (STEPS - warmup - 1)
    cosine = 0.2 + (PEAK - 0.2) * 0.5 * (1 + np.cos(np.pi * share))
    np.testing.assert_allclose(rates(kind="cosine", warmup=warmup, min_lr=0.2)[warmup:], cosine, rtol=1e-5)
    linear = PEAK + (0.2 - PEAK) * share
    np.testing.assert_allclose(rates(kind="linear", warmup=warmup, min_lr=0.2)[warmup:], linear, rtol=1e-5)


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_the_last_step_reaches_the_minimum(kind):
    assert rates(kind=kind, min_lr=0.2)[-1] == pytest.approx(0.2)
    assert rates(kind=kind)[-1] == pytest.approx(0.0, abs=1e-6)


def test_runs_shorter_than_warm_up_and_runs_of_one_step():
    np.testing.assert_allclose(rates(steps=3, kind="cosine", warmup=10), [0.2, 0.4, 0.6], rtol=1e-6)
    np.testing.assert_allclose(rates(steps=1, kind="cosine"), [PEAK])


def test_warm_up_as_a_share_of_all_steps():
    np.testing.assert_allclose(
        rates(steps=40, kind="cosine", warmup_share=0.1), rates(steps=40, kind="cosine", warmup=4)
    )
    with pytest.raises(UserError, match="are both set"):
        build_component("schedule", {"kind": "cosine", "warmup": 4, "warmup_share": 0.1})


def test_wsd_stays_at_the_peak_until_the_decay():
    found = rates(steps=40, kind="wsd", warmup=4, decay_share=0.25, min_lr=0.2)
    np.testing.assert_allclose(found[3:30], PEAK)
    np.testing.assert_allclose(found[29:], PEAK + (0.2 - PEAK) * np.sqrt(np.arange(11) / 10), rtol=1e-5)
    with pytest.raises(UserError, match="exceed all steps") as caught:
        build_component("schedule", {"kind": "wsd", "warmup_share": 0.5, "decay_share": 0.6})
    assert caught.value.remedy == "Use at most 0.5."
