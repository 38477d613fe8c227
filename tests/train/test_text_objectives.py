"""Masked and prefix language models: packed equals alone, both feeds and several devices agree, and they learn."""

import jax
import numpy as np
import pytest
from tests.train.conftest import settings

from taetpu.core.jit import jit_once
from taetpu.train.step import new_model

MASKED = {"mixer": {"kind": "attention", "num_heads": 2, "mask": "full"}}
PREFIXED = {"mixer": {"kind": "attention", "num_heads": 2, "mask": "prefix"}}
OBJECTIVES = {
    "masked": ({"kind": "masked-lm", "share": 0.3}, MASKED),
    "spans": ({"kind": "masked-lm", "unit": "word", "span": 2.0}, MASKED),
    "prefix": ({"kind": "prefix-lm"}, PREFIXED),
}
CASES = pytest.mark.parametrize(("objective", "model"), OBJECTIVES.values(), ids=OBJECTIVES)


def configured(text, objective, model, lr=1e-3, **train):
    return settings({**text[0], "objective": objective}, model, optimizer={"kind": "adamw", "lr": lr}, **train)


@pytest.mark.slow
@CASES
def test_packed_runs_equal_a_run_alone_with_either_feed(trainer, text, tmp_path, objective, model):
    configs = [configured(text, objective, model, lr) for lr in (1e-3, 1e-2)]
    source = configs[0].task.prepare(tmp_path)
    pack, alone = trainer(configs, source), trainer(configs[1:], source, seeds=[1])
    streamed = trainer(configs, source, feed="host")
    together, single, fed = pack.advance(5, 3), alone.advance(8), streamed.advance(5, 3)
    for name, values in single.items():
        np.testing.assert_array_equal(together[name][1], values[0])
        np.testing.assert_array_equal(together[name], fed[name])
    packed, solo = (jax.tree.leaves(run.state.model) for run in (pack, alone))
    for several, one in zip(packed, solo, strict=True):
        np.testing.assert_array_equal(np.asarray(several)[1], np.asarray(one)[0])


@pytest.mark.slow
@CASES
def test_divided_runs_have_the_losses_of_a_whole_run(trainer, text, tmp_path, objective, model):
    config = configured(text, objective, model)
    source = config.task.prepare(tmp_path)
    whole, divided = trainer([config], source), trainer([config], source, devices=2, data=2)
    np.testing.assert_allclose(whole.advance(4)["train/loss"], divided.advance(4)["train/loss"], rtol=1e-4)


@pytest.mark.slow
def test_a_batch_without_a_masked_token_has_the_loss_0(trainer, text, tmp_path):
    config = configured(text, {"kind": "masked-lm", "share": 0.001}, MASKED)
    run = trainer([config], config.task.prepare(tmp_path))
    losses = np.ravel(run.advance(8)["train/loss"])
    assert 0.0 in losses
    assert np.isfinite(losses).all()
    assert np.asarray(run.state.diverged_at)[0] < 0


@pytest.mark.slow
def test_masks_of_microbatches_are_those_of_the_batch(trainer, text, tmp_path):
    configs = [configured(text, OBJECTIVES["masked"][0], MASKED, accumulate=count) for count in (1, 2)]
    source = configs[0].task.prepare(tmp_path)
    losses = [trainer([config], source).advance(4)["train/loss"] for config in configs]
    np.testing.assert_allclose(*losses, rtol=1e-4)


@pytest.mark.slow
def test_a_masked_model_learns_more_than_frequencies(trainer, text, tmp_path):
    train = {"steps": 400, "batch_size": 16, "schedule": {"kind": "cosine", "warmup": 40}, "eval_every": 400}
    config = configured(text, {"kind": "masked-lm"}, MASKED, lr=1e-2, **train)
    source = config.task.prepare(tmp_path)
    run = trainer([config], source, chunk=100)
    run.advance(100, 100, 100, 100)
    windows = run.program.evaluation_set("val")
    sums = run.program.evaluate_on_host(run.state.model, windows, len(windows.tokens))
    loss = sums["nll"].sum() / sums["weight"].sum()
    assert loss < 0.9 * source.facts["decoy_loss"] < source.facts["chance_loss"]


def test_only_tokens_of_the_prefix_see_later_tokens(text, tmp_path):
    config = configured(text, {"kind": "prefix-lm"}, PREFIXED)
    source = config.task.prepare(tmp_path)
    model = new_model(config, source, 0)
    tokens = np.arange(16)[None] % source.vocab_size
    changed = tokens.copy()
    changed[:, 4] += 1
    run = jit_once(lambda tokens, prefix: model(tokens, prefix=prefix))
    for length, seen in ((6, range(16)), (4, range(4, 16)), (1, range(4, 16))):
        prefix = np.array([length], np.int32)
        before, after = (np.asarray(run(ids, prefix))[0] for ids in (tokens, changed))
        assert {*np.flatnonzero((before != after).any(-1))} == {*seen}


@pytest.mark.slow
def test_pairs_with_different_topics_are_told_apart(trainer, tmp_path):
    """A document has letters of one of four alphabets, so a pair with different alphabets does not follow."""
    rng = np.random.default_rng(0)
    alphabets = np.array([[*"abcd"], [*"efgh"], [*"ijkl"], [*"mnop"]])
    lines = ["".join(rng.choice(alphabets[topic], 13)) for topic in rng.integers(0, 4, 1000)]
    (tmp_path / "topics.txt").write_text("\n".join(lines))
    task = {"kind": "text", "source": "topics.txt", "per": "line", "samples": "pairs", "seq_len": 16, "val": 0.2}
    train = {"steps": 600, "batch_size": 32, "schedule": {"kind": "cosine", "warmup": 40}, "eval_every": 600}
    config = settings(
        {**task, "objective": {"kind": "masked-lm", "next_sentence": 1.0}}, MASKED,
        optimizer={"kind": "adamw", "lr": 1e-2}, eval_metrics=["first_position"], **train,
    )  # fmt: skip
    source = config.task.prepare(tmp_path)
    run = trainer([config], source, chunk=100)
    run.advance(*[100] * 6)
    windows = run.program.evaluation_set("val")
    sums = run.program.evaluate_on_host(run.state.model, windows, len(windows.tokens))
    assert sums["first_position.sequences"].sum() == len(source.evaluation("val").tokens)
    accuracy = sums["first_position.right"].sum() / sums["first_position.sequences"].sum()
    assert accuracy > 0.7  # a quarter of the other pieces have the same topic, so that 0.875 is possible
