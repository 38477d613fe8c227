"""Slot `mask` in attention: the keys that each query may attend to."""

from typing import Annotated, Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from taetpu.core.config import Component, Size, Traced
from taetpu.core.errors import UserError
from taetpu.core.keys import Key
from taetpu.core.registry import register
from taetpu.nn.attention_kernels import KernelMask
from taetpu.nn.common import Context, Dims, Fixed

Mask = Bool[Array, "query key"] | Bool[Array, "#batch #head query key"]
Windows = Int[np.ndarray, "batch seq"] | Float[np.ndarray, "batch seq features"]
"""Tokens, or real inputs."""
UNLIMITED = 2**24  # float32, in which traced numbers are stored, represents all integers up to this number


class MaskConfig(Component):
    """Base of all masks. `init` returns a module `(ctx) -> mask`, or None if every query may attend to every key.

    Attributes:
        causal: Whether no query attends to a later key.
        hides_targets: Whether `check_windows` ensures that no query whose prediction counts attends to a later key.
    """

    causal: ClassVar[bool] = True
    hides_targets: ClassVar[bool] = False

    @property
    def kernel(self) -> KernelMask | None:
        """The mask of attention kernels that gives the same result, or None."""
        return None

    @property
    def needs_segments(self) -> bool:
        """Whether the mask reads the segments of the task's batches."""
        return False

    @property
    def needs_prefix(self) -> bool:
        """Whether the mask reads the lengths of prefixes in the task's batches."""
        return False

    @property
    def needs_tokens(self) -> bool:
        """Whether the mask reads tokens, so that inputs may not be real."""
        return False

    def init(self, dims: Dims, *, key: Key) -> Any:
        """Build the module at the given sizes."""
        raise NotImplementedError

    def check_windows(self, tokens: Windows, weights: Shaped[np.ndarray, "batch seq"]) -> None:
        """Raise `UserError` if a query with a weight in the loss could attend to its own target."""

    def for_layer(self, number: int, num_layers: int) -> "MaskConfig":
        """Return the mask of layer `number`, from 0, where the mask of the model differs between layers."""
        return self


def distances(ctx: Context) -> Int[Array, "query key"] | Int[Array, "batch 1 query key"]:
    """Return the number of positions from each key to each query; negative for later keys."""
    queries, keys = ctx.position_pairs
    return queries - keys


def visible(mask: Any, ctx: Context) -> Mask | None:
    """Return whether each query may attend to each key: the mask, without padding and unused places of a cache.

    Args:
        mask: The mask's module; None if every query may attend to every key.
        ctx: The context of the queries.

    Returns:
        The mask; None if every query may attend to every key.
    """
    allowed = None if mask is None else mask(ctx)
    if ctx.keys.real is None:
        return allowed
    real = ctx.keys.real[:, None, None, :]
    return real if allowed is None else allowed & real


@register("mask", "causal")
class CausalConfig(MaskConfig):
    """A query attends to its own position and to earlier positions. Vaswani et al. 2017, section 3.2.3.

    Source: Vaswani et al. 2017, "Attention Is All You Need", arXiv 1706.03762.
    Reference: transformers.masking_utils.causal_mask_function.
    """

    @property
    def kernel(self) -> KernelMask:
        """The mask of attention kernels that gives the same result."""
        return KernelMask(causal=True)

    def init(self, dims: Dims, *, key: Key) -> "Causal":
        """Build the module at the given sizes."""
        return Causal()


class Causal(eqx.Module):
    """The causal mask."""

    def __call__(self, ctx: Context) -> Mask:
        """Return whether each query may attend to each key."""
        queries, keys = ctx.position_pairs
        return queries >= keys


