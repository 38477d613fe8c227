"""Slot `rope_scaling` in rope: a change of the frequencies, for sequences longer than those of an earlier training.

The module of a kind returns the changed frequencies, and a factor on the rotated elements of queries and keys.
"""

import math
from typing import Annotated, Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import Field, PositiveFloat, PositiveInt

from taetpu.core.config import Component, Traced
from taetpu.core.errors import UserError
from taetpu.core.registry import register
from taetpu.nn.common import Fixed

Frequencies = Float[Array, " half"]
Factor = Annotated[float, Field(ge=1), Traced()]


class RopeScalingConfig(Component):
    """Base of all kinds. `init` returns a module `(frequencies, base) -> (frequencies, factor)`, or None."""

    def init(self) -> Any:
        """Build the module."""
        raise NotImplementedError

    def check_pairs(self, pairs: int) -> None:
        """Raise `UserError` if the frequencies of so many pairs cannot be changed."""


class ByLength(eqx.Module):
    """Base of scalings that depend on the length of sequences: that of the arrays, with a cache that of the cache.

    So all tokens of a text that is generated with a cache have the same frequencies.
    """

    def at_length(self, length: int) -> Any:
        """Return the module `(frequencies, base) -> (frequencies, factor)` for a length, or None."""
        raise NotImplementedError


@register("rope_scaling", "none")
class NoScaling(RopeScalingConfig):
    """The frequencies unchanged."""

    def init(self) -> None:
        """Return None."""
        return


@register("rope_scaling", "linear")
class LinearScalingConfig(RopeScalingConfig):
    """f / factor for each frequency f, as if positions were divided by the factor. Chen et al. 2023.

    Source: Chen et al. 2023, "Extending Context Window of Large Language Models via Positional Interpolation", arXiv
    2306.15595.
    Reference: transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS.
    """

    factor: Factor = 4.0
    """The length of sequences as a multiple of the length in the earlier training."""

    def init(self) -> "LinearScaling":
        """Build the module."""
        return LinearScaling(Fixed(self.factor))


class LinearScaling(eqx.Module):
    """Frequencies divided by a factor."""

    factor: Fixed

    def __call__(self, frequencies: Frequencies, base: Array) -> tuple[Frequencies, Any]:
        """Return the frequencies, and no factor on queries and keys."""
        return frequencies / self.factor.value, None


@register("rope_scaling", "ntk")
class NTKScalingConfig(LinearScalingConfig):
    """base * factor^(d / (d - 2)) in place of the base, with d rotated elements of a head. bloc97 2023 (NTK-aware).

    The highest frequency is unchanged, and the lowest is divided by the factor.

    Source: Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large Language Models", arXiv 2309.00071.
    Reference: transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS.
    """

    def init(self) -> "NTKScaling":
        """Build the module."""
        return NTKScaling(Fixed(self.factor))


class NTKScaling(LinearScaling):
    """The frequencies of a larger base."""

    def __call__(self, frequencies: Frequencies, base: Array) -> tuple[Frequencies, Any]:
        """Return the frequencies, and no factor on queries and keys."""
        half = len(frequencies)
        return frequencies * self.factor.value ** (-jnp.arange(half) / max(half - 1, 1)), None


@register("rope_scaling", "dynamic")
class DynamicScalingConfig(RopeScalingConfig):
    """`ntk` with factor * L / original_seq_len - factor + 1 for a length L above `original_seq_len`. emozilla 2023.

    Shorter sequences have unchanged frequencies. L is the length of the arrays, or of the cache.

    Source: Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large Language Models", arXiv 2309.00071.
    Reference: transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS.
    """

    example: ClassVar = {"original_seq_len": 4}

    original_seq_len: PositiveInt
    """The length of sequences in the earlier training."""
    factor: Factor = 4.0
    """The slope of the factor of `ntk` in L / original_seq_len."""

    def init(self) -> "DynamicScaling":
        """Build the module."""
        return DynamicScaling(Fixed(self.factor), self.original_seq_len)


