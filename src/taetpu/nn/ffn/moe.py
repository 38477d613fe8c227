"""Mixtures of experts: each token is computed by the experts that a router chooses for it.

Every expert is computed for every token, and the outputs of experts that are not chosen are multiplied by zero. This is
exact and fast for few small experts. The FLOPs of the chosen experts are counted as active (`nn.matmul.active_share`).
"""

from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from taetpu.core.batch_statistics import auxiliary_loss, record_mean
from taetpu.core.config import Component, Size, Traced
from taetpu.core.errors import UserError
from taetpu.core.keys import Key, named
from taetpu.core.registry import register
from taetpu.core.sites import rename_sites, site
from taetpu.nn.common import Context, Dims, Fixed, project
from taetpu.nn.ffn.dense import GLU, Ratio, Stream, clamped_glu, inner_size
from taetpu.nn.matmul import active_share
from taetpu.nn.state import State

Scores = Float[Array, "batch seq experts"]
Coefficient = Annotated[NonNegativeFloat, Traced()]


class ExpertsConfig(Component):
    """Fields that all mixtures of experts share."""

    experts: PositiveInt = 8
    """Number of experts from which the router chooses."""
    top: PositiveInt = 2
    """Number of experts that compute a token."""
    mult: Ratio = 8 / 3
    """Inner size of one expert as a multiple of dim, rounded to a multiple of 8."""
    hidden: Size | None = None
    """Inner size of one expert; `none`: mult * dim, rounded."""

    def check(self, dims: Dims) -> None:
        """Raise `UserError` if this component cannot be built at the given sizes."""
        inner_size(self.mult, self.hidden, dims.dim, multiple=8)
        if self.top > self.experts:
            problem = f"`top` must be at most `experts`: {self.top} exceeds {self.experts}"
            raise UserError(problem, path=("top",), remedy=f"Use 1 to {self.experts}.")

    def build_experts(self, dims: Dims, *, key: Key) -> "Experts":
        """Build the experts at the given sizes."""
        hidden = inner_size(self.mult, self.hidden, dims.dim, multiple=8)
        inner, outer = (dims.dim, self.experts, hidden), (self.experts, hidden, dims.dim)
        return Experts(
            gate=dims.weight(named(key, "gate"), *inner, role="gate", in_axes=(0,), batch_axes=(1,)),
            up=dims.weight(named(key, "up"), *inner, role="up", in_axes=(0,), batch_axes=(1,)),
            down=dims.weight(named(key, "down"), *outer, role="down", in_axes=(1,), batch_axes=(0,)),
        )


class Experts(eqx.Module):
    """SwiGLU networks, of which each token uses some. Shazeer 2020."""

    gate: Float[Array, "dim experts hidden"]
    up: Float[Array, "dim experts hidden"]
    down: Float[Array, "experts hidden dim"]

    def __call__(self, x: Stream, share: Scores, top: int) -> Stream:
        """Return the sum of the experts' outputs, weighted by `share`, of which `top` are not zero for each token."""
        dim, experts, hidden = self.gate.shape
        with active_share(top, experts):
            # As rank-2 products over all experts; see `nn.common.project`.
            gate, up = (project(x, w.reshape(dim, -1)) for w in (self.gate, self.up))
            h = site("ffn.hidden", (jax.nn.silu(gate) * up).reshape(*x.shape[:2], experts, hidden))
            weighted = (h * share[..., None].astype(h.dtype)).reshape(*x.shape[:2], -1)
            return project(weighted, self.down.reshape(-1, dim))


def choose(scores: Scores, top: int) -> Scores:
    """Return 1 for each of the `top` experts with the largest scores, and 0 for the others, as `ffn.chosen`."""
    places = jax.lax.top_k(jax.lax.stop_gradient(scores), top)[1]
    return site("ffn.chosen", jax.nn.one_hot(places, scores.shape[-1], dtype=scores.dtype).sum(-2))


def balance(chosen: Float[Array, "*lead experts"], probability: Float[Array, "*lead experts"]) -> Float[Array, "*lead"]:
    """Return E * sum_i f_i P_i from each expert's share f of the choices and its mean probability P.

    The value is 1 if both are uniform. Fedus et al. 2021 (Switch Transformer), eq. 4.
    """
    return chosen.shape[-1] * (chosen * probability).sum(-1)