@register("mask", "full")
class FullConfig(MaskConfig):
    """A query attends to all positions, as in an encoder. Devlin et al. 2019 (BERT).

    Source: Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
    arXiv 1810.04805.
    Excludes: causal tasks.
    """

    causal = False

    @property
    def kernel(self) -> KernelMask:
        """The mask of attention kernels that gives the same result."""
        return KernelMask(causal=False)

    def init(self, dims: Dims, *, key: Key) -> None:
        """Return None."""
        return


Width = Annotated[int, Field(gt=0, le=UNLIMITED)]


def _width_or_unlimited(config: "SlidingConfig", width: int | None) -> int:
    return UNLIMITED if width is None else width


class SlidingConfig(MaskConfig):
    """Base of the masks of windows around a query, in all layers or in those of a pattern.

    The width is traced, so layers and arms with different widths share a program. With `width: none`, the mask of such
    a program hides nothing else, for the global layers of a model with local and global layers.
    """

    example: ClassVar = {"width": 32}

    width: Annotated[Width | None, Traced(encode=_width_or_unlimited)] = 128
    """Number of positions that a query attends to, its own included; `none`: all earlier positions."""
    pattern: str | None = None
    """Letters S (the width) and L (all earlier positions) of the first layers, repeated for the layers that follow;
    `none`: all layers have the width."""
    last: bool = True
    """Whether the last layer attends to all earlier positions, regardless of its letter in the pattern."""

    @model_validator(mode="after")
    def _check_pattern(self) -> "SlidingConfig":
        if self.pattern is None:
            if not self.last:
                problem = "last: false has no effect without a pattern"
                raise UserError(problem, path=("last",), remedy="Remove last, or set pattern, e.g. SSSL.")
            return self
        other = next((letter for letter in self.pattern if letter not in "SL"), None)
        if other is not None or not self.pattern:
            problem = f"pattern {self.pattern!r} {f'has the letter {other!r}' if other else 'is empty'}"
            raise UserError(problem, path=("pattern",), remedy="Use the letters S and L, e.g. SSSL.")
        if "S" not in self.pattern:
            problem = f"pattern {self.pattern!r} has no layer with a window"
            whole = "causal" if self.causal else "full"
            raise UserError(problem, path=("pattern",), remedy=f"Use the mask {whole}, or an S in the pattern.")
        if self.width is None:
            problem = f"pattern {self.pattern!r} needs a width for its letter S, and width is none"
            raise UserError(problem, path=("width",), remedy="Set width, or remove pattern.")
        return self

    def for_layer(self, number: int, num_layers: int) -> "SlidingConfig":
        """Return the mask of layer `number`, from 0, without the pattern."""
        if self.pattern is None:
            return self
        ends = self.last and number == num_layers - 1
        everything = ends or self.pattern[number % len(self.pattern)] == "L"
        return self.model_copy(update={"width": None if everything else self.width, "pattern": None, "last": True})


@register("mask", "window")
class WindowConfig(SlidingConfig):
    """A query attends to its own position and the width - 1 positions before it. Beltagy et al. 2020; Mistral.

    The width is traced, so layers and arms with different widths share a program. `width: none` is the causal mask in
    such a program, for the global layers of a model with local and global layers (Gemma 2 and 3). Kernels need
    `train.compute.windows: static`.

    Source: Beltagy et al. 2020, "Longformer: The Long-Document Transformer", arXiv 2004.05150; Jiang et al. 2023,
    "Mistral 7B", arXiv 2310.06825.
    Reference: transformers.masking_utils.sliding_window_causal_mask_function.
    """

    def init(self, dims: Dims, *, key: Key) -> "Window | Causal":
        """Build the module at the given sizes."""
        return Window(Fixed(self.width))


class StaticWindowConfig(WindowConfig):
    """The mask `window` with a width that is part of the program (`train.compute.windows: static`)."""

    width: Width | None = 128

    @property
    def kernel(self) -> KernelMask:
        """The mask of attention kernels that gives the same result."""
        return KernelMask(causal=True, width=self.width)

    def init(self, dims: Dims, *, key: Key) -> "Window | Causal":
        """Build the module at the given sizes."""
        return Causal() if self.width is None else Window(Fixed(self.width))


