"""How a run's numbers are computed: what changes them in their last bits, and not what they mean."""

from typing import Literal

from pydantic import PositiveInt

from taetpu.core.config import Config


class MeshConfig(Config):
    """Over how many devices one run is divided: `data` of them share its batch, `model` its heads and hidden layers.

    The parameters are divided over all of them (see `train.sharding`). 1 and 1 leaves a run on one device.
    """

    data: PositiveInt = 1
    model: PositiveInt = 1


class ComputeConfig(Config):
    """No part of a run's identity, and the same for all arms. `auto` is decided when runs are packed, and kept.

    `mesh` says how one run is divided over devices; `auto` divides none that fits on one.
    """

    mesh: Literal["auto"] | MeshConfig = "auto"
