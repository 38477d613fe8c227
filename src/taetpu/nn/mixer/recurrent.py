"""Recurrent networks as mixers: LSTM and GRU, baselines that read one token after another."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from taetpu.core.config import Size
from taetpu.core.keys import Key, named
from taetpu.core.registry import register
from taetpu.core.sites import site
from taetpu.nn.common import Context, Dims, project
from taetpu.nn.mixer.common import Stream, read_state, write_state
from taetpu.nn.mixer_base import MixerConfig
from taetpu.nn.position.base import PositionConfig

State = tuple[Float[Array, "batch hidden"], ...]


class RecurrentConfig(MixerConfig):
    """Base of recurrent networks with a state of `hidden` numbers."""

    hidden: Size | None = None
    """Size of the state; `none`: dim."""
    gates: ClassVar[int]

    def init(self, dims: Dims, position: PositionConfig, *, key: Key) -> "Recurrent":
        """Build the module at the given sizes."""
        hidden = self.hidden or dims.dim
        return Recurrent(
            wi=dims.weight(named(key, "wi"), dims.dim, self.gates * hidden),
            wh=dims.weight(named(key, "wh"), hidden, self.gates * hidden),
            bi=jnp.zeros(self.gates * hidden),
            bh=jnp.zeros(self.gates * hidden),
            wo=dims.weight(named(key, "wo"), hidden, dims.dim, role="out"),
            kind=self.kind,
        )


@register("mixer", "lstm")
class LSTMConfig(RecurrentConfig):
    """c <- f c + i tanh(u) and h <- o tanh(c), with gates i, f, o = sigmoid(x W_i + h W_h + b). Hochreiter 1997.

    i, f, u and o have their own columns of the weights, in this order. Positions that act in attention do not act here.

    Source: Hochreiter and Schmidhuber 1997, "Long Short-Term Memory".
    Reference: torch.nn.LSTM.
    """

    gates = 4


@register("mixer", "gru")
class GRUConfig(RecurrentConfig):
    """h <- (1 - z) n + z h with n = tanh(x W + b + r (h V + c)) and gates r, z. Cho et al. 2014.

    As in torch, the reset gate r acts on h V + c, not on h. Positions that act in attention do not act here.

    Source: Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder", arXiv 1406.1078.
    Reference: torch.nn.GRU.
    """

    gates = 3


def _lstm(inputs: Any, hidden: Any, state: State) -> State:
    i, f, u, o = jnp.split(inputs + hidden, 4, -1)
    cell = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(u)
    return jax.nn.sigmoid(o) * jnp.tanh(cell), cell


def _gru(inputs: Any, hidden: Any, state: State) -> State:
    (ri, zi, ni), (rh, zh, nh) = jnp.split(inputs, 3, -1), jnp.split(hidden, 3, -1)
    new = jnp.tanh(ni + jax.nn.sigmoid(ri + rh) * nh)
    keep = jax.nn.sigmoid(zi + zh)
    return ((1 - keep) * new + keep * state[0],)


CELLS = {"lstm": (_lstm, 2), "gru": (_gru, 1)}
"""The cell of each kind, with its number of state vectors. The first one is the output."""


class Recurrent(eqx.Module):
    """A recurrent network and a projection of its output; see `LSTMConfig` and `GRUConfig`."""

    wi: Float[Array, "dim gates"]
    wh: Float[Array, "hidden gates"]
    bi: Float[Array, " gates"]
    bh: Float[Array, " gates"]
    wo: Float[Array, "hidden dim"]
    kind: str = eqx.field(static=True)

    def __call__(self, x: Stream, ctx: Context) -> Stream:
        """Return the outputs of all tokens, computed in float32, projected to the stream."""
        (cell, number), hidden, batch = CELLS[self.kind], self.wh.shape[0], len(x)
        inputs = (project(x, self.wi, out=jnp.float32) + self.bi).transpose(1, 0, 2)  # of all tokens at once
        same = jnp.ones(x.shape[:2], bool) if ctx.segments is None else (
            jnp.diff(ctx.segments, axis=1, prepend=ctx.segments[:, :1]) == 0)  # fmt: skip
        real = jnp.ones(x.shape[:2], bool) if ctx.real is None else ctx.real

        def step(state: State, now: tuple[Array, Array, Array]) -> tuple[State, Array]:
            inputs, same, real = now
            state = tuple(jnp.where(same[:, None], part, 0.0) for part in state)
            new = cell(inputs, state[0] @ self.wh + self.bh, state)
            new = tuple(jnp.where(real[:, None], updated, part) for updated, part in zip(new, state, strict=True))
            return new, new[0]

        state = tuple(read_state(ctx, f"state{i}", (batch, hidden)) for i in range(number))
        state, outputs = jax.lax.scan(step, state, (inputs, same.T, real.T))
        for i, part in enumerate(state):
            write_state(ctx, f"state{i}", part)
        return project(site("mixer.state", outputs.transpose(1, 0, 2).astype(x.dtype)), self.wo)

    def cache_shapes(self, length: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the state of a sequence."""
        return {f"state{i}": (self.wh.shape[0],) for i in range(CELLS[self.kind][1])}
