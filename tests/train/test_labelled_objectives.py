"""Objectives of labelled rows: pooling, padding, class weights, and pairs that are compared over devices."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from scipy.special import log_softmax
from tests.labelled_files import labelled_rows, write_json_lines
from tests.suites import by_default

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.nn.compute_options import ComputeOptions
from taetpu.optim.hooks import Moment
from taetpu.optim.objectives import compute_objective, default_objective
from taetpu.spec.study_config import RunConfig
from taetpu.train.sharding import DATA, WHOLE, ManualDivision
from taetpu.train.step import StepContext, evaluate, gradients

FIELDS = {"pairs": {"size": 6, "candidates": 4}, "regression": {"label": "score"}}
KINDS = ("classification", "regression", "token-classification", "pairs")
FULL = {"kind": "attention", "num_heads": 2, "mask": "full"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_json_lines(tmp_path_factory.mktemp("rows") / "rows.jsonl", labelled_rows(40)).parent


def configured(kind: str = "classification", mixer: Any = FULL, train: Any = None, **fields: Any) -> Any:
    task = {"kind": kind, "source": "rows.jsonl", "seq_len": 32, "val": 0.3, **FIELDS.get(kind, {}), **fields}
    model = {"dim": 8, "num_layers": 1, "mixer": mixer, "embedding": "untied", "init": "fan-in"}
    training = {"steps": 2, "batch_size": 4, **(train or {})}
    return load_config(RunConfig, {"task": task, "model": model, "train": training}).resolve()


def built(config: Any, folder: Any, model: Any = None) -> tuple[Any, Any, Any]:
    """Return the source of a config, a model and a batch."""
    source = config.task.prepare(folder)
    if model is None:
        model = jax.jit(lambda key: config.model.build(source.interface, source.seq_len, key=key))(jax.random.key(1))
    arrays = {name: array[:4] for name, array in source.arrays.items()}
    return source, model, jax.tree.map(jnp.asarray, source.batch(arrays, np.arange(4), jax.random.key(0)))


def losses_of(objective: Any, model: Any, batch: Any) -> Any:
    """Return logits and values, compiled, which takes less time than eager operations."""
    return jax.jit(lambda model, batch: compute_objective(objective, model, batch, whole=True))(model, batch)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_outputs_of_a_sequence_are_pooled_over_its_tokens(kind, folder):
    weighted = {"class_weights": "balanced"} if kind == "classification" else {}
    configs = [configured(kind, pooling=pooling, **weighted) for pooling in ("first", "last", "mean")]
    _, model, _ = built(configs[0], folder)

    @jax.jit
    def compute(model, batch):
        stream, inside = model.final(batch.tokens, **batch.context), ~batch.context["padding"]
        means = (stream * inside[..., None]).sum(1) / batch.lengths[:, None]
        return model(batch.tokens, **batch.context), model.decode(means[:, None])[:, 0]

    for config in configs:
        _, _, batch = built(config, folder, model)
        outputs, of_means = map(np.asarray, compute(model, batch))
        _, values = losses_of(default_objective(config.task), model, batch)
        for i, length in enumerate(batch.lengths.tolist()):
            rows = {"first": outputs[i, 0], "last": outputs[i, length - 1], "mean": outputs[i, :length].mean(0)}
            row, target = rows[config.task.pooling], batch.targets[i, 0]
            weight = float(batch.weights[i].max())
            expected = float(row[0] - target) ** 2 if kind == "regression" else -weight * log_softmax(row)[target]
            np.testing.assert_allclose(values["nll"][i].sum(), expected, rtol=1e-5)
            # The head is linear, so the mean of its outputs is its output for the mean.
            np.testing.assert_allclose(of_means[i], rows["mean"], atol=1e-5)
        assert ((np.asarray(values["nll"]) != 0).sum(1) <= 1).all()


@pytest.mark.parametrize("kind", by_default(KINDS, "pairs"))
def test_padding_changes_no_gradient_and_chunks_change_no_loss(kind, folder):
    pooling = {} if kind == "token-classification" else {"pooling": "mean"}
    config = configured(kind, **pooling)
    source, model, batch = built(config, folder)
    padding = batch.context["padding"]
    assert padding.any()
    other = batch._replace(tokens=jnp.where(padding, 3, batch.tokens))
    if batch.second is not None:
        outside = jnp.arange(32) >= batch.second_lengths[:, None]
        other = other._replace(second=jnp.where(outside, 3, batch.second))
    context = StepContext(config, source, {}, jnp.int32(0), 2, jnp.float32)
    now = Moment(jnp.int32(0), 2, jax.random.key(2))
    compute = jax.jit(lambda batch: gradients(model, batch, jax.random.key(3), now, context))
    for a, b in zip(*map(jax.tree.leaves, (compute(batch), compute(other))), strict=True):
        np.testing.assert_array_equal(a, b)
    whole, chunked = (
        jax.jit(partial(compute_objective, default_objective(config.task)))(m, batch)[1]["nll"]
        for m in (model, ComputeOptions(loss_chunk=8).apply(model))
    )
    np.testing.assert_allclose(whole, chunked, atol=1e-6)


# --- pairs -----------------------------------------------------------------------------------------------------------


def test_the_loss_of_pairs_is_the_cross_entropy_of_partners(folder):
    """The objective names the temperature of training, and the task that of evaluation."""
    config = configured("pairs", temperature=0.4, train={"objective": {"kind": "contrastive", "temperature": 0.2}})
    plain = configured("pairs", temperature=0.4)
    _, model, batch = built(config, folder)
    embeddings = []
    for tokens, lengths in ((batch.tokens, batch.lengths), (batch.second, batch.second_lengths)):
        alone = batch._replace(tokens=tokens, lengths=lengths)
        outputs = np.asarray(jax.jit(lambda b: model(b.tokens, **b.context))(alone))
        outputs = outputs[np.arange(4), np.asarray(lengths) - 1]
        embeddings.append(outputs / np.linalg.norm(outputs, axis=-1, keepdims=True))
    cosines = embeddings[0] @ embeddings[1].T
    for temperature, objective in (
        (0.2, config.train.objective.for_task(config.task)),
        (0.4, default_objective(config.task)),
        (0.4, plain.train.objective.for_task(plain.task)),
        (0.05, default_objective(configured("pairs").task)),
    ):
        logits, values = jax.tree.map(np.asarray, losses_of(objective, model, batch))
        expected = -np.diag(log_softmax(cosines / temperature, axis=-1))
        np.testing.assert_allclose(values["nll"].sum(1), expected, rtol=1e-4)
        np.testing.assert_array_equal(values["correct"].sum(1), cosines.argmax(1) == np.arange(4))
        assert logits.shape == (4, 32, 4)
        rolled = [np.roll(row, -i) for i, row in enumerate(cosines / temperature)]
        np.testing.assert_allclose(logits[:, 0], rolled, rtol=1e-4, atol=1e-5)


def test_rows_that_fill_a_batch_are_no_candidates(folder):
    config = configured("pairs")
    _, model, batch = built(config, folder)
    objective = default_objective(config.task)
    three = jax.tree.map(lambda a: np.asarray(a[:3]), batch)
    filled = jax.tree.map(lambda a: np.pad(a, [(0, 1), *[(0, 0)] * (a.ndim - 1)]), three)
    (_, values), (_, alone) = (jax.tree.map(np.asarray, losses_of(objective, model, b)) for b in (filled, three))
    np.testing.assert_allclose(values["nll"][:3], alone["nll"], rtol=1e-5)
    assert not values["nll"][3].any()


@pytest.mark.slow
def test_pairs_of_all_devices_are_candidates(folder):
    """Losses, gradients and evaluations of a batch that is divided over two devices are those of one device."""
    config = configured("pairs", train={"clip": None})
    source, model, batch = built(config, folder)
    mesh = jax.make_mesh((2,), (DATA,), axis_types=(jax.sharding.AxisType.Auto,))
    now = Moment(jnp.int32(0), 2, jax.random.key(2))

    def compute(division, model, batch):
        context = StepContext(config, source, {}, jnp.int32(0), 2, jnp.float32, division)
        grads, (sums, _, _) = gradients(model, batch, jax.random.key(3), now, context)
        return jax.tree.leaves(grads), sums["nll"]

    everywhere = PartitionSpec()
    divided = jax.shard_map(
        partial(compute, ManualDivision(2)), mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False
    )
    (ours, loss), (expected, expected_loss) = (jax.jit(fn)(model, batch) for fn in (divided, partial(compute, WHOLE)))
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    for a, b in zip(ours, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * max(1.0, np.abs(b).max()))
    windows = jax.tree.map(lambda a: a[None], batch)
    measure = partial(evaluate, dtype=jnp.float32, objective=default_objective(config.task))
    parts = jax.shard_map(
        lambda model, windows: measure(model, windows, division=ManualDivision(2)),
        mesh=mesh, in_specs=(everywhere, PartitionSpec(None, DATA)), out_specs=everywhere, check_vma=False,
    )  # fmt: skip
    divided_sums, sums = jax.jit(parts)(model, windows), jax.jit(measure)(model, windows)
    for name, values in sums.items():
        np.testing.assert_allclose(divided_sums[name], values, rtol=1e-5, atol=1e-6)


# --- what is refused -------------------------------------------------------------------------------------------------

CAUSAL = {"kind": "attention", "num_heads": 2}
REFUSED = {
    "microbatches": ({"kind": "pairs", "train": {"accumulate": 2}}, ("train", "accumulate")),
    "a single pair": ({"kind": "pairs", "train": {"batch_size": 1}}, ("train", "batch_size")),
    "first": ({"mixer": CAUSAL, "pooling": "first"}, ("model", "layers", 0, "mixer")),
    "first of a pair": ({"kind": "pairs", "mixer": CAUSAL, "pooling": "first"}, ("model", "layers", 0, "mixer")),
    "curvature": ({"pooling": "mean", "train": {"optimizer": "sophia"}}, ("train", "optimizer")),
    "objective": ({"train": {"objective": "causal-lm"}, "kind": "regression"}, ("train", "objective")),
    "other task": ({"train": {"objective": "contrastive"}}, ("train", "objective")),
    "metric": ({"train": {"eval_metrics": {"rank": "recall_at_1"}}}, ("train", "eval_metrics", "rank")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_do_not_fit_the_task_are_refused(case):
    fields, path = REFUSED[case]
    with pytest.raises(UserError) as caught:
        configured(**fields).check()
    assert caught.value.path == path
    assert caught.value.remedy


@pytest.mark.parametrize("kind", KINDS)
def test_attention_may_be_causal_or_not(kind):
    for mixer in (CAUSAL, FULL):
        configured(kind, mixer=mixer).check()
    if kind != "token-classification":
        configured(kind, pooling="first").check()
