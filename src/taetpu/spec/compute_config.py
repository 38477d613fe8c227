"""How a run's numbers are computed: what changes them in their last bits, and not what they mean."""

from typing import Any, Literal

from pydantic import field_validator

from taetpu.core.config import Config


class ComputeConfig(Config):
    """No part of a run's identity, and the same for all arms. `auto` is decided when runs are packed, and kept.

    `attention` is the path that attention takes where it can: `plain`, `cudnn` (NVIDIA) or `splash` (TPU); what a path
    does not compute is left to the plain one, and `taetpu plan` says so. `remat` is what of a layer is computed a
    second time in the backward pass rather than kept: nothing (`none`), all but the projections (`dots`), or
    everything (`full`). `loss_chunk` bounds the tokens whose logits exist at once.
    """

    attention: Literal["auto", "plain", "cudnn", "splash"] = "auto"
    remat: Literal["auto", "none", "dots", "full"] = "auto"
    loss_chunk: int | Literal["auto"] | None = "auto"

    @field_validator("loss_chunk", mode="before")
    @classmethod
    def _tokens(cls, value: Any) -> Any:
        if value in ("auto", None) or (type(value) is int and value > 0):
            return value
        raise ValueError("must be auto, none or a positive number of tokens")