class DynamicScaling(ByLength):
    """The frequencies of a base that grows with the length."""

    factor: Fixed
    original_seq_len: int = eqx.field(static=True)

    def at_length(self, length: int) -> NTKScaling | None:
        """Return the scaling for a length; None if it changes nothing."""
        if length <= self.original_seq_len:
            return None
        return NTKScaling(Fixed(1 + self.factor.value * (length / self.original_seq_len - 1)))


Factors = Annotated[tuple[PositiveFloat, ...], Field(min_length=1)]


@register("rope_scaling", "longrope")
class LongRopeConfig(RopeScalingConfig):
    """f / s for each frequency f, with other numbers s above `original_seq_len`. Ding et al. 2024 (LongRoPE), Phi 3.

    The length is that of the arrays, or of the cache.

    Source: Ding et al. 2024, "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens", arXiv 2402.13753.
    Reference: transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS.
    """

    example: ClassVar = {"original_seq_len": 4, "short_factor": [1.0], "long_factor": [4.0]}

    original_seq_len: PositiveInt
    """The length of sequences in the earlier training."""
    short_factor: Factors
    """Numbers by which the frequencies of sequences up to `original_seq_len` are divided: one for each pair, or one."""
    long_factor: Factors
    """The same for longer sequences."""
    attention_factor: Annotated[PositiveFloat, Traced()] = 1.0
    """Factor on cos and sin; sqrt(1 + ln(r) / ln(original_seq_len)) in Phi 3, for lengths of r `original_seq_len`."""

    def check_pairs(self, pairs: int) -> None:
        """Raise `UserError` unless there is a factor for each pair, or one for all."""
        for name in ("short_factor", "long_factor"):
            if (number := len(getattr(self, name))) not in (1, pairs):
                problem = f"{name} has {number} numbers, but {pairs} pairs of a head are rotated"
                raise UserError(problem, path=("position", "scaling", name), remedy=f"Use {pairs} numbers, or one.")

    def init(self) -> "LongRope":
        """Build the module."""
        attention, short, long = (Fixed(x) for x in (self.attention_factor, self.short_factor, self.long_factor))
        return LongRope(short, long, attention, self.original_seq_len)


class LongRope(ByLength):
    """Frequencies divided by numbers for short or long sequences."""

    short: Fixed
    long: Fixed
    attention_factor: Fixed
    original_seq_len: int = eqx.field(static=True)

    def at_length(self, length: int) -> "Divided":
        """Return the scaling for a length."""
        return Divided(self.short if length <= self.original_seq_len else self.long, self.attention_factor)


class Divided(eqx.Module):
    """Frequencies divided by a number for each."""

    factors: Fixed
    attention_factor: Fixed

    def __call__(self, frequencies: Frequencies, base: Array) -> tuple[Frequencies, Any]:
        """Return the frequencies, and the factor on queries and keys."""
        return frequencies / self.factors.value, self.attention_factor.value


@register("rope_scaling", "yarn")
class YarnConfig(RopeScalingConfig):
    """f (1 - r + r / factor), with a ramp r over the pairs from 0 to 1, and cos and sin times 0.1 ln(factor) + 1.

    Peng et al. 2023 (YaRN). r is 0 up to the pair that turns `beta_fast` times within `original_seq_len` positions, and
    1 from the pair that turns `beta_slow` times.

    Source: Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large Language Models", arXiv 2309.00071.
    Reference: transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS.
    """

    example: ClassVar = {"original_seq_len": 64}

    original_seq_len: Annotated[PositiveInt, Traced()]
    """The length of sequences in the earlier training."""
    factor: Factor = 4.0
    """The length of sequences as a multiple of `original_seq_len`."""
    beta_fast: Annotated[PositiveFloat, Traced()] = 32.0
    """Number of turns from which a frequency is unchanged."""
    beta_slow: Annotated[PositiveFloat, Traced()] = 1.0
    """Number of turns up to which a frequency is divided by the factor."""
    truncate: bool = True
    """Whether the ends of the ramp are rounded to whole pairs; gpt-oss does not round them."""
    attention_factor: Annotated[PositiveFloat | None, Traced(neutral=None)] = None
    """Factor on cos and sin; `none`: 0.1 ln(factor) + 1."""

    def init(self) -> "Yarn":
        """Build the module."""
        turns = (Fixed(self.beta_fast), Fixed(self.beta_slow))
        attention = None if self.attention_factor is None else Fixed(self.attention_factor)
        return Yarn(Fixed(self.factor), Fixed(self.original_seq_len), *turns, attention, self.truncate)


