"""Settings that control how numbers are computed. They change results only by rounding."""

from typing import Any, Literal

from pydantic import PositiveInt, field_validator
from pydantic_core import PydanticCustomError

from taetpu.core.config import Config


class MeshConfig(Config):
    """The device mesh of one run. Parameters are sharded over all its devices (see `train.sharding`)."""

    data: PositiveInt = 1
    """Devices that share a run's batch."""
    model: PositiveInt = 1
    """Devices that share a run's heads and hidden layers."""


class ComputeConfig(Config):
    """Compute settings. They are the same for all arms and not part of a run's identity.

    `auto` is resolved when runs are packed, and the result is stored. Attention that an implementation does not support
    falls back to `plain`; `taetpu plan` reports it.
    """

    attention: Literal["auto", "plain", "cudnn", "splash"] = "auto"
    """The implementation of attention: `plain`, `cudnn` (NVIDIA) or `splash` (TPU)."""
    remat: Literal["auto", "none", "dots", "full"] = "auto"
    """What the backward pass recomputes of a layer instead of storing it: nothing (`none`), all but the projections
    (`dots`), or everything (`full`).
    """
    loss_chunk: int | Literal["auto"] | None = "auto"
    """Tokens whose logits are in memory at once; `none` for all."""
    mesh: Literal["auto"] | MeshConfig = "auto"
    """Devices that share one run, e.g. `{data: 2, model: 2}`; `auto` shards only a run that does not fit one device."""

    @field_validator("loss_chunk", mode="before")
    @classmethod
    def _tokens(cls, value: Any) -> Any:
        if value in ("auto", None) or (type(value) is int and value > 0):
            return value
        remedy = "Use auto, none, or a number of tokens of at least 1."
        raise PydanticCustomError("rule", "must be auto, none or a positive number of tokens", {"remedy": remedy})
