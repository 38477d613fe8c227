"""Beam search: the most likely continuations that a search of limited width finds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from taetpu.core.errors import UserError
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
    opened: OpenedModel, prompt: Any, *, beams: int = 4, max_tokens: int = 50, end: int | Sequence[int] | None = None,
    length_power: float = 0.0,
) -> list[Beam]:  # fmt: skip
    """Return the continuations of a prompt that beam search keeps, the best first.

    In each step, every kept sequence is extended by every token. Of the `beams` extensions with the largest sums of
    log-probabilities, those that end are finished, and the `beams` best extensions that do not end are kept. The
    `beams` finished sequences with the largest scores are returned. Graves 2012; Sutskever et al. 2014.

    Reference: transformers' `generate` with `early_stopping="never"`.

    Args:
        opened: The model. Every mixer must offer a cache.
        prompt: A text or token numbers.
        beams: The number of sequences to keep.
        max_tokens: The maximum number of tokens to generate.
        end: The tokens that end a sequence; by default, those that end the texts of an imported model
            (`OpenedModel.end_tokens`).
        length_power: Sequences are compared by their scores, divided by the number of their tokens (the end token
            included) to this power (Wu et al. 2016).

    Raises:
        NotFinite: if a logit is not finite.
        UserError: if a number is below 1, a mixer offers no cache, or the prompt is empty or too long.
    """
    for name, value in (("beams", beams), ("max_tokens", max_tokens)):
        if value < 1:
            raise UserError(
                f"{name} is {value}, expected at least 1", path=(name,), remedy=f"Use {name} of at least 1."
            )
    opened.check_predicts_next(generates=True)
    batch = opened.encode([prompt] if isinstance(prompt, str) else [np.asarray(prompt)])
    length = batch.ids.shape[1] + max_tokens
    opened.check_length(int(batch.lengths.max()) + max_tokens - 1)  # the last token is not read
    ends = opened.end_tokens if end is None else (end,) if isinstance(end, int) else tuple(end)
    key = ("beams", beams, max_tokens, ends, length_power)
    search = opened.program((*key, length), lambda: _search(beams, max_tokens, ends, length, length_power))
    finished, _ = jax.tree.map(np.asarray, search(opened.unrolled, batch.ids, batch.padding))
    rows = zip(finished.tokens, finished.lengths, finished.scores, finished.exists, strict=True)
    return [
        _beam(opened, batch.of(0), tokens[:size], float(score), ends) for tokens, size, score, exists in rows if exists
    ]


def _beam(opened: OpenedModel, prompt: np.ndarray, tokens: np.ndarray, score: float, ends: tuple[int, ...]) -> Beam:
    tokens = tokens[:-1] if tokens[-1] in ends else tokens
    return Beam(tokens, None if opened.tokenizer is None else opened.decode_after(prompt, tokens), score)


class Finished(NamedTuple):
    """The finished sequences with the best rates, the best first.

    Attributes:
        tokens: Their tokens, with the end token; 0 after it.
        lengths: Their numbers of tokens.
        scores: Their sums of log-probabilities.
        rates: The scores, divided by a power of the lengths.
        exists: Whether there is a sequence.
    """

    tokens: Int[Array, "beam length"]
    lengths: Int[Array, " beam"]
    scores: Float[Array, " beam"]
    rates: Float[Array, " beam"]
    exists: Bool[Array, " beam"]


def _search(
    beams: int, max_tokens: int, ends: tuple[int, ...], length: int, power: float
) -> Callable[[LM, Array, Array], tuple[Finished, Array]]:
    """Return the function `(model, ids, padding) -> (finished, largest)`.

    `largest` is the largest absolute logit of each step. It is not finite if any logit is not: the order of sequences
    with such scores would be arbitrary.
    """

    def advance(
        scores: Float[Array, " beam"],
        tokens: Int[Array, "beam length"],
        finished: Finished,
        logits: Float[Array, "beam vocab"],
        number: Any,
    ) -> tuple[Array, Array, Array, Finished]:
        """Return the scores and tokens of the sequences with one more token, their sources, and what is finished."""
        totals = (scores[:, None] + jax.nn.log_softmax(logits.astype(jnp.float32), -1)).reshape(-1)
        # If all extensions by end tokens are better than the others, `beams` sequences remain.
        total, index = jax.lax.top_k(totals, min(beams * (1 + len(ends)), len(totals)))
        source, token = index // logits.shape[-1], index % logits.shape[-1]
        extended = tokens[source].at[:, number].set(token)
        ended = jnp.isin(token, jnp.array(ends, jnp.int32))
        kept = jax.lax.top_k(jnp.where(ended, -jnp.inf, total), min(beams, len(total)))[1]
        exists = (ended | (number == max_tokens - 1)) & (jnp.arange(len(total)) < beams) & (total != -jnp.inf)
        lengths = jnp.full(total.shape, number + 1)
        new = Finished(extended, lengths, total, total / lengths**power, exists)
        every = jax.tree.map(lambda old, new: jnp.concatenate([old, new]), finished, new)
        best = jax.lax.top_k(jnp.where(every.exists, every.rates, -jnp.inf), beams)[1]
        finished = jax.tree.map(lambda array: array[best], every)
        # The vocabulary may have fewer tokens than there are beams.
        kept = jnp.pad(kept, (0, beams - len(kept)))
        going = jnp.where(ended, -jnp.inf, total)[kept]
        going = jnp.where(jnp.arange(beams) < len(total), going, -jnp.inf)
        return going, extended[kept], source[kept], finished

    def search(model: LM, ids: Array, padding: Array) -> tuple[Finished, Array]:
        logits, cache = extend(model, ids, empty_cache(model, 1, length), padding=padding, last=True)
        cache = cache.choose(jnp.zeros(beams, jnp.int32))
        scores = jnp.where(jnp.arange(beams) == 0, 0.0, -jnp.inf)  # all beams are equal before the first token
        first = jnp.broadcast_to(logits[:, -1], (beams, logits.shape[-1]))
        tokens, zeros = jnp.zeros((beams, max_tokens), jnp.int32), jnp.zeros(beams)
        nothing = Finished(tokens, jnp.zeros(beams, jnp.int32), zeros, zeros, jnp.zeros(beams, bool))
        largest = jnp.abs(first).max()
        scores, tokens, _, finished = advance(scores, tokens, nothing, first, 0)

        def step(carry: tuple[Any, ...], number: Array) -> tuple[tuple[Any, ...], Array]:
            cache, scores, tokens, finished = carry
            logits, cache = extend(model, tokens[:, number - 1][:, None], cache)
            scores, tokens, source, finished = advance(scores, tokens, finished, logits[:, -1], number)
            return (cache.choose(source), scores, tokens, finished), jnp.abs(logits).max()

        carry = (cache, scores, tokens, finished)
        (_, _, _, finished), others = jax.lax.scan(step, carry, jnp.arange(1, max_tokens))
        absent = jax.tree.map(lambda values: jnp.where(finished.exists, values, 0), (finished.scores, finished.rates))
        finished = finished._replace(scores=absent[0], rates=absent[1])
        return finished, jnp.append(others, largest)

    return search
