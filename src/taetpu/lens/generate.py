"""Generation of text: sampling, with a cache of earlier tokens where every mixer offers one.

A prompt is read in one pass. Then `CHUNK` tokens are drawn in each call of one compiled program, between which texts
are printed and stop strings are found.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from taetpu.core.errors import UserError
from taetpu.core.keys import Key, named, root_key
from taetpu.core.short_repr import short_repr
from taetpu.lens.inputs import Tokens
from taetpu.lens.opened import OpenedModel
from taetpu.nn.cache import Cache, empty_cache, extend
from taetpu.nn.lm import LM
from taetpu.train.sample import draw

CHUNK = 16
"""Number of tokens drawn in one call of the compiled program."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; see `train.sample.draw`.

    Attributes:
        temperature: The divisor of the logits; 0 selects the most likely token.
        top_k: The number of most likely tokens to draw from.
        top_p: The minimum total probability of the tokens to draw from.
        min_p: The minimum probability of the tokens to draw from, as a share of the largest.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        limits = (
            ("temperature", self.temperature, 0, np.inf, "at least 0"),
            ("top_k", self.top_k, 1, np.inf, "at least 1"),
            ("top_p", self.top_p, 1e-12, 1, "above 0 and at most 1"),
            ("min_p", self.min_p, 0, 1, "from 0 to 1"),
        )
        for name, value, low, high, text in limits:
            if value is not None and not low <= value <= high:
                problem = f"{name} is {value}, expected {text}"
                raise UserError(problem, path=(name,), remedy=f"Use a {name} {text}.")

    def draw(self, logits: Float[Array, "batch vocab"], key: Key) -> Int[Array, " batch"]:
        """Return a token for each row of logits. Rows have independent random numbers."""
        draw_row = partial(draw, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p)
        keys = jax.vmap(partial(named, key))(jnp.arange(len(logits)))
        return jax.vmap(draw_row)(logits, keys)


@dataclass
class Generated:
    """The tokens that were generated after one prompt.

    Attributes:
        prompt: The token numbers of the prompt.
        tokens: The token numbers after the prompt, up to the token in which a stop string begins.
        text: The text after the prompt, up to a stop string; None if the model has no tokenizer.
        stopped: The stop string or token that ended the text; None if the text has the full length.
    """

    __repr__ = short_repr

    prompt: np.ndarray
    tokens: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    text: str | None = None
    stopped: str | int | None = None


def generate(
    opened: OpenedModel,
    prompts: Any,
    *,
    max_tokens: int = 100,
    sampling: Sampling | None = None,
    stop: Sequence[str | int] = (),
    seed: int = 0,
    cache: bool | None = None,
    on_text: Callable[[int, str], None] | None = None,
) -> list[Generated]:
    """Return tokens generated after each prompt.

    Args:
        opened: The model.
        prompts: Texts or token numbers; see `OpenedModel.encode`.
        max_tokens: The number of tokens to generate.
        sampling: How tokens are drawn.
        stop: Texts or token numbers that end a text, besides the end tokens of an imported model
            (`OpenedModel.end_tokens`).
        seed: The seed of the random numbers. The tokens of a prompt depend on its number in the batch.
        cache: Whether earlier tokens are cached; by default, if every mixer offers a cache.
        on_text: A function that receives the number of a prompt and the next part of its text.

    Raises:
        UserError: if the model does not predict tokens, a prompt is empty or too long, or a mixer offers no cache and
            `cache` is set.
    """
    if max_tokens < 1:
        raise UserError(f"{max_tokens} tokens were requested", remedy="Request at least 1 token.")
    opened.check_predicts_next(generates=True)
    batch = opened.encode(prompts)
    opened.check_length(int(batch.lengths.max()) + max_tokens - 1, len(batch))  # the last token is not read
    streams = [_Stream(opened, batch.of(i), stop, on_text and partial(on_text, i)) for i in range(len(batch))]
    steps = token_chunks(opened, batch, max_tokens, sampling or Sampling(), seed, use_cache(opened, batch, cache))
    for chunk in steps:
        for stream, tokens in zip(streams, chunk, strict=True):
            stream.add(tokens)
        if all(stream.ended for stream in streams):
            break
    return [stream.finish() for stream in streams]


