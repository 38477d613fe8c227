"""The base of mixers, which answers what other parts of taetpu ask about a mixer's config."""

from typing import Any, ClassVar

from taetpu.core.config import Component
from taetpu.nn.common import AttentionDims, Dims
from taetpu.nn.mask import CausalConfig, FullConfig, MaskConfig


class MixerConfig(Component):
    """Base of mixers. A class overrides the answers that do not follow from its fields.

    By default, the answers follow from the fields or class attributes `num_heads`, `num_kv_heads`, `head_dim`,
    `causal`, `mask` and the other slots of attention, as far as the class has them.

    Attributes:
        position_parts: The parts of positions that the module calls: `in_attention`, `on_scores`.
    """

    position_parts: ClassVar[tuple[str, ...]] = ()

    def setting(self, name: str) -> Any:
        """Return a field or class attribute, or None if the class has none of this name."""
        return getattr(self, name, None)

    def slot_component(self, slot: str) -> Component | None:
        """Return the component in the field `slot`, such as `mask`, or None if the class has no such field."""
        component = self.setting(slot)
        return component if isinstance(component, Component) else None

    def heads(self, dims: Dims) -> AttentionDims | None:
        """Return the numbers of heads and the width of a head at the given sizes; None if the mixer has no heads."""
        if (number := self.setting("num_heads")) is None:
            return None
        size = self.setting("head_dim") or dims.dim // number
        return AttentionDims(number, self.setting("num_kv_heads") or number, size)

    def position_heads(self, dims: Dims) -> AttentionDims | None:
        """Return the numbers of heads, and the width, of the parts of queries and keys that positions act on."""
        return self.heads(dims) if self.position_parts else None

    def cache_size(self, dims: Dims) -> int | None:
        """Return the number of elements that text generation caches for each token; None if it is unknown."""
        return None

    @property
    def effective_mask(self) -> MaskConfig | None:
        """The mask, which is `full` with `causal: false`; None if the class has neither `mask` nor `causal`."""
        causal, mask = self.setting("causal"), self.slot_component("mask")
        if causal is False:
            return FullConfig()
        return mask if isinstance(mask, MaskConfig) else CausalConfig() if causal else None

    @property
    def is_causal(self) -> bool:
        """Whether the mask, if there is one, hides all later keys."""
        return self.effective_mask is None or self.effective_mask.causal

    def fits_task(self, causal: bool) -> bool:
        """Return whether the mask fits a task that predicts the next token (`causal`), or one that needs later tokens.

        Without `causal` in the class, a causal mask fits both, because stored studies have such mixers.
        """
        mask = self.effective_mask
        hides = self.is_causal or (mask is not None and mask.hides_targets)
        return hides if causal else not hides or self.setting("causal") is None


class UndeclaredMixer(MixerConfig):
    """The answers about a mixer that extends only `Component`: they follow from its fields and class attributes."""

    mixer: Component

    def setting(self, name: str) -> Any:
        """Return a field or class attribute of the mixer, or None if it has none of this name."""
        return getattr(self.mixer, name, None)
