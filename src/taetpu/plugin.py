"""The names that a plug-in imports; see docs/plugins.md. Kinds to extend come from their slot's own module."""

from typing import Annotated

from taetpu.core.config import Component, SlotMark, Traced
from taetpu.core.errors import UserError
from taetpu.core.keys import Key, named
from taetpu.core.registry import register
from taetpu.core.sites import site
from taetpu.data.batches import Batch
from taetpu.nn.common import Context, Dims, Fixed, Identity, project
from taetpu.nn.lm import named_parameters, num_layers, scale_layers
from taetpu.optim.hooks import Hook, Moment
from taetpu.optim.metrics import Metric, Seen

# A field that enters the compiled program as an input, so that arms that differ in it share one program.
Number = Annotated[float, Traced()]

__all__ = [
    "Batch",
    "Component",
    "Context",
    "Dims",
    "Fixed",
    "Hook",
    "Identity",
    "Key",
    "Metric",
    "Moment",
    "Number",
    "Seen",
    "SlotMark",
    "Traced",
    "UserError",
    "named",
    "named_parameters",
    "num_layers",
    "project",
    "register",
    "scale_layers",
    "site",
]
