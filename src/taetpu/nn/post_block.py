"""Slot `after`: what is done to a block's output before the next block sees it. For plug-ins; nothing by default."""

from taetpu.core.config import Component
from taetpu.core.keys import Key
from taetpu.core.registry import register
from taetpu.nn.common import Dims, Identity


@register("after", "none")
class NoAfter(Component):
    """The block's output as it is."""

    def init(self, dims: Dims, *, key: Key) -> Identity:
        return Identity()
