"""Mamba 2, with one group of b and c.

Source: modeling_mamba2.py and configuration_mamba2.py in transformers.
"""

import math
from typing import Any, ClassVar

from taetpu.core.errors import UserError
from taetpu.interop.families.base import Count, Exported, Family, TokenNumbers
from taetpu.interop.layouts import CONVOLUTION, LINEAR, Rule

LAYER = "backbone.layers.{i}"
MIXER, OURS = f"{LAYER}.mixer", "layers.{i}.mixer"


class Mamba2(Family):
    """Mamba 2."""

    model_type = "mamba2"
    architecture = "Mamba2ForCausalLM"
    about = "Mamba 2"
    prefix = "backbone."
    rules = (
        Rule("backbone.embeddings.weight", "embedding.weight"),
        Rule(f"{LAYER}.norm.weight", "layers.{i}.mixer_norm.weight"),
        Rule(f"{MIXER}.in_proj.weight", " ".join(f"{OURS}.{x}" for x in ("wz", "wx", "wb", "wc", "wdt")), LINEAR),
        Rule(f"{MIXER}.conv1d.weight", f"{OURS}.taps", CONVOLUTION),
        Rule(f"{MIXER}.conv1d.bias", f"{OURS}.conv_bias"),
        Rule(f"{MIXER}.dt_bias", f"{OURS}.dt_bias"),
        Rule(f"{MIXER}.A_log", f"{OURS}.decay"),
        Rule(f"{MIXER}.D", f"{OURS}.skip"),
        Rule(f"{MIXER}.norm.weight", f"{OURS}.norm.weight"),
        Rule(f"{MIXER}.out_proj.weight", f"{OURS}.wo", LINEAR),
        Rule("backbone.norm_f.weight", "norm.weight"),
        Rule("lm_head.weight", "embedding.unembed", LINEAR),
    )
    fixed: ClassVar = {
        "use_bias": False,
        "use_conv_bias": True,
        "hidden_act": "silu",
        "rms_norm": True,
        "norm_before_gate": False,
        "layer_norm_epsilon": 1e-5,
        "time_step_limit": [0.0, math.inf],
    }
    harmless = (
        *("residual_in_fp32", "time_step_rank", "time_step_min", "time_step_max", "time_step_floor"),
        "rescale_prenorm_residual",
    )
    renamed = ((r"^backbone\.embedding\.", "backbone.embeddings."),)

    bos_token_id: TokenNumbers = 0
    eos_token_id: TokenNumbers = 2
    pad_token_id: TokenNumbers = 1
    hidden_size: Count = 4096
    num_hidden_layers: Count = 64
    num_heads: Count = 128
    head_dim: Count = 64
    state_size: Count = 128
    expand: Count = 2
    conv_kernel: Count = 4
    n_groups: Count = 8
    chunk_size: Count = 256
    initializer_range: float = 0.1
    max_position_embeddings: Count | None = None

    def read(self) -> dict[str, Any]:
        """See `Family.read`.

        Raises:
            UserError: If a setting has a value that taetpu's kind does not have.
        """
        for name, value in {"n_groups": 1, "num_heads": self.expand * self.hidden_size // self.head_dim}.items():
            if getattr(self, name) != value:
                problem = f"{name}={getattr(self, name)!r} is not supported"
                raise UserError(problem, path=(name,), remedy=f"Use a model with {name}={value!r}.")
        return {
            "dim": self.hidden_size,
            "num_layers": self.num_hidden_layers,
            "mixer": {
                "kind": "mamba2",
                "expand": self.expand,
                "head_dim": self.head_dim,
                "state": self.state_size,
                "conv": self.conv_kernel,
                "chunk": self.chunk_size,
            },
            "position": "none",
            "norm": {"kind": "rms", "eps": 1e-5},
            "ffn": "none",
            **self.data_around,
        }

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """See `Family.write`."""
        inner = ours.get("mixer.expand", 2) * ours.get("dim")
        head_dim = ours.get("mixer.head_dim", math.gcd(inner, 64))
        return {
            "vocab_size": ours.get("vocab_size"),
            "max_position_embeddings": ours.get("seq_len"),
            "hidden_size": ours.get("dim"),
            "num_hidden_layers": ours.get("num_layers"),
            "num_heads": inner // head_dim,
            "head_dim": head_dim,
            "state_size": ours.get("mixer.state", 128),
            "expand": ours.get("mixer.expand", 2),
            "conv_kernel": ours.get("mixer.conv", 4),
            "chunk_size": ours.get("mixer.chunk", 256),
            "n_groups": 1,
            "layer_norm_epsilon": 1e-5,
            "tie_word_embeddings": ours.get("embedding.kind") == "tied",
        }
