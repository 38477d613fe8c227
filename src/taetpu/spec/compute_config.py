"""Settings that control how numbers are computed. They change results only by rounding."""

from typing import Annotated, Any, Literal, LiteralString

from pydantic import BeforeValidator, PositiveInt
from pydantic_core import PydanticCustomError

from taetpu.core.config import Config


def word_or_count(*words: str | None, unit: str) -> BeforeValidator:
    """Return the validator of a field whose value is one of `words` or a positive number of `unit`."""
    names = ", ".join("none" if word is None else word for word in words)

    def check(value: Any) -> Any:
        if value in words or (type(value) is int and value > 0):
            return value
        remedy = f"Use {names}, or a number of {unit} of at least 1."
        problem: LiteralString = "must be {names} or a positive number of {unit}"
        raise PydanticCustomError("rule", problem, {"names": names, "unit": unit, "remedy": remedy})

    return BeforeValidator(check)


class MeshConfig(Config):
    """The device mesh of one run. Parameters are sharded over all its devices (see `train.sharding`)."""

    data: PositiveInt = 1
    """Devices that share a run's batch."""
    model: PositiveInt = 1
    """Devices that share a run's heads and hidden layers."""


class ComputeConfig(Config):
    """Compute settings. They are the same for all arms and not part of a run's identity.

    `auto` is resolved when runs are grouped into packs, and the result is stored. Attention that an implementation does
    not support is computed by `plain`, and `taetpu plan` reports this fallback.
    """

    attention: Literal["auto", "plain", "cudnn", "splash"] = "auto"
    """Implementation of attention: `plain`, `cudnn` (NVIDIA) or `splash` (TPU)."""
    windows: Literal["traced", "static"] = "traced"
    """Widths of the mask `window`: `traced` (shared programs, plain attention) or `static` (kernels skip what the
    window hides; a program for each set of widths).
    """
    remat: Literal["auto", "none", "dots", "full"] = "auto"
    """Parts of a layer that the backward pass recomputes because they are not stored: nothing (`none`), all but the
    projections (`dots`), or everything (`full`).
    """
    unroll: Annotated[int | Literal["auto", "all"], word_or_count("auto", "all", unit="layers")] = "auto"
    """Number of neighbouring equal layers per iteration of the loop over layers; `all`: no loop; `auto`: no loop over
    at most 8 layers without `remat`, otherwise 1. Compile time grows with the number.
    """
    loss_chunk: Annotated[int | Literal["auto"] | None, word_or_count("auto", None, unit="tokens")] = "auto"
    """Number of tokens whose logits are in memory at once; `none`: all tokens."""
    logits: Literal["float32", "bfloat16"] = "float32"
    """Dtype in which training steps hold logits in memory. Softmax and sums are in float32, evaluation too."""
    pad_vocab: Annotated[int | None, word_or_count(None, unit="outputs")] = None
    """Multiple to which training steps pad the number of logits of a token, e.g. 128; `none`: no padding. Parameters
    are not padded, and losses do not see the padding.
    """
    cast: Literal["use", "step"] = "use"
    """When weights are cast to the dtype of matrix products: at each `use`, or once a `step`."""
    feed: Literal["auto", "resident", "host"] = "auto"
    """Where training data is: on every device (`resident`), or on the host, from which a thread reads the windows of
    the next steps (`host`). `auto`: `host` above 256 MiB. Generated data needs neither.
    """
    mesh: Literal["auto"] | MeshConfig = "auto"
    """Devices that share one run, e.g. `{data: 2, model: 2}`; `auto`: several if one device has too little memory."""
