"""The choices of a run: when it stops, when its learning rate is lowered, and which model is evaluated."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from taetpu.core.config_parsing import build_component, load_config
from taetpu.core.errors import UserError
from taetpu.interop.blank import blank_model
from taetpu.nn.lm import ModelConfig
from taetpu.nn.named_arrays import named_parameters
from taetpu.train.memory import state_bytes
from taetpu.train.selection import selection_steps

MODEL = {"dim": 4, "num_layers": 1, "mixer": {"kind": "attention", "num_heads": 1}}
LOSSES = [3.0, 2.5, 2.6, 2.5, np.nan, 2.4, 2.41, 2.39, 2.5, 2.5, 2.5, 2.5, 2.0, 2.5, 2.5]


def parameters(models, run=0):
    return {name: np.asarray(a) for name, a in named_parameters(jax.tree.map(lambda a: a[run], models)).items()}


def assert_identical(ours, theirs):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def states(component, losses):
    """Yield the state of a component after each observation."""
    model = blank_model(load_config(ModelConfig, MODEL).resolve(), 4, 8)
    state = component.begin(model)
    for i, loss in enumerate(losses, start=1):
        state = component.observe(state, jnp.float32(loss), model, jnp.int32(i * component.every))
        yield state


@pytest.mark.parametrize("patience", [1, 2, 3])
@pytest.mark.parametrize("min_delta", [0.0, 0.05])
def test_plateau_lowers_the_rate_as_torch_does(patience, min_delta):
    schedule = build_component(
        "schedule",
        {"kind": "plateau", "patience": patience, "min_delta": min_delta, "factor": 0.5, "min_lr": 0.01},
    )
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=0.1)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=0.5, patience=patience - 1, threshold=min_delta, threshold_mode="abs", min_lr=0.01, eps=0.0
    )
    rates = []
    for state, loss in zip(states(schedule, LOSSES), LOSSES, strict=True):
        theirs.step(loss)
        rates.append(float(schedule.lowered(jnp.float32(0.1), state)))
        assert rates[-1] == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-6)
    assert len(set(rates)) > 2
    assert float(schedule.lowered(jnp.float32(0.004), state)) == np.float32(0.004)  # warm-up below min_lr


def test_patience_stops_after_observations_without_an_improvement():
    stop = build_component("stop", {"kind": "patience", "patience": 3, "min_delta": 0.0})
    ends = [bool(stop.stops(state)) for state in states(stop, LOSSES)]
    assert ends.index(True) == LOSSES.index(2.5) + 3
    never = build_component("stop", {"kind": "patience", "patience": len(LOSSES)})
    assert not any(bool(never.stops(state)) for state in states(never, LOSSES))


def test_components_are_due_at_their_multiples_and_the_best_model_also_at_the_end(make):
    train = make(
        steps=10, schedule={"kind": "plateau", "every": 2, "patience": 1}, evaluate={"kind": "best", "every": 4},
    ).train  # fmt: skip
    due = selection_steps(train, 10)
    assert {step: set(slots) for step, slots in due.items()} == {
        2: {"schedule"}, 4: {"schedule", "evaluate"}, 6: {"schedule"}, 8: {"schedule", "evaluate"}, 10: {"evaluate"},
    }  # fmt: skip
    assert selection_steps(
        make(steps=8, evaluate={"kind": "average-last", "count": 2, "every": 4}).train, 8
    ).keys() == {4, 8}


def stopping(task, make, lr=0.03, patience=4, min_delta=0.0):
    """Return the config of a run with all choices. Its numbers are traced, so that tests share programs."""
    return make(
        task,
        optimizer={"kind": "adamw", "lr": lr},
        schedule={"kind": "plateau", "every": 2, "windows": 3, "patience": 1},
        evaluate={"kind": "best", "every": 2, "windows": 5},
        stop={"kind": "patience", "every": 2, "windows": 4, "patience": patience, "min_delta": min_delta},
    )


def choose(run):
    """Let the runs of a pack choose, and return their losses."""
    program = run.program
    run.state, losses = program.select(run.state, run.numbers, run.seeds, program.selection_set)
    return {name: np.asarray(values) for name, values in losses.items()}


@pytest.mark.slow
def test_packed_runs_choose_and_stop_as_alone_and_a_stopped_run_is_frozen(trainer, make, text):
    configs = [stopping(text[0], make, patience=4), stopping(text[0], make, patience=1, min_delta=10.0)]
    pack = trainer(configs, text[1], seeds=[3, 4])
    alone = [trainer([config], text[1], seeds=[3 + i]) for i, config in enumerate(configs)]
    frozen = None
    for step in (2, 4, 6, 8):
        for run in (pack, *alone):
            run.advance(2)
        losses = choose(pack)
        for i, run in enumerate(alone):
            assert_identical({name: values[i : i + 1] for name, values in losses.items()}, choose(run))
            assert_identical(jax.tree.map(lambda a, i=i: a[i : i + 1], pack.state), run.state)
        if step == 4:  # no loss is lower than the first one by 10
            assert np.asarray(pack.state.stopped_at)[1] == 4
            frozen = jax.tree.map(lambda a: np.array(a[1]), pack.state)
    assert_identical(jax.tree.map(lambda a: a[1], pack.state), frozen)
    assert int(pack.state.step[0]) == 8


@pytest.mark.slow
def test_losses_are_those_of_the_first_windows_in_the_order_of_evaluation(trainer, make, text):
    run = trainer([stopping(text[0], make)], text[1])
    run.advance(2)
    windows = run.program.evaluation_set("val")
    sums = run.program.evaluate_on_host(run.state.model, windows, len(windows.tokens))
    losses = choose(run)
    for slot, count in (("schedule", 3), ("evaluate", 5)):
        expected = sums["nll"][0, :count].sum() / sums["weight"][0, :count].sum()
        np.testing.assert_allclose(losses[f"selection/{slot}"][0], expected, rtol=1e-6)


def test_best_model_is_the_one_with_the_lowest_loss(trainer, make, text):
    run, seen = trainer([stopping(text[0], make, lr=0.3)], text[1]), []
    assert_identical(parameters(run.program.evaluated(run.state, run.numbers)), parameters(run.state.model))
    for _ in range(5):
        run.advance(2)
        loss = float(choose(run)["selection/evaluate"][0])
        seen.append((loss, parameters(run.state.model)))
        evaluated = parameters(run.program.evaluated(run.state, run.numbers))
        assert_identical(evaluated, min(seen, key=lambda entry: entry[0])[1])
    assert min(range(5), key=lambda i: seen[i][0]) < 4  # the last model is not the best one
    best = run.state.selection["evaluate"]
    assert int(best.step[0]) == 2 + 2 * min(range(5), key=lambda i: seen[i][0])


@pytest.mark.slow
def test_mean_of_the_last_models_equals_the_mean_of_their_parameters(trainer, make, text):
    run = trainer([make(text[0], evaluate={"kind": "average-last", "count": 3, "every": 2})], text[1])
    assert run.program.selection_set is None
    seen = []
    for _ in range(5):
        run.advance(2)
        choose(run)
        seen.append(parameters(run.state.model))
        evaluated, last = parameters(run.program.evaluated(run.state, run.numbers)), seen[-3:]
        for name, mean in evaluated.items():
            np.testing.assert_allclose(mean, np.mean([kept[name] for kept in last], 0), rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_training_is_that_of_a_run_without_choices(trainer, make, text):
    chosen = trainer([make(text[0], evaluate={"kind": "best", "every": 2, "windows": 5})], text[1])
    plain = trainer([make(text[0])], text[1])
    for _ in range(3):
        assert_identical(chosen.advance(2), plain.advance(2))
        choose(chosen)
    assert_identical(chosen.state.model, plain.state.model)
    assert plain.state.selection == {}
    assert plain.program.evaluated(plain.state, plain.numbers) is plain.state.model


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [{"data": 2}, {"model": 2}], ids=str)
def test_divided_runs_choose_as_a_whole_run(trainer, make, text, mesh):
    config = stopping(text[0], make, patience=2)
    whole, divided = trainer([config], text[1]), trainer([config], text[1], devices=2, **mesh)
    for _ in range(6):
        for run in (whole, divided):
            run.advance(2)
        losses, others = choose(whole), choose(divided)
        for name, loss in losses.items():
            np.testing.assert_allclose(others[name], loss, rtol=1e-4)
    ours, theirs = (jax.device_get((run.state.stopped_at, run.state.selection)) for run in (whole, divided))
    assert ours[0] == theirs[0]
    assert ours[1]["evaluate"].step == theirs[1]["evaluate"].step
    best, other = (parameters(run.program.evaluated(run.state, run.numbers)) for run in (whole, divided))
    for name, array in best.items():
        np.testing.assert_allclose(other[name], array, rtol=2e-3, atol=1e-4)


def test_memory_counts_the_models_that_are_kept(make, text):
    task, source = text
    plain = state_bytes(make(task), source)
    params = state_bytes(make(task, optimizer={"kind": "adamw", "ema": 0.5}), source) - plain
    assert state_bytes(make(task, evaluate="best", steps=200), source) == plain + params
    average = {"kind": "average-last", "count": 3, "every": 2}
    assert state_bytes(make(task, evaluate=average), source) == plain + 3 * params


@pytest.mark.parametrize(
    ("train", "path", "remedy"),
    [
        ({"stop": {"kind": "patience", "every": 1, "patience": 2}}, ("schedule",), "constant, inverse-sqrt, plateau"),
        ({"schedule": {"kind": "plateau", "every": 13}}, ("schedule", "every"), "12"),
        ({"schedule": {"kind": "plateau", "every": 2, "patience": 5}}, ("schedule", "patience"), "4"),
        ({"schedule": {"kind": "plateau", "every": 8, "patience": 1}}, ("schedule", "patience"), "every: 5"),
        ({"evaluate": {"kind": "average-last", "count": 5, "every": 3}}, ("evaluate", "every"), "2"),
        (
            {"evaluate": {"kind": "average-last", "count": 2, "every": 3}, "optimizer": {"kind": "adamw", "ema": 0.9}},
            ("evaluate",),
            "last",
        ),
        ({"evaluate": {"kind": "best", "every": 0}}, ("evaluate", "every"), ""),
    ],
)  # fmt: skip
def test_choices_that_a_run_cannot_make_are_refused(make, train, path, remedy):
    with pytest.raises(UserError) as caught:
        make(**train)
    assert caught.value.path == ("train", *path)
    assert remedy in (caught.value.remedy or "")


def test_windows_are_limited_by_the_validation_split(make, text):
    task, source = text
    most = len(source.evaluation("val").tokens)
    for windows, refused in ((most, False), (most + 1, True)):
        train = make(task, evaluate={"kind": "best", "every": 2, "windows": windows}).train
        if not refused:
            train.check_windows(source)
            continue
        with pytest.raises(UserError) as caught:
            train.check_windows(source)
        assert caught.value.path == ("evaluate", "windows")
        assert str(most) in caught.value.remedy
    without = {**task, "val": 0.0}
    train = make(without, evaluate={"kind": "best", "every": 2}).train
    with pytest.raises(UserError) as caught:
        train.check_windows(make(without).task.prepare(Path()))
    assert caught.value.path == ("evaluate",)