class Window(eqx.Module):
    """The mask of a sliding window."""

    width: Fixed

    def __call__(self, ctx: Context) -> Mask:
        """Return whether each query may attend to each key."""
        apart = distances(ctx)
        return (apart >= 0) & (apart < self.width.value)


@register("mask", "local")
class LocalConfig(SlidingConfig):
    """A query attends to its own position and the width // 2 positions before and after it. Beltagy et al. 2020.

    The width is traced, so layers and arms with different widths share a program. `width: none` is the mask full in
    such a program, for the global layers of a model with local and global layers (ModernBERT).

    Source: Beltagy et al. 2020, "Longformer: The Long-Document Transformer", arXiv 2004.05150; Warner et al. 2024,
    "Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder for Fast, Memory Efficient, and Long Context
    Finetuning and Inference", arXiv 2412.13663.
    Reference: transformers.masking_utils.sliding_window_bidirectional_mask_function.
    Excludes: causal tasks.
    """

    causal = False

    width: Annotated[Width | None, Traced(encode=_width_or_unlimited)] = 128
    """Twice the number of positions on each side that a query attends to; `none`: all positions."""
    pattern: str | None = None
    """Letters S (the width) and L (all positions) of the first layers, repeated for the layers that follow; `none`: all
    layers have the width."""
    last: bool = True
    """Whether the last layer attends to all positions, regardless of its letter in the pattern."""

    def init(self, dims: Dims, *, key: Key) -> "Local":
        """Build the module at the given sizes."""
        return Local(Fixed(self.width))


class Local(eqx.Module):
    """The mask of a window on both sides of a query."""

    width: Fixed

    def __call__(self, ctx: Context) -> Mask:
        """Return whether each query may attend to each key."""
        return jnp.abs(distances(ctx)) <= self.width.value // 2


@register("mask", "prefix")
class PrefixConfig(MaskConfig):
    """Causal, except that positions of the prefix attend to each other. Raffel et al. 2020 (prefix LM).

    Without a separator, the task draws the length of each prefix (`objective: prefix-lm` of texts), and a sequence
    outside of the task's batches, such as a prompt, has no prefix. With one, the loss must have no weight before the
    first separator, because a query could otherwise attend to its target.

    Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
    arXiv 1910.10683.
    Excludes: tasks whose loss includes positions before the first separator.
    """

    causal, hides_targets = False, True

    example: ClassVar = {"separator": 0}

    separator: NonNegativeInt | None = None
    """The token that ends the prefix; `none`: the prefixes are those of the task's batches."""

    @property
    def needs_prefix(self) -> bool:
        """Whether the mask reads the lengths of prefixes in the task's batches."""
        return self.separator is None

    @property
    def needs_tokens(self) -> bool:
        """Whether the mask reads a separator."""
        return self.separator is not None

    def init(self, dims: Dims, *, key: Key) -> "Prefix":
        """Build the module at the given sizes."""
        return Prefix(self.separator)

    def check_windows(self, tokens: Windows, weights: Shaped[np.ndarray, "batch seq"]) -> None:
        """Raise `UserError` if a query with a weight in the loss could attend to its own target."""
        if self.separator is None:  # the task scores no target inside of a prefix
            return
        before = np.cumsum(tokens == self.separator, axis=-1) == 0
        if (weights[before] > 0).any():
            problem = f"the loss includes positions before the first token {self.separator}, which see their targets"
            raise UserError(
                problem,
                path=("separator",),
                remedy="Use a task that predicts only tokens after the separator, or the mask causal.",
            )


