"""Beam search: the most likely continuations that a search of limited width finds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from taetpu.core.errors import UserError
from taetpu.lens.inputs import check_length
from taetpu.lens.opened import OpenedModel
from taetpu.nn.cache import empty_cache, extend
from taetpu.nn.lm import LM


@dataclass(frozen=True)
class Beam:
    """A continuation that beam search found.

    Attributes:
        tokens: The token numbers after the prompt, without the end token.
        text: The text of the tokens; None if the model has no tokenizer.
        score: The sum of the tokens' log-probabilities, that of the end token included.
    """

    tokens: Int[np.ndarray, " length"]
    text: str | None
    score: float


def beam_search(
    opened: OpenedModel, prompt: Any, *, beams: int = 4, max_tokens: int = 50, end: int | None = None,
    length_power: float = 0.0,
) -> list[Beam]:  # fmt: skip
    """Return the continuations of a prompt that beam search keeps, the best first.

    In each step, every kept sequence is extended by every token, and the `beams` extensions with the largest sums of
    log-probabilities are kept. Graves 2012; Sutskever et al. 2014.

    Args:
        opened: The model. Every mixer must offer a cache.
        prompt: A text or token numbers.
        beams: The number of sequences to keep.
        max_tokens: The number of tokens to generate.
        end: A token that ends a sequence; by default, those that end the texts of an imported model
            (`OpenedModel.end_tokens`).
        length_power: Scores are divided by the number of tokens to this power for the final order (Wu et al. 2016).

    Raises:
        UserError: if a number is below 1, a mixer offers no cache, or the prompt is empty or too long.
    """
    for name, value in (("beams", beams), ("max_tokens", max_tokens)):
        if value < 1:
            raise UserError(
                f"{name} is {value}, expected at least 1", path=(name,), remedy=f"Use {name} of at least 1."
            )
    batch = opened.encode([prompt] if isinstance(prompt, str) else [np.asarray(prompt)])
    length = batch.ids.shape[1] + max_tokens
    check_length(opened.config, opened.seq_len, int(batch.lengths.max()) + max_tokens)
    ends = opened.end_tokens if end is None else (end,)
    key = ("beams", beams, max_tokens, ends, length)
    search = opened.program(key, lambda: jax.jit(_search(beams, max_tokens, ends, length)))
    tokens, scores = (np.asarray(found) for found in search(opened.unrolled, batch.ids, batch.padding))
    found = [
        _beam(opened, batch.of(0), row, float(score), ends)
        for row, score in zip(tokens, scores, strict=True)
        if score > -np.inf
    ]
    return sorted(found, key=lambda beam: -beam.score / max(1, len(beam.tokens)) ** length_power)


def _beam(opened: OpenedModel, prompt: np.ndarray, tokens: np.ndarray, score: float, ends: tuple[int, ...]) -> Beam:
    if (ended := np.flatnonzero(np.isin(tokens, ends))).size:
        tokens = tokens[: ended[0]]
    return Beam(tokens, None if opened.tokenizer is None else opened.decode_after(prompt, tokens), score)


def _search(beams: int, max_tokens: int, ends: tuple[int, ...], length: int) -> Callable[..., Any]:
    """Return the function `(model, ids, padding) -> (tokens of each beam, scores)`."""

    def best(
        scores: Float[Array, " beam"], logits: Float[Array, "beam vocab"], ended: Any
    ) -> tuple[Array, Array, Array]:
        """Return the scores of the best extensions, the sequences that they extend, and their tokens."""
        logs = jax.nn.log_softmax(logits.astype(jnp.float32), -1)
        if ends:  # an ended sequence is extended by one end token only, at no cost
            only_end = jnp.where(jnp.arange(logs.shape[-1]) == ends[0], 0.0, -jnp.inf)
            logs = jnp.where(ended[:, None], only_end, logs)
        totals = (scores[:, None] + logs).reshape(-1)
        top, index = jax.lax.top_k(totals, beams)
        return top, index // logs.shape[-1], index % logs.shape[-1]

    def ends_text(token: Int[Array, " beam"]) -> Any:
        return jnp.isin(token, jnp.array(ends, jnp.int32))

    def search(model: LM, ids: Array, padding: Array) -> tuple[Array, Array]:
        logits, cache = extend(model, ids, empty_cache(model, 1, length), padding=padding, last=True)
        cache = cache.choose(jnp.zeros(beams, jnp.int32))
        scores = jnp.where(jnp.arange(beams) == 0, 0.0, -jnp.inf)  # all beams are equal before the first token
        first = jnp.broadcast_to(logits[:, -1], (beams, logits.shape[-1]))
        scores, _, token = best(scores, first, jnp.zeros(beams, bool))
        found = jnp.zeros((beams, max_tokens), jnp.int32).at[:, 0].set(token)

        def step(carry: tuple[Any, ...], number: Array) -> tuple[tuple[Any, ...], None]:
            cache, scores, found, ended = carry
            logits, cache = extend(model, found[:, number - 1][:, None], cache)
            scores, source, token = best(scores, logits[:, -1], ended)
            found = found[source].at[:, number].set(token)
            return (cache.choose(source), scores, found, ended[source] | ends_text(token)), None

        ended = ends_text(token)
        (_, scores, found, _), _ = jax.lax.scan(step, (cache, scores, found, ended), jnp.arange(1, max_tokens))
        return found, scores

    return search