class Yarn(eqx.Module):
    """Frequencies that are interpolated by parts; see `YarnConfig`."""

    factor: Fixed
    original_seq_len: Fixed
    beta_fast: Fixed
    beta_slow: Fixed
    attention_factor: Fixed | None
    truncate: bool = eqx.field(static=True)

    def __call__(self, frequencies: Frequencies, base: Array) -> tuple[Frequencies, Any]:
        """Return the frequencies, and the factor on queries and keys."""
        half = len(frequencies)

        def pair_of(turns: Array) -> Array:  # the pair that makes this number of turns within the earlier length
            return half * jnp.log(self.original_seq_len.value / (2 * math.pi * turns)) / jnp.log(base)

        low, high = pair_of(self.beta_fast.value), pair_of(self.beta_slow.value)
        if self.truncate:
            low, high = jnp.floor(low), jnp.ceil(high)
        low, high = jnp.maximum(low, 0), jnp.minimum(high, 2 * half - 1)
        width = jnp.where(high == low, 0.001, high - low)  # as in the authors' code, which avoids a division by 0
        ramp = jnp.clip((jnp.arange(half) - low) / width, 0, 1)
        factor = self.factor.value
        attention = 0.1 * jnp.log(factor) + 1 if self.attention_factor is None else self.attention_factor.value
        return frequencies * (1 - ramp + ramp / factor), attention


@register("rope_scaling", "llama3")
class Llama3Config(RopeScalingConfig):
    """f (w + (1 - w) / factor), with w = clip((L f / (2 pi) - low) / (high - low), 0, 1). Llama Team 2024 (Llama 3.1).

    L is `original_seq_len`, `low` is `low_freq_factor` and `high` is `high_freq_factor`.

    Source: Llama Team 2024, "The Llama 3 Herd of Models", arXiv 2407.21783.
    Reference: transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS.
    """

    factor: Factor = 8.0
    """Number by which low frequencies are divided."""
    low_freq_factor: Annotated[PositiveFloat, Traced()] = 1.0
    """Number of turns within `original_seq_len` up to which a frequency is divided by the factor."""
    high_freq_factor: Annotated[PositiveFloat, Traced()] = 4.0
    """Number of turns within `original_seq_len` from which a frequency is unchanged."""
    original_seq_len: Annotated[PositiveInt, Traced()] = 8192
    """The length of sequences in the earlier training."""

    def check(self, dims: Any) -> None:
        """Raise `UserError` if the thresholds are not in order."""
        if self.low_freq_factor >= self.high_freq_factor:
            problem = f"low_freq_factor={self.low_freq_factor} is not below high_freq_factor={self.high_freq_factor}"
            raise UserError(problem, path=("low_freq_factor",), remedy=f"Set it below {self.high_freq_factor}.")

    def init(self) -> "Llama3":
        """Build the module."""
        low, high = Fixed(self.low_freq_factor), Fixed(self.high_freq_factor)
        return Llama3(Fixed(self.factor), low, high, Fixed(self.original_seq_len))


class Llama3(eqx.Module):
    """Frequencies that are interpolated by their number of turns; see `Llama3Config`."""

    factor: Fixed
    low: Fixed
    high: Fixed
    original_seq_len: Fixed

    def __call__(self, frequencies: Frequencies, base: Array) -> tuple[Frequencies, Any]:
        """Return the frequencies, and no factor on queries and keys."""
        turns = self.original_seq_len.value * frequencies / (2 * math.pi)
        kept = jnp.clip((turns - self.low.value) / (self.high.value - self.low.value), 0, 1)
        return frequencies * (kept + (1 - kept) / self.factor.value), None
