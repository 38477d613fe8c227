"""Llama, Mistral, and what other architectures have in common with them.

The weight of Linear has the layout (out, in). As in taetpu, RoPE pairs the elements of the two halves of a head. Files
of Meta and GGUF pair neighbours and are not read.

Source: modeling_llama.py, modeling_mistral.py and their configurations in transformers.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import PositiveFloat

from taetpu.interop.families.base import GATED, Count, Exported, TokenNumbers, choose_name, translate_choice
from taetpu.interop.families.rope import RopeFamily, write_plain_rope
from taetpu.interop.families.windows import SLIDING, with_windows, write_windows
from taetpu.interop.layouts import LINEAR, Rule, layer_rules, module_rules

LAYER = "model.layers.{i}"
PRE_NORMS = {"mixer_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
"""The norms before both branches."""
QK_NORMS = {"mixer.qk_norm.q": "self_attn.q_norm", "mixer.qk_norm.k": "self_attn.k_norm"}
"""The norms of queries and keys."""
ATTENTION_RULES = tuple(rule for x in "qkvo" for rule in layer_rules(f"{LAYER}.self_attn.{x}_proj", f"mixer.w{x}"))
MLP_RULES = tuple(rule for x in ("gate", "up", "down") for rule in layer_rules(f"{LAYER}.mlp.{x}_proj", f"ffn.{x}"))
BIASES = {"attention_bias": "mixer.bias", "mlp_bias": "ffn.bias"}
"""The settings of biases, which some architectures have."""


def llama_rules(
    norms: Mapping[str, str], ffn: tuple[Rule, ...] = MLP_RULES, attention: tuple[Rule, ...] = ATTENTION_RULES
) -> tuple[Rule, ...]:
    """Return the rules of an architecture that names its tensors as Llama does. Layer norms also have biases.

    Args:
        norms: The names of a layer's norms in taetpu, with those in transformers.
        ffn: The rules of the feed-forward networks.
        attention: The rules of attention.
    """
    return (
        Rule("model.embed_tokens.weight", "embedding.weight"),
        *attention,
        *ffn,
        *(
            Rule(f"{LAYER}.{theirs}.{part}", f"layers.{{i}}.{ours}.{part}")
            for ours, theirs in norms.items()
            for part in ("weight", "bias")
        ),
        *module_rules("model.norm", "norm"),
        Rule("lm_head.weight", "embedding.unembed", LINEAR),
    )


class LlamaLike(RopeFamily):
    """An architecture that names most settings as Llama does, with pre-norm and networks with a gate.

    Attributes:
        act: The setting with the activation.
        networks: The feed-forward networks by activation. An export of other networks has the first one.
    """

    rules: ClassVar = llama_rules(PRE_NORMS)
    act: ClassVar[str] = "hidden_act"
    networks: ClassVar = GATED
    choices: ClassVar = {"ffn.kind": tuple(dict.fromkeys(GATED.values()))}

    intermediate_size: Count
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    max_position_embeddings: Count | None = 2048
    rms_norm_eps: PositiveFloat = 1e-6

    @property
    def activation(self) -> str:
        """The activation of the feed-forward networks."""
        return getattr(self, self.act)

    def read(self) -> dict[str, Any]:
        """See `Family.read`."""
        return {
            "dim": self.hidden_size,
            "num_layers": self.num_hidden_layers,
            "mixer": {
                "kind": "attention",
                "num_heads": self.num_attention_heads,
                "num_kv_heads": self.num_key_value_heads,
                "head_dim": self.head_dim,
                "bias": getattr(self, "attention_bias", False),
            },
            "position": self.read_position(),
            "norm": {"kind": "rms", "eps": self.rms_norm_eps},
            "ffn": self.read_ffn(),
            **self.data_around,
        }

    def read_ffn(self) -> dict[str, Any]:
        """Return the data of the feed-forward networks."""
        kind = translate_choice(self.act, self.activation, self.networks)
        return {"kind": kind, "hidden": self.intermediate_size, "bias": getattr(self, "mlp_bias", False)}

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """See `Family.write`."""
        heads = ours.get("mixer.num_heads", 1)
        return {
            "vocab_size": ours.get("vocab_size"),
            "max_position_embeddings": ours.get("seq_len"),
            "hidden_size": ours.get("dim"),
            "num_hidden_layers": ours.get("num_layers"),
            "num_attention_heads": heads,
            "num_key_value_heads": ours.get("mixer.num_kv_heads", heads),
            "head_dim": ours.get("mixer.head_dim", 2 * max(1, ours.get("dim") // heads // 2)),
            "intermediate_size": ours.get("ffn.hidden", ours.get("dim")),
            cls.act: cls.fixed.get(cls.act) or choose_name(cls.networks, ours.get("ffn.kind")),
            "rms_norm_eps": ours.get("norm.eps", 1e-6),
            **write_plain_rope(ours.model),
            "attention_dropout": 0.0,
            "tie_word_embeddings": ours.get("embedding.kind") == "tied",
            **{name: ours.get(path, False) is not False for name, path in BIASES.items() if name in cls.model_fields},
        }


class SiluFamily(LlamaLike):
    """An architecture that names its activation `hidden_act`, with SiLU as the default."""

    hidden_act: str = "silu"


class BiasedFamily(SiluFamily):
    """An architecture with the settings of Llama."""

    bos_token_id: TokenNumbers = 1
    eos_token_id: TokenNumbers = 2
    attention_bias: bool = False
    mlp_bias: bool = False


class Llama(BiasedFamily):
    """Llama 2 and 3."""

    model_type = "llama"
    architecture = "LlamaForCausalLM"
    about = "Llama 2 and 3"
    harmless = ("is_llama_config", "rope_interleaved")


class WindowedFamily(LlamaLike):
    """An architecture all of whose layers have the sliding window, if there is one."""

    sliding_window: Count | None

    @property
    def window(self) -> int | None:
        """The width of the window."""
        return self.sliding_window

    def read(self) -> dict[str, Any]:
        """See `Family.read`."""
        types = [] if self.window is None else [SLIDING] * self.num_hidden_layers
        return with_windows(super().read(), types, self.window)

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """See `Family.write`."""
        return {**super().write(ours), "sliding_window": write_windows(ours)[1]}


class Mistral(WindowedFamily, SiluFamily):
    """Mistral."""

    model_type = "mistral"
    architecture = "MistralForCausalLM"
    about = "Mistral"

    bos_token_id: TokenNumbers = 1
    eos_token_id: TokenNumbers = 2
    num_key_value_heads: Count | None = 8
    max_position_embeddings: Count | None = 131072
    sliding_window: Count | None = 4096
