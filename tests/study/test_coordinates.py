"""The coordinate check: slopes, models of other widths, and what muP changes."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.core.errors import UserError
from taetpu.core.keys import named, root_key
from taetpu.core.sites import capture
from taetpu.report.coordinate_chart import coordinate_chart
from taetpu.spec.loading import load_study
from taetpu.study.coordinates import (
    SizeProgram,
    check_coordinates,
    fit_slope,
    judge_slope,
    scale_width,
    summarize_sizes,
)
from taetpu.train.step import StepContext, init_state, train_step

STUDY = """\
study: wide
base:
  task: {kind: copy, seq_len: 16, symbols: 6, min_length: 2, max_length: 6, eval_size: 4}
  model: {dim: 32, num_layers: 1, mixer: {kind: attention, num_heads: 2}, ffn: relu, embedding: untied}
  train: {steps: 50, batch_size: 8, optimizer: {kind: adamw, lr: 0.02}}
seeds: 3
arms:
  mup:
    model.init: {kind: mup, base_dim: 32}
    model.logits: {kind: mup, base_dim: 32}
    model.mixer.scale: 1/head_dim
    train.optimizer.base_dim: 32
  mup-root:
    model.init: {kind: mup, base_dim: 32}
    model.logits: {kind: mup, base_dim: 32}
    train.optimizer.base_dim: 32
"""


@pytest.fixture
def study(tmp_path: Path):
    file = tmp_path / "study.yaml"
    file.write_text(STUDY)
    return lambda *sets: load_study(file, list(sets))


def test_slope_is_that_of_a_power_with_its_standard_error_over_seeds():
    widths = [16, 32, 64]
    powers = [0.5, 0.7, 0.9]
    sizes = np.array([[3 * width**power for power in powers] for width in widths])
    slope, error = fit_slope(widths, sizes)
    assert slope == pytest.approx(0.7)
    assert error == pytest.approx(0.2 / 3**0.5)
    assert fit_slope(widths, sizes[:, :1]) == (pytest.approx(0.5), None)
    assert fit_slope(widths, 0 * sizes) == (None, None)
    assert [judge_slope(value) for value in (0.21, 0.2, -0.21, None)] == ["grows", "steady", "shrinks", "none"]


def test_rows_and_chart_of_sizes():
    sizes = np.arange(1.0, 19.0).reshape(3, 3, 2)  # seed, step, layer
    rows = [*summarize_sizes([8, 16], [{"residual": sizes}, {"residual": 2 * sizes}])]
    assert [(row["site"], row["moment"]) for row in rows] == [
        ("residual 0", "before"), ("residual 1", "before"), ("residual 0", "change"), ("residual 1", "change"),
    ]  # fmt: skip
    assert all(row["slope"] == pytest.approx(1) and row["verdict"] == "grows" for row in rows)
    assert rows[0]["sizes"] == [7, 14]
    assert rows[3]["by_step"] == [[10, 20], [12, 24]]
    found = {"steps": 2, "arms": [{"arm": "baseline", "widths": [8, 16], "sites": rows}]}
    assert "residual" in str(coordinate_chart(found).to_dict())


def test_heads_get_wider_unless_head_dim_is_set(study):
    config = scale_width(study().arms[0].config, 64)
    (layer,) = config.model.layers
    assert (config.model.dim, layer.mixer.num_heads, layer.mixer.head_dim) == (64, 2, None)
    assert config.train.schedule.kind == "constant"
    fixed = study("model.mixer.head_dim=16", "model.ffn.hidden=96").arms[0].config
    (layer,) = scale_width(fixed, 64).model.layers
    assert (layer.mixer.num_heads, layer.mixer.head_dim, layer.ffn.hidden) == (4, 16, 192)


@pytest.mark.parametrize(
    ("sets", "options", "problem"),
    [
        ((), {"arms": ["mop"]}, "no arm 'mop'"),
        ((), {"widths": [32]}, "two different widths .*got 32"),
        ((), {"widths": [31, 32]}, "at dim=31: dim=31 .*divisible by num_heads=2"),
        (("model.mixer.head_dim=16",), {"widths": [24, 32]}, "at dim=24: num_heads=2 times 3/4 .*integer"),
    ],
)
def test_what_cannot_be_measured(study, sets, options, problem):
    with pytest.raises(UserError, match=problem) as error:
        check_coordinates(study(*sets), **options)
    assert error.value.remedy


@pytest.mark.nightly
def test_changes_are_independent_of_the_width_only_with_mup(study):
    """At a learning rate of 0.02, as means over three seeds."""
    found = check_coordinates(study(), widths=[32, 64, 128])
    slopes = {arm["arm"]: {(row["site"], row["moment"]): row["slope"] for row in arm["sites"]} for arm in found["arms"]}
    assert slopes["baseline"]["logits", "change"] > 0.4
    assert slopes["baseline"]["residual 0", "change"] > 1
    assert abs(slopes["mup"]["logits", "change"]) < 0.25
    scores = {name: own["mixer.scores 0", "before"] for name, own in slopes.items()}
    assert scores["mup"] == pytest.approx(-0.5, abs=0.2)
    assert scores["mup-root"] == pytest.approx(scores["mup"] + 0.5, abs=1e-3)


@pytest.mark.nightly
def test_sizes_agree_with_single_steps(study):
    """The sizes at one width, recomputed step by step with the functions of training."""
    arm = study().arms[1]
    config, source, steps = scale_width(arm.config, 16), study().source(arm), 2
    found = SizeProgram(config, source, steps)(1)
    seed, rows = jnp.int32(1), source.rows(1, 0, steps, config.train.batch_size)
    tokens = source.batch({}, jnp.asarray(rows[0]), named(root_key(1), "data", 0)).tokens
    state = init_state(config, source, seed)

    @jax.jit
    def read(model):
        logits, reads = capture(lambda: model(tokens), ["mixer.scores", "ffn.out"])()
        return {"logits": logits, **{name: array[0] for name, array in reads.items()}}

    seen = [read(state.model)]
    for row in rows:
        context = StepContext(config, source, {}, seed, steps, jnp.float32)
        state, _ = train_step(state, jnp.asarray(row), context)
        seen.append(read(state.model))
    before = {name: np.asarray(array, np.float64) for name, array in seen[0].items()}
    causal = np.broadcast_to(np.tri(before["mixer.scores"].shape[-1], dtype=bool), before["mixer.scores"].shape)
    for name, first in before.items():
        keep = causal if name == "mixer.scores" else np.ones(first.shape, bool)
        wanted = [np.abs(first[keep]).mean(), *(np.abs((np.asarray(s[name]) - first)[keep]).mean() for s in seen[1:])]
        np.testing.assert_allclose(found[name][:, 0], wanted, rtol=1e-4)
