"""Granite 3: Llama with constant factors on embeddings, scores, branches and logits.

Source: modeling_granite.py and configuration_granite.py in transformers.
"""

from typing import Any

from pydantic import PositiveFloat

from taetpu.interop.families.base import Exported
from taetpu.interop.families.llama import BiasedFamily


class Granite(BiasedFamily):
    """Granite 3."""

    model_type = "granite"
    architecture = "GraniteForCausalLM"
    about = "Granite 3"

    embedding_multiplier: PositiveFloat = 1.0
    attention_multiplier: PositiveFloat = 1.0
    residual_multiplier: PositiveFloat = 1.0
    logits_scaling: PositiveFloat = 1.0

    def read(self) -> dict[str, Any]:
        """See `Family.read`."""
        made = super().read()
        made["mixer"]["scale"] = float(self.attention_multiplier)
        return {
            **made,
            "stem": {"kind": "scale", "factor": float(self.embedding_multiplier)},
            "residual": {"kind": "scale", "factor": float(self.residual_multiplier)},
            "logits": {"kind": "scale", "factor": 1 / self.logits_scaling},
        }

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """See `Family.write`."""
        return {
            **super().write(ours),
            "embedding_multiplier": ours.get("stem.factor", 1.0),
            "attention_multiplier": ours.get("mixer.scale", 1.0),
            "residual_multiplier": ours.get("residual.factor", 1.0),
            "logits_scaling": 1 / ours.get("logits.factor", 1.0),
        }
