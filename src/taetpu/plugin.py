"""What a plug-in is written with; see docs/plugins.md. A plug-in imports from here and from the slots it builds on."""

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

# A field that arms may differ in and still be trained in one program.
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
