"""The names that plug-ins import (see docs/plugins.md). To extend a built-in kind, import it from the slot's module."""

from typing import Annotated

from taetpu.core.batch_statistics import auxiliary_loss, record_mean
from taetpu.core.config import Component, SlotMark, Traced
from taetpu.core.errors import UserError
from taetpu.core.keys import Key, named
from taetpu.core.metric_spec import MetricSpec
from taetpu.core.model_interface import Interface
from taetpu.core.registry import open_slot, register
from taetpu.core.sites import site
from taetpu.data.base import Batch, BatchSpec
from taetpu.data.function_task import task_function
from taetpu.data.synthetic.generated import GeneratedTask
from taetpu.nn.common import Context, Dims, Fixed, Identity, project
from taetpu.nn.head import HeadConfig, HeadInputs
from taetpu.nn.matmul import active_share
from taetpu.nn.mixer_base import MixerConfig
from taetpu.nn.named_arrays import named_parameters, num_layers, scale_layers
from taetpu.nn.state import State
from taetpu.optim.eval_metrics import EvalMetric, Evaluated
from taetpu.optim.hooks import Hook, Moment
from taetpu.optim.metrics import Metric, Seen
from taetpu.optim.objectives import Objective

# The type of fields that enter the compiled program as inputs. Arms that differ only in such fields share a program.
Number = Annotated[float, Traced()]

__all__ = [
    "Batch",
    "BatchSpec",
    "Component",
    "Context",
    "Dims",
    "EvalMetric",
    "Evaluated",
    "Fixed",
    "GeneratedTask",
    "HeadConfig",
    "HeadInputs",
    "Hook",
    "Identity",
    "Interface",
    "Key",
    "Metric",
    "MetricSpec",
    "MixerConfig",
    "Moment",
    "Number",
    "Objective",
    "Seen",
    "SlotMark",
    "State",
    "Traced",
    "UserError",
    "active_share",
    "auxiliary_loss",
    "named",
    "named_parameters",
    "num_layers",
    "open_slot",
    "project",
    "record_mean",
    "register",
    "scale_layers",
    "site",
    "task_function",
]
