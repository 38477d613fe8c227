"""How a run's numbers are computed: what changes them in their last bits, and not what they mean."""

from typing import Any, Literal

from pydantic import PositiveInt, field_validator
from pydantic_core import PydanticCustomError

from taetpu.core.config import Config


class MeshConfig(Config):
    """Over how many devices one run is divided: `data` of them share its batch, `model` its heads and hidden layers.

    The parameters are divided over all of them (see `train.sharding`). 1 and 1 leaves a run on one device.
    """

    data: PositiveInt = 1
    """Devices that share a run's batch."""
    model: PositiveInt = 1
    """Devices that share a run's heads and hidden layers."""


class ComputeConfig(Config):
    """No part of a run's identity, and the same for all arms. `auto` is decided when runs are packed, and kept.

    `attention` is the path that attention takes where it can: `plain`, `cudnn` (NVIDIA) or `splash` (TPU); what a path
    does not compute is left to the plain one, and `taetpu plan` says so. `remat` is what of a layer is computed a
    second time in the backward pass rather than kept: nothing (`none`), all but the projections (`dots`), or
    everything (`full`). `loss_chunk` bounds the tokens whose logits exist at once. `mesh` says how one run is divided
    over devices; `auto` divides none that fits on one.
    """

    attention: Literal["auto", "plain", "cudnn", "splash"] = "auto"
    """The implementation of attention: `plain`, `cudnn` (NVIDIA) or `splash` (TPU)."""
    remat: Literal["auto", "none", "dots", "full"] = "auto"
    """What the backward pass recomputes of a layer instead of storing it: nothing (`none`), all but the projections
    (`dots`), or everything (`full`).
    """
    loss_chunk: int | Literal["auto"] | None = "auto"
    """Tokens whose logits are in memory at once; `none`: all of them."""
    mesh: Literal["auto"] | MeshConfig = "auto"
    """Devices that one run is divided over, e.g. `{data: 2, model: 2}`; `auto` divides only a run that one device
    cannot hold.
    """

    @field_validator("loss_chunk", mode="before")
    @classmethod
    def _tokens(cls, value: Any) -> Any:
        if value in ("auto", None) or (type(value) is int and value > 0):
            return value
        remedy = "auto, none, or a number of tokens from 1 on"
        raise PydanticCustomError("rule", "must be auto, none or a positive number of tokens", {"remedy": remedy})