@register("ffn", "moe")
class MoEConfig(ExpertsConfig):
    """sum_i g_i E_i(x) with g = softmax(x W_router) over the `top` largest of `experts`. Jiang et al. 2024 (Mixtral).

    With `top: 1`, g is the probability of the chosen expert among all experts, which gives the router a gradient
    (Fedus et al. 2021, eq. 2). Each expert E_i is a SwiGLU network. The loss `balance` is E * sum_i f_i P_i for each
    layer, where f_i is the share of the choices that expert i receives, and P_i is its mean probability (Fedus et al.
    2021). Hugging Face computes this loss once for the tokens of all layers together, and does not divide by `top`.

    Source: Jiang et al. 2024, "Mixtral of Experts", arXiv 2401.04088; Fedus et al. 2021, "Switch Transformers: Scaling
    to Trillion Parameter Models with Simple and Efficient Sparsity", arXiv 2101.03961.
    Reference: transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock.
    """

    balance: Coefficient = 0.01
    """Weight of the balance loss of each layer."""

    def init(self, dims: Dims, *, key: Key) -> "MoE":
        """Build the module at the given sizes."""
        router = dims.weight(named(key, "router"), dims.dim, self.experts, role="router")
        return MoE(router, self.build_experts(dims, key=named(key, "experts")), Fixed(self.balance), self.top)


class MoE(eqx.Module):
    """Experts with a softmax router; see `MoEConfig`."""

    router: Float[Array, "dim experts"]
    experts: "Experts | ClampedExperts"
    balance: Fixed
    top: int = eqx.field(static=True)
    router_bias: Float[Array, " experts"] | None = None

    def __call__(self, x: Stream, ctx: Context) -> Stream:
        """Return the weighted sum of the chosen experts' outputs."""
        scores = site("ffn.router", project(x, self.router, self.router_bias, out=jnp.float32))
        chosen, probability = choose(scores, self.top), jax.nn.softmax(scores)
        auxiliary_loss("balance", self.balance.value, chosen / self.top, probability, statistic=balance)
        share = chosen * probability
        if self.top > 1:  # the weight of a single expert would be 1, and the router would have no gradient
            share = share / share.sum(-1, keepdims=True)
        return self.experts(x, share, self.top)


@register("ffn", "clamped-moe")
class ClampedMoEConfig(MoEConfig):
    """`moe` with biases, also of the router, and with `clamped-swiglu` networks as experts. OpenAI 2025 (gpt-oss).

    The experts are E(x) = (g sigmoid(alpha g) * (u + 1)) W_down + b_down with g = min(x W_gate + b_gate, limit) and
    u = clip(x W_up + b_up, -limit, limit). The router's scores are x W_router + b_router.

    Source: OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card", arXiv 2508.10925.
    Reference: transformers.models.gpt_oss.modeling_gpt_oss.GptOssMLP.
    Excludes: a single chosen expert, whose weight is always 1.
    """

    limit: Annotated[PositiveFloat, Traced()] = 7.0
    """Largest value of the gate, and largest absolute value of the other factor."""
    alpha: Annotated[PositiveFloat, Traced()] = 1.702
    """Factor of the gate inside the sigmoid."""

    def check(self, dims: Dims) -> None:
        """Raise `UserError` if this component cannot be built at the given sizes."""
        super().check(dims)
        if self.top == 1 < self.experts:
            problem = "the weights of chosen experts sum to 1, so `top: 1` gives the router no gradient"
            raise UserError(problem, path=("top",), remedy=f"Use 2 to {self.experts}, or the kind moe.")

    def init(self, dims: Dims, *, key: Key) -> "MoE":
        """Build the module at the given sizes."""
        plain = self.build_experts(dims, key=named(key, "experts"))
        hidden = plain.gate.shape[-1]
        experts = ClampedExperts(
            **vars(plain),
            gate_bias=jnp.zeros((self.experts, hidden)),
            up_bias=jnp.zeros((self.experts, hidden)),
            down_bias=jnp.zeros((self.experts, dims.dim)),
            limit=Fixed(self.limit),
            alpha=Fixed(self.alpha),
        )
        router = dims.weight(named(key, "router"), dims.dim, self.experts, role="router")
        return MoE(router, experts, Fixed(self.balance), self.top, jnp.zeros(self.experts))


class ClampedExperts(eqx.Module):
    """Clamped networks with biases, of which each token uses some; see `ClampedMoEConfig`."""

    gate: Float[Array, "dim experts hidden"]
    gate_bias: Float[Array, "experts hidden"]
    up: Float[Array, "dim experts hidden"]
    up_bias: Float[Array, "experts hidden"]
    down: Float[Array, "experts hidden dim"]
    down_bias: Float[Array, "experts dim"]
    limit: Fixed
    alpha: Fixed

    def __call__(self, x: Stream, share: Scores, top: int) -> Stream:
        """Return the sum of the experts' outputs, weighted by `share`, of which `top` are not zero for each token."""
        dim, experts, hidden = self.gate.shape
        with active_share(top, experts):
            gate = project(x, self.gate.reshape(dim, -1), self.gate_bias.ravel())
            up = project(x, self.up.reshape(dim, -1), self.up_bias.ravel())
            h = clamped_glu(gate, up, self.limit, self.alpha)
            h = site("ffn.hidden", h.reshape(*x.shape[:2], experts, hidden))
            share = share.astype(h.dtype)
            weighted = (h * share[..., None]).reshape(*x.shape[:2], -1)
            return project(weighted, self.down.reshape(-1, dim)) + project(share, self.down_bias)


