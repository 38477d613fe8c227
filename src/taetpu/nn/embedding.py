"""Slot `embedding`: the maps from inputs to vectors and from vectors to outputs, independently at each position.

A token selects a row of a matrix. Real inputs weigh its rows, one for each feature, so that every kind accepts both.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from taetpu.core.config import Component, Size
from taetpu.core.errors import UserError
from taetpu.core.keys import Key, named
from taetpu.core.registry import register
from taetpu.nn.common import Dims, project

Inputs = Int[Array, "batch seq"] | Float[Array, "batch seq features"]


@dataclass(frozen=True)
class LogitForm:
    """How a training step holds logits in memory.

    Attributes:
        dtype: The dtype to which logits are rounded, `float32` or `bfloat16`.
        multiple: The multiple to which the number of columns of their product is padded.
    """

    dtype: str = "float32"
    multiple: int = 1


FLOAT32 = LogitForm()


def unembed(
    x: Float[Array, "batch seq size"],
    w: Float[Array, "size outputs"],
    bias: Float[Array, " outputs"] | None = None,
    form: LogitForm = FLOAT32,
) -> Float[Array, "batch seq outputs"]:
    """Return the logits `x @ w + bias` in float32, or rounded to the dtype of `form`.

    Padding is removed from the result, and its gradient is zero.
    """
    outputs, missing = w.shape[-1], -w.shape[-1] % form.multiple
    if missing:
        w = jnp.pad(w, ((0, 0), (0, missing)))
        bias = None if bias is None else jnp.pad(bias, (0, missing))
    dtype = jnp.dtype(form.dtype)
    # A product in float32 is rounded afterwards: a product cannot be narrower than its factors.
    logits = project(x, w, bias, out=dtype if x.dtype == dtype else jnp.float32).astype(dtype)
    # Without the barrier, XLA could compute only the columns that are read.
    return jax.lax.optimization_barrier(logits)[..., :outputs] if missing else logits


def with_form(embedding: Any, form: LogitForm) -> Any:
    """Return an embedding that decodes in the given form. Kinds without the field `form` stay as they are."""
    return replace(embedding, form=form) if hasattr(embedding, "form") else embedding


def embed(table: Float[Array, "rows dim"], tokens: Inputs) -> Float[Array, "batch seq dim"]:
    """Return the rows of a table for the given tokens, or the product of real inputs with the table.

    Raises:
        UserError: if a token is not in the vocabulary. (JAX indexing would silently return another row.) Tracers are
            not checked.
    """
    if jnp.issubdtype(tokens.dtype, jnp.floating):
        return project(tokens, table)
    if not isinstance(tokens, Tracer):
        check_tokens(np.asarray(tokens), len(table))
    return table[tokens]


def check_tokens(tokens: np.ndarray, vocab_size: int) -> None:
    """Raise `UserError` if a token is not in a vocabulary of this size."""
    beyond = tokens[(tokens < 0) | (tokens >= vocab_size)]
    if beyond.size:
        raise UserError(
            f"token {beyond.flat[0]} is not in the vocabulary of {vocab_size} tokens",
            remedy=f"Use tokens from 0 to {vocab_size - 1}, from the model's own tokenizer.",
        )


def check_tied(component: Component, dims: Dims) -> None:
    """Raise `UserError` if one table cannot serve input and output, because the task's outputs are not its tokens."""
    at = dims.interface
    if at is not None and (at.features or at.output_size != at.vocab_size):
        problem = f"embedding {component.kind!r} has one table for input and output, but the task has {at}"
        raise UserError(problem, remedy="Set model.embedding: untied.")


@register("embedding", "tied")
class TiedConfig(Component):
    """One table for input and output. Press and Wolf 2017.

    Source: Press and Wolf 2017, "Using the Output Embedding to Improve Language Models", arXiv 1608.05859.
    """

    bias: bool = False
    """Whether a bias is added to the logits, as in BERT; `model.bias` does not act here."""

    def check(self, dims: Dims) -> None:
        """Raise `UserError` if inputs and outputs of the task differ."""
        check_tied(self, dims)

    def init(self, dims: Dims, *, key: Key) -> "Tied":
        """Build the module at the given sizes."""
        return Tied(
            weight=dims.weight(named(key, "weight"), dims.vocab_size, dims.dim, role="embedding"),
            bias=jnp.zeros(dims.vocab_size) if self.bias else None,
        )


