"""Losses of targets under an opened model, for texts and for evaluation sets."""

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from taetpu.core.errors import UserError, suggest
from taetpu.data.base import Split
from taetpu.lens.activations import BATCH_TOKENS, in_batches
from taetpu.lens.inputs import pad_left
from taetpu.lens.opened import OpenedModel
from taetpu.nn.lm import LM
from taetpu.optim.loss import chunked_losses

CHUNK_LOGITS = 2**24
"""Number of logits in memory while losses are computed."""

TokenLosses = tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]
"""The loss of each target in nats, and whether it is the most likely token: 1 / n if n tokens are equally likely."""


def target_losses(
    opened: OpenedModel,
    ids: Int[np.ndarray, "batch seq"],
    targets: Int[np.ndarray, "batch seq"],
    padding: Bool[np.ndarray, "batch seq"] | None = None,
    segments: Int[np.ndarray, "batch seq"] | None = None,
) -> TokenLosses:
    """Return the loss of the target of each position, and whether it is the most likely token."""
    chunk = max(16, CHUNK_LOGITS // opened.vocab_size)

    def build() -> Callable[..., Any]:
        def losses(model: LM, ids: Array, padding: Any, targets: Array, segments: Any) -> tuple[Array, Array]:
            x = model.final(ids, padding=padding, segments=segments)
            sums = chunked_losses(model.decode, x, targets, jnp.ones(targets.shape), chunk)
            return sums["nll"], sums["correct"]

        return losses

    outputs = opened.program("target-losses", build)(opened.model, ids, padding, targets, segments)
    return np.asarray(outputs[0]), np.asarray(outputs[1])


def sequence_losses(opened: OpenedModel, rows: list[np.ndarray]) -> list[TokenLosses]:
    """Return the loss of each token but the first of each sequence, and whether it is the most likely one."""
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
    """Yield the rows of each batch of an evaluation set, and the losses and correct predictions of all positions."""
    size = max(1, min(len(split.tokens), BATCH_TOKENS // split.tokens.shape[1]))
    for start in range(0, len(split.tokens), size):
        rows = slice(start, min(start + size, len(split.tokens)))
        short = size - (rows.stop - rows.start)  # the last batch is filled, so that all batches share a program
        tokens, targets, segments = (
            None if array is None else np.pad(array[rows], ((0, short), (0, 0)))
            for array in (split.tokens, split.targets, split.segments)
        )
        assert tokens is not None
        assert targets is not None
        losses, correct = target_losses(opened, tokens, targets, segments=segments)
        yield rows, (losses[: size - short], correct[: size - short])