class Prefix(eqx.Module):
    """The mask of a prefix language model. Without a separator and prefixes, it is causal."""

    separator: int | None = eqx.field(static=True)

    def __call__(self, ctx: Context) -> Mask:
        """Return whether each query may attend to each key."""
        if self.separator is not None:
            is_end = ctx.tokens == self.separator
            if ctx.real is not None:  # the number of padding may be that of the separator
                is_end &= ctx.real
            prefix = jnp.cumsum(is_end, -1) - is_end == 0
        elif ctx.prefix is not None:
            prefix = ctx.positions < ctx.prefix[:, None]
        else:
            return distances(ctx) >= 0
        both = prefix[:, None, :, None] & prefix[:, None, None, :]
        return (distances(ctx) >= 0) | both


@register("mask", "document")
class DocumentConfig(MaskConfig):
    """Causal within a document. Zhao et al. 2024; Llama 3.

    Source: Zhao et al. 2024, "Analysing The Impact of Sequence Composition on Language Model Pre-Training", arXiv
    2402.13991; Grattafiori et al. 2024, "The Llama 3 Herd of Models", arXiv 2407.21783.
    Reference: transformers.masking_utils.packed_sequence_mask_function.
    """

    example: ClassVar = {"separator": 0}

    separator: NonNegativeInt | None = None
    """The last token of each document; `none`: the documents are the segments of the task's batches."""

    @property
    def needs_segments(self) -> bool:
        """Whether the mask reads the segments of the task's batches."""
        return self.separator is None

    @property
    def needs_tokens(self) -> bool:
        """Whether the mask reads a separator."""
        return self.separator is not None

    def init(self, dims: Dims, *, key: Key) -> "Document":
        """Build the module at the given sizes."""
        return Document(self.separator)


class Document(eqx.Module):
    """The mask of several documents in a sequence. Without a separator and segments, a sequence is one document."""

    separator: int | None = eqx.field(static=True)

    def __call__(self, ctx: Context) -> Mask:
        """Return whether each query may attend to each key."""
        document = ctx.keys.segments
        if self.separator is not None:
            is_end = (ctx.keys.tokens == self.separator).astype(jnp.int32)
            document = jnp.cumsum(is_end, -1) - is_end
        if document is None:
            return distances(ctx) >= 0
        query_document = ctx.of_queries(document)
        return (distances(ctx) >= 0) & (query_document[:, None, :, None] == document[:, None, None, :])


@register("mask", "block-sparse")
class BlockSparseConfig(MaskConfig):
    """Causal attention between blocks of positions: local, strided and global blocks. Child et al. 2019; Zaheer 2020.

    A query in block i attends to the causal positions of block j if i - j < local, if i - j is a multiple of `stride`,
    or if j < first.

    Source: Child et al. 2019, "Generating Long Sequences with Sparse Transformers", arXiv 1904.10509; Zaheer et al.
    2020, "Big Bird: Transformers for Longer Sequences", arXiv 2007.14062.
    """

    block: Size = 16
    """Number of positions in a block."""
    local: PositiveInt = 2
    """Number of neighbouring blocks that a query attends to, its own included."""
    stride: PositiveInt | None = None
    """Distance between the earlier blocks that a query attends to; `none`: no strided blocks."""
    first: NonNegativeInt = 0
    """Number of blocks at the start of the sequence that all queries attend to."""

    def init(self, dims: Dims, *, key: Key) -> "BlockSparse":
        """Build the module at the given sizes."""
        return BlockSparse(self.block, self.local, self.stride, self.first)


class BlockSparse(eqx.Module):
    """A block-sparse causal mask; see `BlockSparseConfig`."""

    block: int = eqx.field(static=True)
    local: int = eqx.field(static=True)
    stride: int | None = eqx.field(static=True)
    first: int = eqx.field(static=True)

    def __call__(self, ctx: Context) -> Mask:
        """Return whether each query may attend to each key."""
        queries, keys = (positions // self.block for positions in ctx.position_pairs)
        apart = queries - keys
        seen = (apart < self.local) | (keys < self.first)
        if self.stride is not None:
            seen |= apart % self.stride == 0
        return (distances(ctx) >= 0) & seen
