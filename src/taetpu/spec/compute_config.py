"""How a run's numbers are computed: what changes them in their last bits, and not what they mean."""

from typing import Any, Literal

from pydantic import PositiveInt, field_validator

from taetpu.core.config import Config


class MeshConfig(Config):
    """Over how many devices one run is divided: `data` of them share its batch, `model` its heads and hidden layers.

    The parameters are divided over all of them (see `train.sharding`). 1 and 1 leaves a run on one device.
    """

    data: PositiveInt = 1
    model: PositiveInt = 1


class ComputeConfig(Config):
    """No part of a run's identity, and the same for all arms. `auto` is decided when runs are packed, and kept.

    `attention` is the path that attention takes where it can: `plain`, `cudnn` (NVIDIA) or `splash` (TPU); what a path
    does not compute is left to the plain one, and `taetpu plan` says so. `remat` is what of a layer is computed a
    second time in the backward pass rather than kept: nothing (`none`), all but the projections (`dots`), or
    everything (`full`). `loss_chunk` bounds the tokens whose logits exist at once. `mesh` says how one run is divided
    over devices; `auto` divides none that fits on one.
    """

    attention: Literal["auto", "plain", "cudnn", "splash"] = "auto"
    remat: Literal["auto", "none", "dots", "full"] = "auto"
    loss_chunk: int | Literal["auto"] | None = "auto"
    mesh: Literal["auto"] | MeshConfig = "auto"

    @field_validator("loss_chunk", mode="before")
    @classmethod
    def _tokens(cls, value: Any) -> Any:
        if value in ("auto", None) or (type(value) is int and value > 0):
            return value
        raise ValueError("must be auto, none or a positive number of tokens")
