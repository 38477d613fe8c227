"""Gemma 1, 2 and 3, the text models.

The weights of norms are stored as their difference from 1. Embeddings are multiplied by sqrt(dim), rounded to the dtype
of activations, as transformers does; a model in float32 is computed with the factor in float32.

In Gemma 1, `post_attention_layernorm` is the norm before the feed-forward network; in Gemma 2 and 3, it is that of the
attention's output. Files of multimodal Gemma 3 models contain the text model below `language_model`. The vision tower
is not read.

Source: modeling_gemma.py, modeling_gemma2.py, modeling_gemma3.py and their configurations in transformers.
"""

from typing import Any, ClassVar

from pydantic import PositiveFloat

from taetpu.core.errors import UserError
from taetpu.interop.families.base import Count, Exported, NotNegative, TokenNumbers
from taetpu.interop.families.llama import QK_NORMS, LlamaLike, llama_rules
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

TANH = "gelu_pytorch_tanh"
SANDWICH_NORMS = {
    "mixer_norm.before": "input_layernorm",
    "mixer_norm.after": "post_attention_layernorm",
    "ffn_norm.before": "pre_feedforward_layernorm",
    "ffn_norm.after": "post_feedforward_layernorm",
}
BASES = {FULL: 1_000_000.0, SLIDING: 10_000.0}
"""The bases of Gemma 3."""


class GemmaFamily(LlamaLike):
    """What all versions share."""

    placement: ClassVar[str] = "sandwich"
    fixed: ClassVar = {"use_bidirectional_attention": False}

    bos_token_id: TokenNumbers = 2
    eos_token_id: TokenNumbers = 1
    pad_token_id: TokenNumbers = 0
    head_dim: Count | None = 256
    num_key_value_heads: Count | None = 4
    max_position_embeddings: Count | None = 8192
    tie_word_embeddings: bool = True
    attention_bias: bool = False

    def read(self) -> dict[str, Any]:
        """See `Family.read`."""
        made = super().read()
        made["norm"] |= {"weight": "unit-offset", "placement": self.placement}
        return {**made, "stem": "scale"}


class Gemma(GemmaFamily):
    """Gemma 1, in which `gelu` means the tanh approximation."""

    model_type = "gemma"
    architecture = "GemmaForCausalLM"
    about = "Gemma 1"
    placement = "pre"
    choices: ClassVar = {"ffn.kind": tuple(kind for kind in LlamaLike.choices["ffn.kind"] if kind != "geglu")}

    num_key_value_heads: Count | None = 16
    hidden_act: str = TANH
    hidden_activation: str | None = None

    @property
    def activation(self) -> str:
        """The activation of the feed-forward networks.

        Raises:
            UserError: If both settings are present and differ: versions of transformers then differ too.
        """
        act, other = (TANH if name == "gelu" else name for name in (self.hidden_act, self.hidden_activation))
        if other not in (None, act):
            problem = f"hidden_act={act!r} and hidden_activation={other!r} are different activations"
            remedy = "Remove the one with which it was not trained."
            raise UserError(problem, path=("hidden_activation",), remedy=remedy)
        return str(act)


class Gemma2(GemmaFamily):
    """Gemma 2. By default, every second layer has a window."""

    model_type = "gemma2"
    architecture = "Gemma2ForCausalLM"
    about = "Gemma 2"
    rules = llama_rules(SANDWICH_NORMS)
    act = "hidden_activation"
    harmless = ("hidden_act", "sliding_window_size")

    hidden_activation: str = TANH
    query_pre_attn_scalar: PositiveFloat = 256
    sliding_window: Count | None = 4096
    layer_types: tuple[str, ...] | None = None
    final_logit_softcapping: NotNegative | None = 30.0
    attn_logit_softcapping: NotNegative | None = 50.0

    def read_types(self) -> list[str]:
        """Return the type of each layer."""
        return read_layer_types(self, every_nth_full(self.num_hidden_layers, 2))

    def read(self) -> dict[str, Any]:
        """See `Family.read`."""
        made = super().read()
        if self.query_pre_attn_scalar != self.head_dim:
            made["mixer"]["scale"] = self.query_pre_attn_scalar**-0.5
        if self.attn_logit_softcapping:
            made["mixer"]["scores"] = {"kind": "softcap", "cap": float(self.attn_logit_softcapping)}
        if self.final_logit_softcapping:
            made["logits"] = {"kind": "softcap", "cap": float(self.final_logit_softcapping)}
        return with_windows(made, self.read_types(), self.sliding_window)

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """See `Family.write`. transformers requires an integer as scalar of the scores."""
        types, width = write_windows(ours)
        return {
            **super().write(ours),
            "query_pre_attn_scalar": max(1, round(ours.get("mixer.scale", 1.0) ** -2)),
            "attn_logit_softcapping": ours.get("mixer.scores.cap"),
            "final_logit_softcapping": ours.get("logits.cap"),
            "sliding_window": width,
            "layer_types": types,
        }


class Gemma3(Gemma2):
    """Gemma 3.

    By default, every sixth layer is a full one. Layers with a window have another base of RoPE, without scaling.
    """

    model_type = "gemma3_text"
    architecture = "Gemma3ForCausalLM"
    about = "Gemma 3"
    rules = llama_rules({**SANDWICH_NORMS, **QK_NORMS})
    fixed: ClassVar = {**GemmaFamily.fixed, "attn_logit_softcapping": None}
    harmless = ("hidden_act", "_sliding_window_pattern")
    renamed = (
        (r"^(model\.)?language_model\.(model\.)?(?!lm_head)", "model."),
        (r"^language_model\.lm_head\.", "lm_head."),
    )

    vocab_size: Count = 262208
    num_attention_heads: Count = 8
    max_position_embeddings: Count | None = 131072
    final_logit_softcapping: NotNegative | None = None
    rope_local_base_freq: PositiveFloat | None = None
    sliding_window_pattern: Count = 6

    def read_types(self) -> list[str]:
        """Return the type of each layer."""
        return read_layer_types(self, every_nth_full(self.num_hidden_layers, self.sliding_window_pattern))

    def read_position(self) -> dict[str, Any]:
        """Return nothing: `read` reads the position of each type of layer."""
        return {}

    def read(self) -> dict[str, Any]:
        """See `Family.read`."""
        made = super().read()
        made["mixer"]["qk_norm"] = {"kind": "rms", "weight": "unit-offset", "eps": self.rms_norm_eps}
        given = {FULL: self.rope_theta, SLIDING: self.rope_local_base_freq}
        return with_positions(made, self.read_types(), read_positions_by_type(self, BASES, given))

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """See `Family.write`."""
        made = super().write(ours)
        positions = write_positions_by_type(ours, made["layer_types"], BASES)
        made.pop("rope_scaling", None)
        return {
            **made,
            **positions,
            "sliding_window": made["sliding_window"] or 4096,
            "attn_logit_softcapping": None,
            "rope_local_base_freq": positions["rope_parameters"][SLIDING]["rope_theta"],
        }


MULTIMODAL = {"gemma3": "gemma3_text"}
"""The types of models whose `text_config` is read, with the type of their text model."""
VISION = r"^(model\.)?(vision_tower|multi_modal_projector)\."
"""The pattern of the tensors of a multimodal model that its text model does not use."""
