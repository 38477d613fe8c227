"""OLMo 1, with layer norms without weights; OLMo 2 and 3, with norms on the outputs of branches.

OLMo 2 and 3 normalise all heads of queries and keys together. In OLMo 3, some layers have a window.

Source: modeling_olmo.py, modeling_olmo2.py, modeling_olmo3.py and their configurations in transformers.
"""

from typing import Any, ClassVar

from pydantic import PositiveFloat

from taetpu.interop.families.base import Count, Exported, TokenNumbers
from taetpu.interop.families.llama import QK_NORMS, SiluFamily, llama_rules
from taetpu.interop.families.rope import read_positions_by_type, write_positions_by_type
from taetpu.interop.families.windows import (
    FULL,
    SLIDING,
    every_nth_full,
    read_layer_types,
    with_positions,
    with_windows,
    write_windows,
)

NORMS = {"mixer_norm": "post_attention_layernorm", "ffn_norm": "post_feedforward_layernorm", **QK_NORMS}
BASES = {FULL: 500_000.0, SLIDING: 500_000.0}


class OlmoFamily(SiluFamily):
    """What all versions share."""

    eos_token_id: TokenNumbers = 50279
    pad_token_id: TokenNumbers = 1
    attention_bias: bool = False


class Olmo(OlmoFamily):
    """OLMo 1."""

    model_type = "olmo"
    architecture = "OlmoForCausalLM"
    about = "OLMo 1"
    fixed: ClassVar = {"clip_qkv": None}

    def read(self) -> dict[str, Any]:
        """See `Family.read`."""
        return {**super().read(), "norm": {"kind": "layer", "eps": 1e-5, "affine": False}}

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """See `Family.write`."""
        made = super().write(ours)
        del made["rms_norm_eps"]
        return made


class Olmo2(OlmoFamily):
    """OLMo 2."""

    model_type = "olmo2"
    architecture = "Olmo2ForCausalLM"
    about = "OLMo 2"
    rules = llama_rules(NORMS)

    rms_norm_eps: PositiveFloat = 1e-5

    def read(self) -> dict[str, Any]:
        """See `Family.read`."""
        made = super().read()
        made["mixer"]["qk_norm"] = {"kind": "rms", "over": "all", "eps": self.rms_norm_eps}
        made["norm"]["placement"] = "output"
        return made


class Olmo3(Olmo2):
    """OLMo 3. By default, every fourth layer is a full one."""

    model_type = "olmo3"
    architecture = "Olmo3ForCausalLM"
    about = "OLMo 3"

    sliding_window: Count | None = 4096
    layer_types: tuple[str, ...] | None = None

    def read_position(self) -> dict[str, Any]:
        """Return nothing: `read` reads the position of each type of layer."""
        return {}

    def read(self) -> dict[str, Any]:
        """See `Family.read`."""
        made = super().read()
        types = read_layer_types(self, every_nth_full(self.num_hidden_layers, 4))
        positions = read_positions_by_type(self, BASES, {FULL: self.rope_theta, SLIDING: None})
        return with_positions(with_windows(made, types, self.sliding_window), types, positions)

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """See `Family.write`."""
        types, width = write_windows(ours)
        made = {**super().write(ours), "sliding_window": width or 4096, "layer_types": types}
        return {**made, **write_positions_by_type(ours, types, BASES)}
