"""Objectives change what is trained, in packs and alone alike, and never what is measured on evaluation sets."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.core.config_parsing import build_component, load_config
from taetpu.core.errors import UserError
from taetpu.core.jit import jit_once
from taetpu.core.keys import named
from taetpu.core.registry import register, registered_by, unregister
from taetpu.data.synthetic.rasp import Copy
from taetpu.nn.compute_options import ComputeOptions
from taetpu.nn.named_arrays import named_parameters
from taetpu.optim.objectives import CausalLM, default_objective
from taetpu.plugin import Number, Objective
from taetpu.spec.study_config import RunConfig
from taetpu.testing import check_component
from taetpu.testing.report import ComponentError
from taetpu.train.step import StepContext, init_state, update

SMOOTH = {"kind": "test-smoothed", "rate": 0.2}


@pytest.fixture(scope="module", autouse=True)
def planted():
    """Register objectives for this module only."""

    @register("objective", "test-smoothed")
    class Smoothed(Objective):
        rate: Number = 0.1

        def position_losses(self, logits, targets, weights):
            values = super().position_losses(logits, targets, weights)
            target = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
            return {**values, "objective": values["nll"] + self.rate * (target - logits.mean(-1)) * weights}

    @register("objective", "test-noisy")
    class Noisy(Objective):
        def predict(self, model, batch, *, key, dtype, whole):
            if key is not None:
                drawn = jax.random.bernoulli(named(key, "drop"), 0.2, batch.tokens.shape)
                batch = batch._replace(tokens=jnp.where(drawn, 0, batch.tokens))
            return super().predict(model, batch, key=key, dtype=dtype, whole=whole)

    @register("objective", "test-missing")
    class Missing(Objective):
        def position_losses(self, logits, targets, weights):
            return {"nll": super().position_losses(logits, targets, weights)["nll"]}

    @register("objective", "test-mean")
    class Mean(Objective):
        def position_losses(self, logits, targets, weights):
            values = super().position_losses(logits, targets, weights)
            return {**values, "objective": values["nll"].mean()}

    @register("objective", "test-taken")
    class Taken(Objective):
        def position_losses(self, logits, targets, weights):
            return {**super().position_losses(logits, targets, weights), "loss": weights}

    @register("objective", "test-blind")
    class Blind(Objective):
        def predict(self, model, batch, *, key, dtype, whole):
            return None, super().predict(model, batch, key=key, dtype=dtype, whole=whole)[1]

    @register("objective", "test-unweighted")
    class Unweighted(Objective):
        def position_losses(self, logits, targets, weights):
            values = super().position_losses(logits, targets, weights)
            return {**values, "objective": logits[..., 0] ** 2}

    @register("objective", "test-answers")
    class Answers(Objective):
        def check_task(self, task):
            if task.has_answers:
                raise UserError(f"task {task.kind!r} has answers")

    yield
    assert registered_by(__name__)
    unregister(__name__)


def first_update(config, options=None):
    """Return the sums, the losses and the gradients of the first update of a run."""
    source = config.task.prepare(Path())

    def first(seed, rows):
        state = init_state(config, source, seed)
        if options is not None:
            state = options.apply(state)
        new = update(state, rows, StepContext(config, source, source.arrays, seed, 12, jnp.float32))
        return new.sums, new.losses, named_parameters(new.gradients)

    return jit_once(first)(jnp.int32(0), source.rows(0, 0, 1, config.train.batch_size)[0])


def close(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_gradients_are_those_of_the_objective(make):
    """The hook `label-smoothing` adds the same term to the loss."""
    sums, _, gradients = first_update(make(objective=SMOOTH))
    plain, _, hooked = first_update(make(hooks={"label-smoothing": {"rate": 0.2}}))
    close(gradients, hooked)
    close({name: sums[name] for name in plain}, plain)
    assert abs(float(sums["objective"] - sums["nll"])) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "options"),
    [({"accumulate": 2}, None), ({}, ComputeOptions(loss_chunk=8)), ({"accumulate": 2}, ComputeOptions(loss_chunk=8))],
    ids=["microbatches", "chunks", "both"],
)
def test_the_objective_does_not_depend_on_how_the_batch_is_computed(make, more, options):
    model = {"heads": {"a": "multi-token"}, "ffn": {"kind": "moe", "balance": 0.01}}
    whole, divided = first_update(make(model=model, objective=SMOOTH)), None
    if "accumulate" in more:  # the loss of a router is a statistic of the whole batch
        model = {"heads": {"a": "multi-token"}}
        whole = first_update(make(model=model, objective=SMOOTH))
    divided = first_update(make(model=model, objective=SMOOTH, **more), options)
    assert {"objective", "nll", "correct", "weight"} == set(divided[0])
    close(divided, whole)


@pytest.mark.slow
@pytest.mark.parametrize("objective", [SMOOTH, "test-noisy"], ids=["smoothed", "noisy"])
def test_packed_and_resumed_runs_equal_a_run_alone(trainer, make, objective):
    configs = [make(objective=objective) for _ in range(2)]
    source = configs[0].task.prepare(Path())
    pack, alone = trainer(configs, source), trainer(configs[1:], source, seeds=[1])
    together, single = pack.advance(5, 3), alone.advance(8)
    for name, values in single.items():
        np.testing.assert_array_equal(together[name][1], values[0])
    assert ("train/objective" in single) == (objective is SMOOTH)
    packed, solo = (jax.tree.leaves(run.state.model) for run in (pack, alone))
    for several, one in zip(packed, solo, strict=True):
        np.testing.assert_array_equal(np.asarray(several)[1], np.asarray(one)[0])


@pytest.mark.slow
def test_divided_runs_have_the_losses_of_a_whole_run(trainer, make):
    config = make(objective=SMOOTH)
    source = config.task.prepare(Path())
    whole, manual = trainer([config], source), trainer([config], source, devices=2, data=2)
    a, b = whole.advance(4), manual.advance(4)
    for name in ("train/loss", "train/objective"):
        np.testing.assert_allclose(a[name], b[name], rtol=1e-4)


@pytest.mark.slow
def test_runs_with_other_rates_share_a_program_and_evaluate_the_loss_of_the_task(trainer, make):
    configs = [make(objective={**SMOOTH, "rate": rate}, eval_every=4) for rate in (0.1, 0.4)]
    source = configs[0].task.prepare(Path())
    pack, plain = trainer(configs, source, seeds=[0, 0]), trainer([make()], source)
    windows = pack.program.evaluation_set("val")
    before, expected = (run.program.evaluate_on_host(run.state.model, windows, 1) for run in (pack, plain))
    assert set(before) == set(expected) == {"nll", "correct", "weight"}
    for name in expected:
        np.testing.assert_array_equal(before[name][1], expected[name][0])
    losses = pack.advance(6)["train/objective"]
    assert losses[0][0] != losses[1][0]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("test-missing", ("'correct'", "position_losses")),
        ("test-mean", ("'objective'", "() float32")),
        ("test-taken", ("'loss'",)),
    ],
)
def test_an_objective_with_other_values_is_refused(make, kind, words):
    with pytest.raises(UserError) as caught:
        first_update(make(objective=kind))
    assert caught.value.path == ("train", "objective")
    assert str(caught.value.file) == __file__
    assert caught.value.line
    assert caught.value.remedy
    assert all(word in caught.value.problem for word in (kind, *words))


def test_an_objective_without_logits_is_refused_if_a_hook_reads_them(make):
    with pytest.raises(UserError, match="'test-blind'") as caught:
        first_update(make(objective="test-blind", hooks=["z-loss"]))
    assert "whole" in str(caught.value.remedy)


def test_an_objective_refuses_a_task():
    data = {
        "task": {"kind": "copy", "seq_len": 16}, "model": {"dim": 16, "num_layers": 1},
        "train": {"steps": 2, "objective": "test-answers"},
    }  # fmt: skip
    with pytest.raises(UserError, match="'copy'") as caught:
        load_config(RunConfig, data).resolve().check()
    assert caught.value.path == ("train", "objective")


def test_a_task_names_its_objective(monkeypatch, make):
    task = make().task
    assert isinstance(default_objective(task), CausalLM)
    assert make().train.objective.for_task(task) == build_component("objective", {"kind": "causal-lm"})
    monkeypatch.setattr(Copy, "objective", "causal-lmm", raising=False)
    with pytest.raises(UserError, match="'causal-lmm'") as caught:
        make().check()
    assert caught.value.path == ("task",)
    assert "'causal-lm'" in str(caught.value.remedy)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["test-smoothed", "test-noisy"])
def test_objectives_pass_their_checks(kind):
    assert {finding.outcome for finding in check_component("objective", kind).findings} == {"passed"}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "place"), [("test-unweighted", "weight 0"), ("test-mean", "()")])
def test_the_checks_name_what_is_wrong(kind, place):
    with pytest.raises(ComponentError) as caught:
        check_component("objective", kind)
    assert "objective" in str(caught.value)
    assert place in str(caught.value)
