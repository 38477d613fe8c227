"""OPT.

The first two rows of the table of positions belong to padding. They are not read, and are written as zeros.

Source: modeling_opt.py and configuration_opt.py in transformers.
"""

from typing import Any, ClassVar

from taetpu.core.errors import UserError
from taetpu.interop.families.base import Count, Exported, NotNegative, TokenNumbers
from taetpu.interop.families.layer_norms import LayerNormFamily, Names, Rate
from taetpu.interop.layouts import LINEAR, PADDED, Rule, layer_rules, module_rules

LAYER = "model.decoder.layers.{i}"


class OPT(LayerNormFamily):
    """OPT."""

    model_type = "opt"
    architecture = "OPTForCausalLM"
    about = "OPT"
    rules = (
        Rule("model.decoder.embed_tokens.weight", "embedding.weight"),
        Rule("model.decoder.embed_positions.weight", "position.weight", PADDED),
        *(rule for x in "qkv" for rule in layer_rules(f"{LAYER}.self_attn.{x}_proj", f"mixer.w{x}")),
        *layer_rules(f"{LAYER}.self_attn.out_proj", "mixer.wo"),
        *layer_rules(f"{LAYER}.self_attn_layer_norm", "mixer_norm"),
        *layer_rules(f"{LAYER}.fc1", "ffn.up"),
        *layer_rules(f"{LAYER}.fc2", "ffn.down"),
        *layer_rules(f"{LAYER}.final_layer_norm", "ffn_norm"),
        *module_rules("model.decoder.final_layer_norm", "norm"),
        Rule("lm_head.weight", "embedding.unembed", LINEAR),
    )
    names = Names(hidden="ffn_dim", act="activation_function", dropouts=("dropout", "attention_dropout"))
    fixed: ClassVar = {"_remove_final_layer_norm": False}
    harmless = ("layerdrop",)
    std = "init_std"
    layer_norm_eps: ClassVar[float] = 1e-5

    bos_token_id: TokenNumbers = 2
    eos_token_id: TokenNumbers = 2
    pad_token_id: TokenNumbers = 1
    hidden_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    ffn_dim: Count
    max_position_embeddings: Count = 2048
    word_embed_proj_dim: Count | None = None
    activation_function: str = "relu"
    do_layer_norm_before: bool = True
    enable_bias: bool = True
    layer_norm_elementwise_affine: bool = True
    init_std: NotNegative = 0.02
    tie_word_embeddings: bool = True
    dropout: Rate = 0.1

    def read(self) -> dict[str, Any]:
        """See `Family.read`.

        Raises:
            UserError: If the embeddings have another width than the model, as in OPT 350M.
        """
        size, dim = self.word_embed_proj_dim, self.hidden_size
        if size not in (None, dim):
            problem = f"word_embed_proj_dim={size} is not supported: embeddings are projected to {dim}"
            remedy = f"Use a model with word_embed_proj_dim={dim}, which all OPT models but 350M have."
            raise UserError(problem, path=("word_embed_proj_dim",), remedy=remedy)
        made = super().read()
        made["norm"] |= {
            "placement": "pre" if self.do_layer_norm_before else "post",
            "bias": self.layer_norm_elementwise_affine,
            "affine": self.layer_norm_elementwise_affine,
        }
        return {**made, "position": "learned", "bias": self.enable_bias}

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """See `Family.write`."""
        made = super().write(ours)
        del made["layer_norm_eps"]
        return {
            **made,
            "word_embed_proj_dim": ours.get("dim"),
            "do_layer_norm_before": ours.get("norm.placement") != "post",
            "enable_bias": bool(ours.get("mixer.bias", False)),
            "layer_norm_elementwise_affine": ours.get("norm.affine", True),
        }
