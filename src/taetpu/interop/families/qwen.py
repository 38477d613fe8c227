"""Qwen 2 and 2.5, with biases of queries, keys and values, and Qwen 3, with norms of queries and keys.

Source: modeling_qwen2.py, modeling_qwen3.py and their configurations in transformers.
"""

from typing import Any, ClassVar

from pydantic import NonNegativeInt

from taetpu.interop.families.base import Count, Exported
from taetpu.interop.families.llama import PRE_NORMS, QK_NORMS, SiluFamily, llama_rules
from taetpu.interop.families.windows import FULL, SLIDING, read_layer_types, with_windows, write_windows


class QwenFamily(SiluFamily):
    """What both versions share."""

    harmless = ("dual_chunk_attention_config",)  # of vLLM

    num_key_value_heads: Count | None = 32
    max_position_embeddings: Count | None = 32768
    use_sliding_window: bool = False
    sliding_window: Count | None = 4096
    max_window_layers: NonNegativeInt = 28
    layer_types: tuple[str, ...] | None = None

    def read(self) -> dict[str, Any]:
        """See `Family.read`.

        With `use_sliding_window`, the layers from number `max_window_layers` on have a window, unless `layer_types`
        says otherwise.
        """
        width = self.sliding_window if self.use_sliding_window else None
        first = self.num_hidden_layers if width is None else self.max_window_layers
        default = [FULL if i < first else SLIDING for i in range(self.num_hidden_layers)]
        made = super().read()
        return with_windows(made, read_layer_types(self, default), width)

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """See `Family.write`."""
        types, width = write_windows(ours)
        return {
            **super().write(ours),
            "use_sliding_window": width is not None,
            "sliding_window": width,
            "max_window_layers": len(types),
            "layer_types": types,
        }


class Qwen2(QwenFamily):
    """Qwen 2 and 2.5."""

    model_type = "qwen2"
    architecture = "Qwen2ForCausalLM"
    about = "Qwen 2 and 2.5"
    fixed: ClassVar = {"use_mrope": False}
    attention_bias: ClassVar[str] = "qkv"


class Qwen3(QwenFamily):
    """Qwen 3."""

    model_type = "qwen3"
    architecture = "Qwen3ForCausalLM"
    about = "Qwen 3"
    rules = llama_rules({**PRE_NORMS, **QK_NORMS})

    head_dim: Count | None = 128
    attention_bias: bool = False

    def read(self) -> dict[str, Any]:
        """See `Family.read`."""
        made = super().read()
        made["mixer"]["qk_norm"] = {"kind": "rms", "eps": self.rms_norm_eps}
        return made