class Tied(eqx.Module):
    """One table that encodes tokens and decodes the stream."""

    weight: Float[Array, "vocab dim"]
    bias: Float[Array, " vocab"] | None = None
    form: LogitForm = eqx.field(static=True, default=FLOAT32)

    def encode(self, tokens: Inputs) -> Float[Array, "batch seq dim"]:
        """Return the embeddings of tokens or of real inputs."""
        return embed(self.weight, tokens)

    def decode(self, x: Float[Array, "batch seq dim"]) -> Float[Array, "batch seq outputs"]:
        """Return the logits in float32, or in the dtype of `form`."""
        return unembed(x, self.weight.T, self.bias, self.form)


@register("embedding", "untied")
class UntiedConfig(Component):
    """A table for the input and a separate projection for the output.

    Source: Chung et al. 2021, "Rethinking Embedding Coupling in Pre-trained Language Models", arXiv 2010.12821.
    """

    bias: bool = False
    """Whether a bias is added to the logits, as in GPT-J; `model.bias` does not act here."""

    def init(self, dims: Dims, *, key: Key) -> "Untied":
        """Build the module at the given sizes."""
        return Untied(
            weight=dims.weight(named(key, "weight"), dims.input_size, dims.dim, role="embedding"),
            unembed=dims.weight(named(key, "unembed"), dims.dim, dims.output_size, role="unembedding"),
            bias=jnp.zeros(dims.output_size) if self.bias else None,
        )


class Untied(eqx.Module):
    """A table that encodes tokens, and a projection that decodes the stream."""

    weight: Float[Array, "vocab dim"]
    unembed: Float[Array, "dim outputs"]
    bias: Float[Array, " outputs"] | None = None
    form: LogitForm = eqx.field(static=True, default=FLOAT32)

    def encode(self, tokens: Inputs) -> Float[Array, "batch seq dim"]:
        """Return the embeddings of tokens or of real inputs."""
        return embed(self.weight, tokens)

    def decode(self, x: Float[Array, "batch seq dim"]) -> Float[Array, "batch seq outputs"]:
        """Return the logits in float32, or in the dtype of `form`."""
        return unembed(x, self.unembed, self.bias, self.form)


@register("embedding", "factorised")
class FactorisedConfig(Component):
    """E P for the input and P^T E^T for the output, with a narrow table E and a projection P. Lan et al. 2020 (ALBERT).

    The table has vocab_size * size parameters instead of vocab_size * dim. In ALBERT, the output has another projection
    and a bias.

    Source: Lan et al. 2020, "ALBERT: A Lite BERT for Self-supervised Learning", arXiv 1909.11942.
    Reference: transformers.models.albert.modeling_albert.AlbertModel.
    """

    own_init = True
    example: ClassVar = {"size": 32}

    size: Size = 128
    """Width of the table, below dim."""

    def check(self, dims: Dims) -> None:
        """Raise `UserError` if this component cannot be built at the given sizes."""
        check_tied(self, dims)
        if self.size >= dims.dim:
            problem = f"factorised with size={self.size} has no fewer parameters than a table with dim={dims.dim}"
            remedy = f"Use a size below {dims.dim}, e.g. {max(1, dims.dim // 4)}."
            raise UserError(problem, path=("size",), remedy=remedy)

    def init(self, dims: Dims, *, key: Key) -> "Factorised":
        """Build the module at the given sizes."""
        return Factorised(
            weight=dims.weight(named(key, "weight"), dims.vocab_size, self.size, role="embedding"),
            project=dims.weight(named(key, "project"), self.size, dims.dim),
        )


class Factorised(eqx.Module):
    """A narrow table, and a projection from it to the stream and back."""

    weight: Float[Array, "vocab size"]
    project: Float[Array, "size dim"]
    form: LogitForm = eqx.field(static=True, default=FLOAT32)

    def encode(self, tokens: Inputs) -> Float[Array, "batch seq dim"]:
        """Return the embeddings of tokens or of real inputs."""
        return project(embed(self.weight, tokens), self.project)

    def decode(self, x: Float[Array, "batch seq dim"]) -> Float[Array, "batch seq outputs"]:
        """Return the logits in float32, or in the dtype of `form`."""
        return unembed(project(x, self.project.T), self.weight.T, form=self.form)
