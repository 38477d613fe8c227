"""The built-in metrics measure the step that is then taken."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.core.errors import UserError
from taetpu.core.registry import kinds
from taetpu.core.sites import capture
from taetpu.nn.named_arrays import named_parameters
from taetpu.train.step import metric_values

NORMS = ("weight-norm", "gradient-norm", "clipped-gradient-norm", "update-norm", "effective-lr")
SITES = {"res": {"kind": "activation", "site": "residual"}, "final": {"kind": "activation", "site": "final"}}
TWO = {"num_layers": 2}
ALL = {name: {"every": 1} for name in (*NORMS, "attention-entropy", "attention-logit-max")}
ALL |= {name: {**settings, "every": 1} for name, settings in SITES.items()}


@pytest.fixture(scope="module")
def run(trainer, make, text):
    """Return the metrics of the fourth step of a run, its parameters before and after, its model and its tokens."""
    task, source = text
    run = trainer([make(task, TWO, clip=0.1, metrics=ALL, batch_size=8, accumulate=2)], source, seeds=[4])
    run.advance(3)
    before = parameters(run)
    seen = {name: value[0] for name, value in run.observe().items()}
    model = jax.tree.map(lambda a: a[0], run.state.model)
    rows = jnp.asarray(source.rows(4, 3, 1, 8)[0])
    tokens = source.batch(run.program.arrays, rows, jax.random.key(0)).tokens[:4]
    metrics = run.advance(1)
    return seen, before, parameters(run), (model, tokens), metrics


def parameters(run) -> dict[str, np.ndarray]:
    return {name: np.asarray(a) for name, a in named_parameters(jax.tree.map(lambda a: a[0], run.state.model)).items()}


def norm(arrays: dict[str, np.ndarray], group: str = "") -> float:
    return np.sqrt(sum((a.astype(np.float64) ** 2).sum() for name, a in arrays.items() if name.startswith(group)))


@pytest.mark.slow
def test_norms_match_the_step_that_is_taken(run):
    seen, before, after, _, _ = run
    moved = {name: after[name] - before[name] for name in before}
    for group in ("all", "embedding", "layers.1.mixer", "layers.0.ffn_norm", "norm"):
        start = "" if group == "all" else f"{group}."
        assert seen[f"weight-norm/{group}"] == pytest.approx(norm(before, start), rel=1e-5)
        assert seen[f"update-norm/{group}"] == pytest.approx(norm(moved, start), rel=1e-3)
        rate = seen[f"update-norm/{group}"] / seen[f"weight-norm/{group}"]
        assert seen[f"effective-lr/{group}"] == pytest.approx(rate, rel=1e-5)


@pytest.mark.slow
def test_gradient_norms_before_and_after_clipping(run):
    seen = run[0]
    assert seen["gradient-norm/all"] > 0.1
    assert seen["clipped-gradient-norm/all"] == pytest.approx(0.1, rel=1e-4)
    share = seen["clipped-gradient-norm/layers.0.ffn"] / seen["gradient-norm/layers.0.ffn"]
    assert share == pytest.approx(0.1 / seen["gradient-norm/all"], rel=1e-4)


@pytest.mark.slow
def test_attention_metrics_measure_the_first_microbatch(run):
    seen, _, _, (model, tokens), _ = run
    _, reads = capture(model, ["mixer.pattern", "mixer.scores"])(tokens)
    pattern, scores = np.asarray(reads["mixer.pattern"]), np.asarray(reads["mixer.scores"])
    for layer in range(2):
        with np.errstate(divide="ignore", invalid="ignore"):
            entropy = -np.nansum(pattern[layer] * np.log(pattern[layer]), -1).mean()
        assert seen[f"attention-entropy/layers.{layer}"] == pytest.approx(entropy, rel=1e-4)
        assert seen[f"attention-logit-max/layers.{layer}"] == pytest.approx(scores[layer].max(), rel=1e-4)
        assert scores[layer].min() < -1e29  # masked scores are not the maximum


@pytest.mark.slow
def test_activations_at_any_site(run):
    seen, _, _, (model, tokens), _ = run
    _, reads = capture(model, ["residual", "final"])(tokens)
    residual, final = np.asarray(reads["residual"])[1], np.asarray(reads["final"])
    for name, x in (("res/{}.layers.1", residual), ("final/{}", final)):
        assert seen[name.format("mean")] == pytest.approx(x.mean(), rel=1e-3, abs=1e-6)
        assert seen[name.format("rms")] == pytest.approx(np.sqrt((x**2).mean()), rel=1e-4)
        assert seen[name.format("max")] == pytest.approx(np.abs(x).max(), rel=1e-4)
        assert seen[name.format("zeros")] == 0


@pytest.mark.slow
def test_layers_without_a_site_are_skipped_and_others_keep_their_numbers(trainer, make, text):
    task, source = text
    one = trainer([make(task, {"num_layers": 3, "layers": {1: {"mixer": "none"}}}, metrics={
        "attention-entropy": {"every": 1}})], source)  # fmt: skip
    assert set(one.observe()) == {"attention-entropy/layers.0", "attention-entropy/layers.2"}


@pytest.mark.slow
def test_expert_load_is_the_share_of_the_busiest_expert(trainer, make, text):
    """Two of four experts are chosen for each of 4 * 16 tokens of the first layer; the second layer has no experts."""
    task, source = text
    ffn = {"kind": "moe", "experts": 4, "hidden": 8}
    settings = {"num_layers": 2, "ffn": ffn, "layers": {1: {"ffn": "relu"}}}
    run = trainer([make(task, settings, metrics={"expert-load": {"every": 1}})], source, seeds=[4])
    rows = jnp.asarray(source.rows(4, 0, 1, 4)[0])
    tokens = source.batch(run.program.arrays, rows, jax.random.key(0)).tokens
    _, reads = capture(jax.tree.map(lambda a: a[0], run.state.model), ["ffn.router"])(tokens)
    scores = np.asarray(reads["ffn.router"])[0].reshape(-1, 4)
    counts = np.bincount(np.argsort(-scores, -1)[:, :2].ravel(), minlength=4)
    assert {name: float(value[0]) for name, value in run.observe().items()} == {
        "expert-load/layers.0": pytest.approx(counts.max() / 32, rel=1e-5)
    }


@pytest.mark.slow
def test_metrics_do_not_change_the_training_program(trainer, make, text):
    task, source = text

    def lowered(**settings):
        run = trainer([make(task, TWO, clip=0.1, batch_size=8, accumulate=2, **settings)], source, seeds=[4])
        rows = np.zeros((1, run.program.chunk, 8), np.int32)
        args = (run.state, run.numbers, run.seeds, rows, np.int32(1), run.program.arrays)
        return run.program.advance.lower(*args).as_text()

    assert lowered(metrics=ALL) == lowered()


def test_metric_values_must_be_scalars():
    class Vector:
        def measure(self, seen):
            return {"here": jnp.ones(3)}

    with pytest.raises(UserError, match=r"metric 'mine' .*here of shape \(3,\), not"):
        metric_values("mine", Vector(), None)  # type: ignore[arg-type]


def test_this_module_tests_every_built_in_metric():
    assert set(kinds("metric")) == {*NORMS, "attention-entropy", "attention-logit-max", "activation", "expert-load"}


def test_metric_without_measure_is_refused(make):
    from taetpu.core.registry import register, unregister
    from taetpu.optim.metrics import Metric

    @register("metric", "test-blind")
    class Blind(Metric):
        pass

    try:
        with pytest.raises(UserError, match="metric 'test-blind' measures nothing") as error:
            make(metrics=["test-blind"])
    finally:
        unregister(__name__)
    assert error.value.path == ("train", "metrics", "test-blind")


@pytest.mark.slow
def test_layers_with_different_numbers_of_heads_and_sizes_are_measured_one_by_one(trainer, make, text):
    task, source = text
    every = {"every": 1}
    hidden = {"kind": "activation", "site": "ffn.hidden", **every}
    layers = {0: {"mixer": {"kind": "attention", "num_heads": 1}, "ffn": {"kind": "relu", "hidden": 24}}}
    metrics = {"attention-entropy": every, "attention-logit-max": every, "hidden": hidden, "effective-lr": every}
    one = trainer([make(task, {**TWO, "layers": layers}, metrics=metrics)], source)
    found = one.observe()
    for name in ("attention-entropy/layers.{}", "attention-logit-max/layers.{}", "hidden/rms.layers.{}"):
        values = [found[name.format(i)][0] for i in range(2)]
        assert np.isfinite(values).all()
        assert len(set(values)) == 2
    assert 0 < found["hidden/zeros.layers.0"][0] < 1  # relu; the other layer has swiglu
    assert found["hidden/zeros.layers.1"][0] == 0
