"""GPT-Neo, which TinyStories models are: attention without a scale, local in some layers.

Source: modeling_gpt_neo.py and configuration_gpt_neo.py in transformers.
"""

from typing import Any, ClassVar

from pydantic import PositiveFloat

from taetpu.core.errors import UserError
from taetpu.interop.families.base import Count, Exported, TokenNumbers
from taetpu.interop.families.layer_norms import SUMMARY, LayerNormFamily, Names, Rate
from taetpu.interop.families.windows import FULL, SLIDING, with_windows, write_windows
from taetpu.interop.layouts import LINEAR, Rule, layer_rules, module_rules

LAYER = "transformer.h.{i}"
TYPES = {"global": FULL, "local": SLIDING}


class GPTNeo(LayerNormFamily):
    """GPT-Neo."""

    model_type = "gpt_neo"
    architecture = "GPTNeoForCausalLM"
    about = "GPT-Neo, TinyStories"
    prefix = "transformer."
    rules = (
        Rule("transformer.wte.weight", "embedding.weight"),
        Rule("transformer.wpe.weight", "position.weight"),
        *(rule for x in "qkv" for rule in layer_rules(f"{LAYER}.attn.attention.{x}_proj", f"mixer.w{x}")),
        *layer_rules(f"{LAYER}.attn.attention.out_proj", "mixer.wo"),
        *layer_rules(f"{LAYER}.ln_1", "mixer_norm"),
        *layer_rules(f"{LAYER}.mlp.c_fc", "ffn.up"),
        *layer_rules(f"{LAYER}.mlp.c_proj", "ffn.down"),
        *layer_rules(f"{LAYER}.ln_2", "ffn_norm"),
        *module_rules("transformer.ln_f", "norm"),
        Rule("lm_head.weight", "embedding.unembed", LINEAR),
    )
    names = Names(
        num_layers="num_layers",
        num_heads="num_heads",
        act="activation_function",
        eps="layer_norm_epsilon",
        dropouts=("resid_dropout", "embed_dropout", "attention_dropout"),
    )
    harmless = ("attention_layers", "embed_dropout", *SUMMARY)
    aliases: ClassVar = {"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"}
    ignored = r"\.attn\.attention\.(bias|masked_bias)$"

    bos_token_id: TokenNumbers = 50256
    eos_token_id: TokenNumbers = 50256
    hidden_size: Count
    num_layers: Count
    num_heads: Count
    intermediate_size: Count | None = None
    max_position_embeddings: Count = 2048
    window_size: Count = 256
    attention_types: tuple[tuple[tuple[str, ...], Count], ...] | None = None
    activation_function: str = "gelu_new"
    layer_norm_epsilon: PositiveFloat = 1e-5
    tie_word_embeddings: bool = True
    resid_dropout: Rate = 0.0

    def read(self) -> dict[str, Any]:
        """See `Family.read`.

        Raises:
            UserError: If `attention_types` has an unknown type, or not as many types as the model has layers.
        """
        made = super().read()
        made["mixer"] |= {"bias": "out", "scale": 1.0}
        given = self.attention_types or ((("global", "local"), 12),)
        number = sum(len(types) * count for types, count in given)
        if number != self.num_layers:
            problem = f"attention_types has {number} types, expected one for each of {self.num_layers} layers"
            raise UserError(problem, path=("attention_types",), remedy="Correct attention_types or num_layers.")
        names = [name for types, count in given for name in types * count]
        if unknown := set(names) - set(TYPES):
            problem = f"attention_types contains {min(unknown)!r}, which is not supported"
            raise UserError(problem, path=("attention_types",), remedy=f"Use {' or '.join(TYPES)}.")
        return {**with_windows(made, [TYPES[name] for name in names], self.window_size), "position": "learned"}

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """See `Family.write`."""
        types, width = write_windows(ours)
        names = ["global" if kind == FULL else "local" for kind in types]
        return {**super().write(ours), "attention_types": [[names, 1]], "window_size": width or 256}
