"""Optimizers whose evaluated parameters differ from the trained ones: exponential means and schedule-free AdamW."""

import jax
import numpy as np
import pytest

from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.nn.named_arrays import named_parameters
from taetpu.nn.parameters import Parameters
from taetpu.plugin import Component
from taetpu.train.memory import state_bytes
from taetpu.train.model_cost import num_params


def parameters(models, run=0):
    return {name: np.asarray(a) for name, a in named_parameters(jax.tree.map(lambda a: a[run], models)).items()}


def assert_identical(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.fixture(scope="module")
def averaged(make, text):
    return [make(text[0], optimizer={"kind": "adamw", "lr": 0.01, "ema": ema}) for ema in (0.5, 0.9)]


@pytest.mark.slow
def test_mean_of_the_weights_is_evaluated_and_leaves_training_unchanged(trainer, averaged, make, text):
    pack = trainer(averaged, text[1], seeds=[3, 3])
    plain = trainer([make(text[0], optimizer={"kind": "adamw", "lr": 0.01})] * 2, text[1], seeds=[3, 3])
    expected = [parameters(pack.state.model, run) for run in (0, 1)]
    for _ in range(3):
        assert_identical(pack.advance(1), plain.advance(1))
        for run, decay in enumerate((0.5, 0.9)):
            new = parameters(pack.state.model, run)
            expected[run] = {name: decay * mean + (1 - decay) * new[name] for name, mean in expected[run].items()}
    assert_identical(pack.state.model, plain.state.model)
    shown = pack.program.evaluated(pack.state, pack.numbers)
    for run in (0, 1):
        for name, mean in parameters(shown, run).items():
            np.testing.assert_allclose(mean, expected[run][name], rtol=1e-5, atol=1e-7, err_msg=name)
    assert plain.program.evaluated(plain.state, plain.numbers) is plain.state.model


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(lambda value: {"kind": "adamw", "ema": value}, id="ema", marks=pytest.mark.slow),
        pytest.param(lambda value: {"kind": "schedule-free", "b1": value}, id="schedule-free"),
        pytest.param(lambda value: {"kind": "muon", "momentum": value}, id="muon", marks=pytest.mark.slow),
        pytest.param(
            lambda value: {"kind": "adamw", "groups": {"q": {"lr": value}, "vector": {"weight_decay": value}}},
            id="groups",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_packed_run_evaluates_the_same_bits_as_alone(trainer, make, text, settings):
    """The runs of a pack differ in one number."""
    configs = [make(text[0], optimizer={"lr": 0.01, **settings(value)}) for value in (0.5, 0.9)]
    pack = trainer(configs, text[1], seeds=[3, 4])
    pack.advance(3)
    shown = pack.program.evaluated(pack.state, pack.numbers)
    for run, config in enumerate(configs):
        alone = trainer([config], text[1], seeds=[3 + run])
        alone.advance(3)
        assert_identical(parameters(shown, run), parameters(alone.program.evaluated(alone.state, alone.numbers)))


class MatrixAndVector(Parameters):
    decayed = {"w": True, "b": False}  # noqa: RUF012

    def __init__(self):
        pass


def test_schedule_free_equals_the_equations_of_the_paper():
    """Defazio et al. 2024, algorithm 1, written out for a matrix with decay and a vector without."""
    lrs, b1, b2, eps, decay = (0.1, 0.2, 0.2, 0.2), 0.8, 0.95, 1e-3, 0.3
    config = build_component(
        "optimizer", {"kind": "schedule-free", "b1": b1, "b2": b2, "eps": eps, "weight_decay": decay}
    )
    random = np.random.default_rng(0)
    y = {"w": random.standard_normal((2, 3)), "b": random.standard_normal(3)}
    x, z, second, total = dict(y), dict(y), dict.fromkeys(y, 0.0), 0.0
    params = {name: np.asarray(a, np.float32) for name, a in y.items()}
    parameters = MatrixAndVector()
    state = config.update_rule(0, parameters).init(params)
    for i, lr in enumerate(lrs, 1):
        grads = {name: random.standard_normal(a.shape) for name, a in y.items()}
        total += lr**2
        for name, grad in grads.items():
            second[name] = b2 * second[name] + (1 - b2) * grad**2
            step = grad / (np.sqrt(second[name] / (1 - b2**i)) + eps) + (decay * y[name] if name == "w" else 0)
            z[name] = z[name] - lr * step
            x[name] = (1 - lr**2 / total) * x[name] + lr**2 / total * z[name]
            y[name] = (1 - b1) * z[name] + b1 * x[name]
        updates, state = config.update_rule(lr, parameters).update(
            {name: np.asarray(g, np.float32) for name, g in grads.items()}, state, params
        )
        params = {name: a + updates[name] for name, a in params.items()}
    for name, mean in config.evaluated(state, params).items():
        np.testing.assert_allclose(params[name], y[name], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(mean, x[name], rtol=1e-4, atol=1e-5)


def test_memory_counts_the_state_of_the_optimizer_and_the_mean(make, text):
    task, source = text
    count = 4 * num_params(make(task).model, source.vocab_size, source.seq_len)
    copies = {"adamw": 4, "schedule-free": 4}  # parameters, gradients and two arrays of the optimizer
    for kind, number in copies.items():
        assert state_bytes(make(task, optimizer=kind), source) == number * count
        assert state_bytes(make(task, optimizer={"kind": kind, "ema": 0.9}), source) == (number + 1) * count


class Wrong(Component):
    """An optimizer that evaluates a part of the parameters."""

    slot, kind = "optimizer", "wrong"
    lr: float = 0.1

    def transform(self, lr, decayed):
        return build_component("optimizer", "adamw").transform(lr, decayed)

    def evaluated(self, state, params):
        return params.embedding


@pytest.mark.slow
def test_evaluated_parameters_of_another_structure_are_refused(trainer, make, text):
    config = make(text[0])
    config = config.model_copy(update={"train": config.train.model_copy(update={"optimizer": Wrong()})})
    run = trainer([config], text[1])
    with pytest.raises(UserError, match=r"optimizer 'wrong' .*of type Tied") as found:
        run.program.evaluated(run.state, run.numbers)
    assert found.value.file == __file__


def test_hook_that_changes_updates_is_refused_with_schedule_free(make, text):
    """Schedule-free AdamW computes the evaluated parameters from its own updates of z."""
    hooks = {"freeze": {"trained": ["*.ffn.*"]}}
    with pytest.raises(UserError, match=r"hook 'freeze' changes updates, .*'schedule-free'") as found:
        make(text[0], optimizer="schedule-free", hooks=hooks)
    assert found.value.path == ("train", "hooks", "freeze")
    make(text[0], optimizer={"kind": "adamw", "ema": 0.5}, hooks=hooks)
