"""Slot `after`: a change to a block's output before the next block. The only built-in kind makes no change."""

from taetpu.core.config import Component
from taetpu.core.keys import Key
from taetpu.core.registry import register
from taetpu.nn.common import Dims, Identity


@register("after", "none")
class NoAfter(Component):
    """The block's output unchanged."""

    def init(self, dims: Dims, *, key: Key) -> Identity:
        """Build the module at the given sizes."""
        return Identity()
