"""GPT-2.

The weight of Conv1D has the layout (in, out), as in taetpu. c_attn concatenates queries, keys and values. Files of
OpenAI contain attention masks and lack the head, which is tied to the embedding.

In checkpoints of nanoGPT, matrices are those of torch's Linear, and the config has nanoGPT's names.

Source: modeling_gpt2.py and configuration_gpt2.py in transformers; model.py in nanoGPT.
"""

from dataclasses import replace
from typing import Any, ClassVar

from pydantic import PositiveFloat

from taetpu.interop.families.base import Count, Exported, TokenNumbers
from taetpu.interop.families.layer_norms import SUMMARY, LayerNormFamily, Names, Rate
from taetpu.interop.layouts import LINEAR, PLAIN, Layout, Rule, layer_rules, module_rules

LAYER = "transformer.h.{i}"


def gpt2_rules(layout: Layout) -> tuple[Rule, ...]:
    """Return the rules of all tensors, in which matrices have the given layout."""
    return (
        Rule("transformer.wte.weight", "embedding.weight"),
        Rule("transformer.wpe.weight", "position.weight"),
        *layer_rules(f"{LAYER}.ln_1", "mixer_norm"),
        *layer_rules(f"{LAYER}.attn.c_attn", "mixer.wq mixer.wk mixer.wv", layout),
        *layer_rules(f"{LAYER}.attn.c_proj", "mixer.wo", layout),
        *layer_rules(f"{LAYER}.ln_2", "ffn_norm"),
        *layer_rules(f"{LAYER}.mlp.c_fc", "ffn.up", layout),
        *layer_rules(f"{LAYER}.mlp.c_proj", "ffn.down", layout),
        *module_rules("transformer.ln_f", "norm"),
        Rule("lm_head.weight", "embedding.unembed", LINEAR),
    )


class GPTFamily(LayerNormFamily):
    """What GPT-2, nanoGPT and GPT-J share."""

    prefix = "transformer."
    names = Names(
        dim="n_embd",
        num_layers="n_layer",
        num_heads="n_head",
        hidden="n_inner",
        act="activation_function",
        eps="layer_norm_epsilon",
        dropouts=("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    )
    seq_len = "n_positions"
    aliases: ClassVar = {
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    }
    ignored = r"\.attn\.(bias|masked_bias)$"

    n_embd: Count
    n_layer: Count
    n_head: Count


class GPT2(GPTFamily):
    """GPT-2."""

    model_type = "gpt2"
    architecture = "GPT2LMHeadModel"
    about = "GPT-2"
    rules = gpt2_rules(PLAIN)
    fixed: ClassVar = {"scale_attn_weights": True, "add_cross_attention": False}
    harmless = ("n_ctx", "reorder_and_upcast_attn", "predict_special_tokens", *SUMMARY)

    bos_token_id: TokenNumbers = 50256
    eos_token_id: TokenNumbers = 50256
    n_positions: Count
    n_inner: Count | None = None
    activation_function: str = "gelu_new"
    layer_norm_epsilon: PositiveFloat = 1e-5
    tie_word_embeddings: bool = True
    resid_pdrop: Rate = 0.1
    scale_attn_by_inverse_layer_idx: bool = False

    def read(self) -> dict[str, Any]:
        """See `Family.read`."""
        made = {**super().read(), "position": "learned"}
        made["init"]["kind"] = "gpt2-scaled"
        if self.scale_attn_by_inverse_layer_idx:
            scales = [(self.n_embd // self.n_head) ** -0.5 / (i + 1) for i in range(self.n_layer)]
            mixers = [{**made["mixer"], "scale": scale} for scale in scales]
            made |= {"mixer": mixers[0], "layers": {i: {"mixer": mixer} for i, mixer in enumerate(mixers) if i}}
        return made

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """See `Family.write`."""
        scales = [layer.get("mixer.scale") for layer in ours.layers]
        by_layer = len(scales) > 1 and scales[1] != scales[0]
        return {**super().write(ours), "scale_attn_by_inverse_layer_idx": by_layer}


class NanoGPT(GPTFamily):
    """nanoGPT. Its checkpoints are read; an export of such a model has the layout of GPT-2."""

    model_type = "nanogpt"
    architecture = "GPT"
    about = "nanoGPT"
    rules = gpt2_rules(LINEAR)
    names = replace(GPTFamily.names, dropouts=("dropout",))
    seq_len = "block_size"
    fixed: ClassVar = {"tie_word_embeddings": True}
    harmless = GPT2.harmless
    n_inner: ClassVar[None] = None
    activation_function: ClassVar[str] = "gelu"
    layer_norm_epsilon: ClassVar[float] = 1e-5

    block_size: Count
    bias: bool = True
    dropout: Rate = 0.0
    tie_word_embeddings: bool = True

    def read(self) -> dict[str, Any]:
        """See `Family.read`."""
        made = {**super().read(), "position": "learned", "bias": self.bias}
        made["init"]["kind"] = "gpt2-scaled"
        return made
