"""BLOOM and Falcon, whose queries, keys and values are one projection.

BLOOM has ALiBi and a norm of the embeddings. The first Falcon models have parallel branches after one norm and one
key-value head, later ones groups of heads, and norms for each branch.

Source: modeling_bloom.py, modeling_falcon.py and their configurations in transformers.
"""

from typing import Any, ClassVar

from pydantic import PositiveFloat

from taetpu.core.errors import UserError
from taetpu.interop.families.base import Count, Exported, TokenNumbers
from taetpu.interop.families.layer_norms import LayerNormFamily, Names, Rate
from taetpu.interop.families.rope import RopeFamily, write_plain_rope
from taetpu.interop.layouts import HEADS_FUSED, LINEAR, Rule, layer_rules, module_rules

LAYER = "transformer.h.{i}"
RULES = (
    Rule("transformer.word_embeddings.weight", "embedding.weight"),
    *layer_rules(f"{LAYER}.input_layernorm", "mixer_norm"),
    *layer_rules(f"{LAYER}.self_attention.query_key_value", "mixer.wq mixer.wk mixer.wv", HEADS_FUSED),
    *layer_rules(f"{LAYER}.self_attention.dense", "mixer.wo"),
    *layer_rules(f"{LAYER}.post_attention_layernorm", "ffn_norm"),
    *layer_rules(f"{LAYER}.mlp.dense_h_to_4h", "ffn.up"),
    *layer_rules(f"{LAYER}.mlp.dense_4h_to_h", "ffn.down"),
    *module_rules("transformer.ln_f", "norm"),
    Rule("lm_head.weight", "embedding.unembed", LINEAR),
)


class Bloom(LayerNormFamily):
    """BLOOM."""

    model_type = "bloom"
    architecture = "BloomForCausalLM"
    about = "BLOOM"
    prefix = "transformer."
    rules = (*RULES, *module_rules("transformer.word_embeddings_layernorm", "stem.norm"))
    names = Names(num_layers="n_layer", num_heads="n_head", eps="layer_norm_epsilon")
    fixed: ClassVar = {"apply_residual_connection_post_layernorm": False, "n_inner": None}
    harmless = (
        *("slow_but_exact", "attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion"),
        *("offset_alibi", "skip_bias_add", "skip_bias_add_qkv"),
    )
    aliases: ClassVar = {"n_embed": "hidden_size", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
    choices: ClassVar = {}
    seq_len = "seq_length"
    intermediate_size: ClassVar[None] = None
    hidden_act: ClassVar[str] = "gelu_new"

    bos_token_id: TokenNumbers = 1
    eos_token_id: TokenNumbers = 2
    hidden_size: Count
    n_layer: Count
    n_head: Count
    seq_length: Count | None = None
    layer_norm_epsilon: PositiveFloat = 1e-5
    tie_word_embeddings: bool = True
    hidden_dropout: Rate = 0.0

    def read(self) -> dict[str, Any]:
        """See `Family.read`."""
        made = super().read()
        return {**made, "position": "alibi", "stem": {"kind": "norm", "norm": dict(made["norm"])}}

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """See `Family.write`."""
        made = super().write(ours)
        del made["intermediate_size"], made["hidden_act"]
        return made


NORMS = {"input_layernorm": "ln_attn", "post_attention_layernorm": "ln_mlp"}
"""The names of Falcon's norms where each of two parallel branches has one."""


class Falcon(LayerNormFamily, RopeFamily):
    """Falcon."""

    model_type = "falcon"
    architecture = "FalconForCausalLM"
    about = "Falcon 7B, 40B and 180B"
    prefix = "transformer."
    rules = RULES
    names = Names(hidden="ffn_hidden_size", act="activation", eps="layer_norm_epsilon")
    aliases: ClassVar = {"n_embed": "hidden_size"}
    renamed = tuple((rf"\.{theirs}\.", f".{ours}.") for ours, theirs in NORMS.items())

    bos_token_id: TokenNumbers = 11
    eos_token_id: TokenNumbers = 11
    num_kv_heads: Count | None = None
    ffn_hidden_size: Count | None = None
    max_position_embeddings: Count | None = 2048
    activation: str = "gelu"
    layer_norm_epsilon: PositiveFloat = 1e-5
    alibi: bool = False
    new_decoder_architecture: bool = False
    multi_query: bool = True
    parallel_attn: bool = True
    num_ln_in_parallel_attn: Count | None = None
    bias: bool = False
    tie_word_embeddings: bool = True
    hidden_dropout: Rate = 0.0

    def read(self) -> dict[str, Any]:
        """See `Family.read`.

        Raises:
            UserError: If the model has ALiBi, or norms that transformers does not compute.
        """
        new, norms = self.new_decoder_architecture, self.num_ln_in_parallel_attn
        if self.alibi:
            problem = "alibi=True is not supported: Falcon rounds the slopes to bfloat16, and taetpu has no such kind"
            raise UserError(problem, path=("alibi",), remedy="Use a Falcon model with RoPE, such as Falcon 7B.")
        norms = (2 if new else 1) if norms is None else norms
        if norms not in ((1, 2) if new else (1,)) or (new and not self.parallel_attn):
            problem = f"num_ln_in_parallel_attn={norms} and parallel_attn={self.parallel_attn} are not supported"
            remedy = f"transformers does not compute such a model with new_decoder_architecture={new}. "
            raise UserError(problem, path=("num_ln_in_parallel_attn",), remedy=f"{remedy}Correct the config.")
        made = super().read()
        made["mixer"]["num_kv_heads"] = self.num_kv_heads if new else 1 if self.multi_query else None
        made["norm"]["bias"] = True
        order = "sequential" if not self.parallel_attn else "parallel" if norms == 1 else "parallel-two-norms"
        return {**made, "position": self.read_position(), "order": order, "bias": self.bias}

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """See `Family.write`."""
        heads, order = ours.get("mixer.num_heads", 1), ours.get("order.kind")
        kv_heads = ours.get("mixer.num_kv_heads", heads)
        new = order == "parallel-two-norms" or (order == "parallel" and kv_heads not in (1, heads))
        return {
            **super().write(ours),
            **write_plain_rope(ours.model),
            "num_kv_heads": kv_heads,
            "new_decoder_architecture": new,
            "multi_query": kv_heads == 1 and not new,
            "parallel_attn": order != "sequential",
            "num_ln_in_parallel_attn": (2 if order == "parallel-two-norms" else 1) if new else None,
            "bias": bool(ours.get("mixer.bias", False)),
        }

    def spell(self, name: str) -> str:
        """Return the name of a tensor in a model with these settings, from its name in `rules`."""
        if self.num_ln_in_parallel_attn == 2:
            for ours, theirs in NORMS.items():
                name = name.replace(ours, theirs)
        return name
