"""Hooks act at their place only, and each hook has its own random numbers."""

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.core.config_parsing import build_component, load_config
from taetpu.core.errors import UserError
from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.core.registry import register, registered_by, unregister
from taetpu.data.base import Batch
from taetpu.nn.named_arrays import named_parameters
from taetpu.optim.hooks import Hook, Moment
from taetpu.plugin import Number
from taetpu.spec.study_config import RunConfig
from taetpu.testing.tiny import plain_model
from taetpu.train.step import StepContext, init_state, update


@pytest.fixture(scope="module", autouse=True)
def planted():
    """Register hooks that each act at one place, for this module only."""

    @register("hook", "test-weightless")
    class Weightless(Hook):
        def batch(self, batch, now):
            return batch._replace(weights=batch.weights.at[:, 1:].set(0.0))

    @register("hook", "test-penalty")
    class Penalty(Hook):
        strength: Number = 0.0

        def loss(self, loss, logits, batch, model, now):
            return loss + self.strength * sum(jnp.sum(a**2) for a in named_parameters(model).values())

    @register("hook", "test-noise")
    class Noise(Hook):
        size: Number = 1.0

        def gradients(self, gradients, params, now):
            return jax.tree.map(lambda g: g + self.size * jax.random.normal(now.key, g.shape), gradients)

    @register("hook", "test-still")
    class Still(Hook):
        def updates(self, updates, params, now):
            return jax.tree.map(jnp.zeros_like, updates)

    @register("hook", "test-short")
    class Short(Hook):
        def batch(self, batch, now):
            return batch._replace(targets=batch.targets[:, :-1])

    @register("hook", "test-vector")
    class Vector(Hook):
        def loss(self, loss, logits, batch, model, now):
            return jnp.stack([loss, loss])

    @register("hook", "test-lost")
    class Lost(Hook):
        def gradients(self, gradients, params, now):
            return None

    @register("hook", "test-idle")
    class Idle(Hook):
        pass

    yield
    assert registered_by(__name__)
    unregister(__name__)


def parameters(run) -> dict[str, np.ndarray]:
    return {name: np.asarray(a) for name, a in named_parameters(run.state.model).items()}


def take_update(config, source):
    """Return the first update of a run."""

    def first(seed, arrays, rows):
        state = init_state(config, source, seed)
        new = update(state, rows, StepContext(config, source, arrays, seed, 12, jnp.float32))
        return new.sums, new.gradients

    rows = source.rows(0, 0, 1, config.train.batch_size)[0]
    return jit_once(first)(jnp.int32(0), dict(source.arrays), rows)


@pytest.mark.slow
def test_batch_hook_changes_the_batch(make, text):
    task, source = text
    (plain, _), (hooked, _) = (take_update(make(task, hooks=hooks), source) for hooks in ([], ["test-weightless"]))
    assert float(plain["weight"]) == 4 * 16
    assert float(hooked["weight"]) == 4  # the first position of each sequence


@pytest.mark.slow
def test_loss_hook_counts_once_with_any_number_of_microbatches(make, text):
    task, source = text
    hooks = {"test-penalty": {"strength": 0.05}}
    (_, whole), (_, parts), (_, plain) = (
        take_update(make(task, **train), source) for train in ({"hooks": hooks}, {"hooks": hooks, "accumulate": 4}, {})
    )
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    apart = [np.abs(a - b).max() for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(plain), strict=True)]
    assert max(apart) > 1e-3


@pytest.mark.slow
def test_hooks_draw_different_noise_for_each_step_and_hook(trainer, make, text):
    task, source = text
    hooks = {"a": {"kind": "test-noise"}, "b": {"kind": "test-noise"}}
    config = make(task, clip=None, hooks=hooks, metrics={"gradient-norm": {"every": 1}})
    run = trainer([config, config], source, seeds=[1, 1])
    first = run.observe()["gradient-norm/all"]
    assert first[0] == first[1]
    run.state = eqx.tree_at(lambda state: state.step, run.state, run.state.step + 1)
    later = run.observe()["gradient-norm/all"]
    assert later[0] != first[0]
    count = sum(a[0].size for a in named_parameters(run.state.model).values())
    # Independent noise of two hooks adds up to sqrt(2), shared noise would to 2.
    assert later[0] / np.sqrt(count) == pytest.approx(np.sqrt(2), rel=0.1)


@pytest.mark.slow
def test_zero_updates_change_no_parameter(trainer, make, text):
    task, source = text
    run = trainer([make(task, hooks=["test-still"])], source)
    before = parameters(run)
    run.advance(3)
    for name, value in parameters(run).items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.slow
def test_hook_numbers_are_traced(trainer, make, text):
    task, source = text
    configs = [make(task, hooks={"test-penalty": {"strength": s}}) for s in (0.0, 0.1)]
    losses = trainer(configs, source, seeds=[2, 2]).advance(3)["train/loss"]
    assert losses[0, 0] == losses[1, 0]
    assert losses[0, 2] != losses[1, 2]


def test_hook_without_methods_is_refused(make):
    with pytest.raises(UserError, match="hook 'test-idle' overrides no") as error:
        make(hooks=["test-idle"])
    assert error.value.path == ("train", "hooks", "test-idle")