def use_cache(opened: OpenedModel, batch: Tokens, asked: bool | None) -> bool:
    """Return whether earlier tokens are cached: as asked, or by default if every mixer offers a cache.

    Raises:
        UserError: if a cache is asked for and a mixer offers none.
    """
    if asked is False:
        return False
    try:
        jax.eval_shape(lambda model: empty_cache(model, len(batch), 8), opened.model)
    except UserError:
        if asked:
            raise
        return False
    return True


def token_chunks(
    opened: OpenedModel, batch: Tokens, max_tokens: int, sampling: Sampling, seed: int, cached: bool
) -> Iterator[Int[np.ndarray, "batch chunk"]]:
    """Yield the generated tokens of all sequences, up to `CHUNK` at a time."""
    key = root_key(seed)
    start = batch.ids.shape[1]
    length = start + -(-max_tokens // CHUNK) * CHUNK
    first, following = (_cached_programs if cached else _whole_programs)(opened, sampling, length)
    model = opened.unrolled if cached else opened.model
    state, token, largest = first(model, batch.ids, batch.padding, key)
    opened.check_finite(largest)
    yield np.asarray(token)[:, None]
    done = 1
    while done < max_tokens:
        state, tokens, largest = following(model, state, token, key, done)
        wanted = max_tokens - done  # the model may have no positions for the rest of the last chunk
        opened.check_finite(largest[:, :wanted])
        token = tokens[:, -1]
        done += CHUNK
        yield np.asarray(tokens)[:, :wanted]


def _cached_programs(opened: OpenedModel, sampling: Sampling, length: int) -> tuple[Callable[..., Any], ...]:
    """Return the compiled functions that read the prompt, and that draw a chunk of tokens, with a cache.

    Both return the cache, the tokens, and the largest logit of each.
    """

    def first(model: LM, ids: Array, padding: Array, key: Key) -> tuple[Cache, Array, Array]:
        cache = empty_cache(model, len(ids), length)
        logits, cache = extend(model, ids, cache, padding=padding, last=True)
        return cache, sampling.draw(logits[:, 0], named(key, 0)), logits[:, 0].max(-1)

    def following(model: LM, cache: Cache, token: Array, key: Key, done: Array) -> tuple[Cache, Array, Array]:
        def step(carry: tuple[Cache, Array], number: Array) -> tuple[tuple[Cache, Array], tuple[Array, Array]]:
            cache, token = carry
            logits, cache = extend(model, token[:, None], cache)
            token = sampling.draw(logits[:, 0], named(key, number))
            return (cache, token), (token, logits[:, 0].max(-1))

        (cache, _), (tokens, largest) = jax.lax.scan(step, (cache, token), done + jnp.arange(CHUNK))
        return cache, tokens.T, largest.T

    return (
        opened.program(("first", sampling, length), lambda: first, finite=False),
        opened.program(("following", sampling), lambda: following, donate=(1,), finite=False),
    )


def _whole_programs(opened: OpenedModel, sampling: Sampling, length: int) -> tuple[Callable[..., Any], ...]:
    """Return the compiled functions that read the prompt, and that draw a chunk of tokens, from whole sequences.

    Both return the sequences so far, the tokens, and the largest logit of each. Places after the last token are
    padding, so that a model needs no positions for them.
    """

    def next_token(model: LM, ids: Array, padding: Array, at: Array, key: Key, number: Any) -> tuple[Array, Array]:
        logits = jax.lax.dynamic_index_in_dim(model(ids, padding=padding), at - 1, 1, keepdims=False)
        return sampling.draw(logits, named(key, number)), logits.max(-1)

    def first(model: LM, ids: Array, padding: Array, key: Key) -> tuple[Any, Array, Array]:
        at = ids.shape[1]
        room = ((0, 0), (0, length - at))
        ids, padding = jnp.pad(ids, room), jnp.pad(padding, room, constant_values=True)
        return (ids, padding, jnp.int32(at)), *next_token(model, ids, padding, jnp.int32(at), key, 0)

    def following(model: LM, state: Any, token: Array, key: Key, done: Array) -> tuple[Any, Array, Array]:
        def step(carry: tuple[Any, Array], number: Array) -> tuple[tuple[Any, Array], tuple[Array, Array]]:
            (ids, padding, at), token = carry
            ids, padding = (
                jax.lax.dynamic_update_slice_in_dim(array, new[:, None], at, 1)
                for array, new in ((ids, token), (padding, jnp.zeros(token.shape, bool)))
            )
            token, largest = next_token(model, ids, padding, at + 1, key, number)
            return ((ids, padding, at + 1), token), (token, largest)

        (state, _), (tokens, largest) = jax.lax.scan(step, (state, token), done + jnp.arange(CHUNK))
        return state, tokens.T, largest.T

    return (
        opened.program(("first-whole", sampling, length), lambda: first, finite=False),
        opened.program(("following-whole", sampling), lambda: following, finite=False),
    )


class _Stream:
    """The tokens of one prompt: finds stop strings, and hands on the text as far as no stop string can begin in it."""

    def __init__(
        self, opened: OpenedModel, prompt: np.ndarray, stop: Sequence[str | int], on_text: Callable[[str], None] | None
    ):
        self.opened, self.prompt, self.on_text = opened, prompt, on_text
        self.strings = [item for item in stop if isinstance(item, str)]
        self.numbers = [*(item for item in stop if not isinstance(item, str)), *opened.end_tokens]
        if self.strings and opened.tokenizer is None:
            raise UserError("this model has no tokenizer, so it cannot stop at a text", remedy="Use token numbers.")
        if "" in self.strings:
            raise UserError("a stop string is empty", remedy="Use stop strings with at least one character.")
        self.tokens: list[int] = []
        self.stopped: str | int | None = None
        self.printed = 0

    @property
    def ended(self) -> bool:
        """Whether a stop string or token was found."""
        return self.stopped is not None

    def text(self) -> str:
        """Return the text so far, up to the stop string."""
        text = self.opened.decode_after(self.prompt, self.tokens)
        return text[: text.index(self.stopped)] if isinstance(self.stopped, str) else text

    def add(self, tokens: Sequence[int] | np.ndarray) -> None:
        """Add generated tokens, up to a stop string or token."""
        for token in map(int, tokens):
            if self.ended:
                return
            if token in self.numbers:
                self.stopped = token
                break
            self.tokens.append(token)
            if self.strings:
                text = self.opened.decode_after(self.prompt, self.tokens)
                self.stopped = min((s for s in self.strings if s in text), key=text.index, default=None)
        self._print(final=False)

    def _print(self, *, final: bool) -> None:
        if self.on_text is None:
            return
        text = self.text()
        if not (final or self.ended):  # a stop string or a character may be incomplete
            held = max((len(s) - 1 for s in self.strings), default=0)
            text = text[: max(0, len(text) - held)].rstrip("\ufffd")
        if len(text) > self.printed:
            self.on_text(text[self.printed :])
            self.printed = len(text)

    def finish(self) -> Generated:
        """Return what was generated."""
        self._print(final=True)
        text = None if self.opened.tokenizer is None else self.text()
        tokens = self.tokens
        while isinstance(self.stopped, str) and len(self.opened.decode_after(self.prompt, tokens)) > len(text or ""):
            tokens = tokens[:-1]
        return Generated(self.prompt, np.array(tokens, np.int32), text, self.stopped)