@register("ffn", "deepseek-moe")
class DeepSeekMoEConfig(ExpertsConfig):
    """Sigmoid router with a bias that balances the load, and shared experts. DeepSeek-AI 2024 (DeepSeek-V3).

    s = sigmoid(x W_router). The `top` experts with the largest s + b are chosen, and g_i = scale * s_i / sum of the
    chosen s. After each step, the bias b_i increases by `bias_rate` if expert i received less than the mean load, and
    decreases by the same amount if it received more. The bias has no gradient. With `top: 1`, g is `scale`, so only the
    balance loss trains the router. The loss `balance` is E * sum_i f_i P_i
    within each sequence, with P the mean of s / sum(s). Experts are not grouped (`n_group` is 1). The hidden
    activations of the shared experts are the site `ffn.shared.hidden`.

    Source: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", arXiv 2412.19437.
    Reference: transformers.models.deepseek_v3.modeling_deepseek_v3.DeepseekV3MoE.
    """

    has_state = True

    shared: NonNegativeInt = 1
    """Number of experts that compute every token, as one SwiGLU of `shared` times the inner size."""
    scale: Annotated[PositiveFloat, Traced()] = 2.5
    """Factor of the chosen experts' weights, which sum to this value."""
    bias_rate: Coefficient = 1e-3
    """Change of the router's bias per step."""
    balance: Coefficient = 1e-4
    """Weight of the balance loss of each layer."""

    def init(self, dims: Dims, *, key: Key) -> "DeepSeekMoE":
        """Build the module at the given sizes."""
        router = dims.weight(named(key, "router"), dims.dim, self.experts, role="router")
        return DeepSeekMoE(
            router=router,
            bias=State(jnp.zeros(self.experts)),
            experts=self.build_experts(dims, key=named(key, "experts")),
            shared=self.build_shared(dims, key=named(key, "shared")),
            scale=Fixed(self.scale),
            bias_rate=Fixed(self.bias_rate),
            balance=Fixed(self.balance),
            top=self.top,
        )

    def build_shared(self, dims: Dims, *, key: Key) -> GLU | None:
        """Build the shared experts; None if there are none."""
        if self.shared == 0:
            return None
        hidden = self.shared * inner_size(self.mult, self.hidden, dims.dim, multiple=8)
        up, gate = (dims.weight(named(key, name), dims.dim, hidden, role=name) for name in ("up", "gate"))
        return GLU(gate, None, up, None, dims.weight(named(key, "down"), hidden, dims.dim, role="down"), None, "silu")


class DeepSeekMoE(eqx.Module):
    """Experts with a sigmoid router and a bias that balances the load; see `DeepSeekMoEConfig`."""

    router: Float[Array, "dim experts"]
    bias: State
    experts: Experts
    shared: GLU | None
    scale: Fixed
    bias_rate: Fixed
    balance: Fixed
    top: int = eqx.field(static=True)

    def __call__(self, x: Stream, ctx: Context) -> Stream:
        """Return the weighted sum of the chosen experts' outputs, plus the shared experts' output."""
        scores = jax.nn.sigmoid(site("ffn.router", project(x, self.router, out=jnp.float32)))
        chosen = choose(scores + self.bias.value, self.top)
        record_mean("load", chosen)
        # The loss of a sequence, given to each of its tokens.
        f, p = (a.mean(1) for a in (chosen / self.top, scores / scores.sum(-1, keepdims=True)))
        auxiliary_loss("balance", self.balance.value, jnp.broadcast_to(balance(f, p)[:, None], scores.shape[:2]))
        share = chosen * scores
        routed = self.experts(x, self.scale.value * share / (share.sum(-1, keepdims=True) + 1e-20), self.top)
        if self.shared is None:
            return routed
        with rename_sites("ffn", "ffn.shared"):
            return routed + self.shared(x, ctx)

    def after_step(self, means: dict[str, Array]) -> "DeepSeekMoE":
        """Return the module with the bias after a training step; see `nn.state.Updated`."""
        load = means["load"]
        bias = self.bias.value + self.bias_rate.value * jnp.sign(load.mean(-1, keepdims=True) - load)
        return eqx.tree_at(lambda m: m.bias.value, self, bias)