@pytest.mark.parametrize(
    ("hooks", "problem", "path"),
    [
        ({"test-still": {"share": 1}}, "unknown field 'share'", ("train", "hooks", "test-still", "share")),
        (["test-stil"], "unknown hook kind 'test-stil'", ("train", "hooks", "test-stil", "kind")),
        (["test-still", "test-still"], "hook 'test-still' .*twice", ("train", "hooks", 1)),
        (3, "^3 .*list of kinds .* mapping", ("train", "hooks")),
        ({"a.b": {"kind": "test-still"}}, "'a.b' .*valid name", ("train", "hooks", "a.b")),
        ({"test-penalty": {"strength": "x"}}, "'x' is not allowed", ("train", "hooks", "test-penalty", "strength")),
    ],
)
def test_invalid_hooks_are_refused(hooks, problem, path):
    data = {"task": {"kind": "copy", "seq_len": 16}, "model": {"dim": 16, "num_layers": 1},
            "train": {"steps": 5, "hooks": hooks}}  # fmt: skip
    with pytest.raises(UserError, match=problem) as error:
        load_config(RunConfig, data)
    assert error.value.path == path


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["test-short", "test-vector", "test-lost"])
def test_hook_result_of_wrong_form_is_refused_with_its_place(kind, trainer, make, text, wording):
    task, source = text
    run = trainer([make(task, hooks=[kind])], source)
    with pytest.raises(UserError) as caught:
        run.advance(1)
    wording(f"{caught.value.problem}\n{caught.value.remedy}")
    assert caught.value.path == ("train", "hooks", kind)
    assert str(caught.value.file) == __file__
    assert "def " in Path(__file__).read_text().splitlines()[caught.value.line - 1]


# --- freeze ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_freeze_trains_the_chosen_parameters_only(trainer, make, text):
    """Adam's weight decay does not move frozen parameters either. The pattern chooses one of two stacked layers."""
    task, source = text
    hooks = {"freeze": {"trained": ["layers.1.*", "*.ffn.up"]}}
    run = trainer([make(task, {"num_layers": 2}, hooks=hooks)], source)

    def first_run() -> dict[str, np.ndarray]:
        return {
            name: np.asarray(a) for name, a in named_parameters(jax.tree.map(lambda a: a[0], run.state.model)).items()
        }

    before = first_run()
    run.advance(3)
    for name, value in first_run().items():
        trained = name.startswith("layers.1.") or name.endswith(".ffn.up")
        assert np.array_equal(value, before[name]) != trained, name


def test_freeze_refuses_a_pattern_without_parameters(make, text):
    task, source = text
    with pytest.raises(UserError, match=r"no parameter .*'\*\.mixer\.wx'") as caught:
        take_update(make(task, hooks={"freeze": {"trained": ["*.mixer.wx"]}}), source)
    assert caught.value.path == ("train", "hooks", "freeze", "trained", 0)
    assert "Did you mean '*.mixer.w" in caught.value.remedy


# --- z-loss and label smoothing --------------------------------------------------------------------------------------


def add_to_loss(kind, weights, **settings):
    """Return what a hook adds to the loss of 4 sequences with random logits, and the logits, log Z and targets."""
    rng = np.random.default_rng(0)
    logits, targets = 2 * rng.standard_normal((4, 6, 9)).astype(np.float32), rng.integers(0, 9, (4, 6))
    ids, now = jnp.asarray(targets, jnp.int32), Moment(jnp.int32(0), 1, root_key(0))
    hook = build_component("hook", {"kind": kind, **settings})
    batch = Batch(ids, ids, jnp.asarray(weights, jnp.float32))
    added = hook.loss(jnp.float32(0), jnp.asarray(logits), batch, plain_model(), now)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return float(added), logits, log_p, targets


@pytest.mark.slow
def test_losses_of_hooks_are_weighted_means():
    weights = np.random.default_rng(1).random((4, 6)) + 0.5
    added, logits, log_p, targets = add_to_loss("z-loss", weights)
    log_z = (logits - log_p)[..., 0]
    assert added == pytest.approx(1e-4 * np.average(log_z**2, weights=weights), rel=1e-5)
    added, _, log_p, targets = add_to_loss("label-smoothing", weights, rate=0.3)
    smoothed = 0.7 * np.eye(9)[targets] + 0.3 / 9
    plain = -np.take_along_axis(log_p, targets[..., None], -1)[..., 0]
    expected = np.average(-(smoothed * log_p).sum(-1) - plain, weights=weights)
    assert added == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", ["z-loss", "label-smoothing"])
def test_targets_without_weight_add_nothing(kind):
    assert add_to_loss(kind, np.zeros((4, 6)))[0] == 0


@pytest.mark.slow
def test_built_in_losses_share_a_pack_and_leave_recorded_losses_plain(trainer, make, text):
    """The first loss is that of the initial parameters, so it does not depend on the hooks, unlike the third."""
    task, source = text
    configs = [
        make(task, hooks={"z-loss": {"weight": weight}, "label-smoothing": {"rate": rate}})
        for weight, rate in ((0.0, 0.0), (0.1, 0.0), (0.0, 0.4))
    ]
    losses = trainer(configs, source, seeds=[2, 2, 2]).advance(3)["train/loss"]
    plain = trainer([make(task)], source, seeds=[2]).advance(3)["train/loss"]
    np.testing.assert_allclose(losses[:, 0], plain[0, 0], rtol=1e-6)
    np.testing.assert_allclose(losses[0], plain[0], rtol=1e-5)
    assert len({*losses[:, 2].round(5)}) == 3


@pytest.mark.parametrize(
    ("hooks", "value", "path"),
    [({"z-loss": {"weight": -1}}, "-1", "weight"), ({"label-smoothing": {"rate": 1.0}}, "1.0", "rate")],
)
def test_settings_outside_their_range_are_refused(make, hooks, value, path):
    with pytest.raises(UserError, match=f"{value} is not allowed") as caught:
        make(hooks=hooks)
    assert caught.value.path == ("train", "hooks", *hooks, path)
