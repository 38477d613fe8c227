"""Losses of targets under an opened model, for texts and for evaluation sets."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from taetpu.core.errors import UserError, suggest
from taetpu.data.base import Batch, Split
from taetpu.lens.activations import BATCH_TOKENS, in_batches
from taetpu.lens.inputs import pad_left
from taetpu.lens.opened import OpenedModel
from taetpu.nn.lm import LM
from taetpu.optim.loss import chunked_losses
from taetpu.optim.objectives import compute_objective, default_objective

CHUNK_LOGITS = 2**24
"""Number of logits in memory while losses are computed."""

TokenLosses = tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]
"""The loss of each target in nats, and whether it is the most likely token: 1 / n if n tokens are equally likely."""


def target_losses(
    opened: OpenedModel,
    ids: Int[np.ndarray, "batch seq"],
    targets: Int[np.ndarray, "batch seq"],
    padding: Bool[np.ndarray, "batch seq"] | None = None,
) -> TokenLosses:
    """Return the loss of the target of each position, and whether it is the most likely token."""

    def losses(model: LM, ids: Array, padding: Any, targets: Array) -> tuple[Array, Array]:
        x = model.final(ids, padding=padding)
        sums = chunked_losses(model.decode, x, targets, jnp.ones(targets.shape), _chunk(opened))
        return sums["nll"], sums["correct"]

    outputs = opened.program("target-losses", lambda: losses)(opened.model, ids, padding, targets)
    return np.asarray(outputs[0]), np.asarray(outputs[1])


def _chunk(opened: OpenedModel) -> int:
    """Return the number of tokens whose logits are in memory at once."""
    return max(16, CHUNK_LOGITS // opened.interface.output_size)


def sequence_losses(opened: OpenedModel, rows: list[np.ndarray]) -> list[TokenLosses]:
    """Return the loss of each token but the first of each sequence, and whether it is the most likely one.

    Raises:
        UserError: if the model does not predict tokens.
    """
    opened.check_language_model()
    results: list[TokenLosses] = [(np.zeros(0), np.zeros(0))] * len(rows)
    inputs, targets = [row[:-1] for row in rows], [row[1:] for row in rows]
    for numbers, filled, batch in in_batches(inputs):
        losses, correct = target_losses(opened, batch.ids, pad_left([targets[i] for i in filled]).ids, batch.padding)
        for place, i in enumerate(numbers):
            results[i] = batch.strip(place, losses[place]), batch.strip(place, correct[place])
    return results


def find_split(opened: OpenedModel, name: str) -> Split:
    """Return an evaluation set of a run.

    Raises:
        UserError: if the model is not that of a run, or its task has no such evaluation set.
    """
    split = opened.data.evaluation(name) if name in opened.run_config.task.evaluation_sets else None
    if split is None:
        sets = opened.run_config.task.evaluation_sets
        known = [known_name for known_name in sets if opened.data.evaluation(known_name) is not None]
        raise UserError(f"the task has no evaluation set {name!r}", path=("split",), remedy=suggest(name, known))
    return split


def split_losses(opened: OpenedModel, split: Split) -> Iterator[tuple[slice, TokenLosses]]:
    """Yield the rows of each batch of an evaluation set, and the losses and correct predictions of all positions.

    The losses are those of the task's objective. With real targets, no prediction is correct.

    Raises:
        UserError: if the loss of a sequence depends on the other sequences of a batch.
    """
    objective = default_objective(opened.run_config.task)
    if objective.reads_batch:
        problem = f"losses of task {opened.run_config.task.kind!r} compare the sequences of a batch"
        raise UserError(problem, remedy="Read them from the result of the run.")

    def losses(model: LM, batch: Batch) -> tuple[Array, Array]:
        whole = batch._replace(weights=jnp.ones(batch.weights.shape))
        _, values = compute_objective(objective, replace(model, loss_chunk=_chunk(opened)), whole)
        return values["nll"], values.get("correct", jnp.zeros(batch.weights.shape))

    size = max(1, min(len(split.tokens), BATCH_TOKENS // split.tokens.shape[1]))
    for start in range(0, len(split.tokens), size):
        rows = slice(start, min(start + size, len(split.tokens)))
        short = size - (rows.stop - rows.start)  # the last batch is filled, so that all batches share a program
        batch = jax.tree.map(lambda a, r=rows, n=short: np.pad(a[r], ((0, n), *[(0, 0)] * (a.ndim - 1))), split.batch)
        outputs = opened.program("split-losses", lambda: losses)(opened.model, batch)
        yield rows, (np.asarray(outputs[0])[: size - short], np.asarray(outputs[1])[: size - short])
