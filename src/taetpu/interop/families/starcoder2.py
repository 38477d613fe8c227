"""StarCoder 2: layer norms, networks of two matrices, RoPE and grouped key-value heads.

Source: modeling_starcoder2.py and configuration_starcoder2.py in transformers.
"""

from typing import Any

from pydantic import PositiveFloat

from taetpu.interop.families.base import DEFAULT_LENGTH, Count, Exported, Family, NotNegative, Settings, TokenNumbers
from taetpu.interop.families.layer_norms import MLP_CHOICES, Names, Rate
from taetpu.interop.families.llama import LAYER, PRE_NORMS, llama_rules
from taetpu.interop.families.rope import RopeReader, RopeSettings, write_plain_rope
from taetpu.interop.families.windows import SLIDING, with_windows, write_windows
from taetpu.interop.layouts import layer_rules, norm_biases

NAMES = Names(eps="norm_epsilon", dropouts=("residual_dropout", "embedding_dropout", "attention_dropout"))


class StarCoder2Settings(RopeSettings):
    """The settings of StarCoder 2."""

    bos_token_id: TokenNumbers = 50256
    eos_token_id: TokenNumbers = 50256
    hidden_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    num_key_value_heads: Count = 2
    intermediate_size: Count
    max_position_embeddings: Count | None = 4096
    hidden_act: str = "gelu_pytorch_tanh"
    norm_epsilon: PositiveFloat = 1e-5
    sliding_window: Count | None = None
    use_bias: bool = True
    initializer_range: NotNegative = 0.018042
    tie_word_embeddings: bool = True
    residual_dropout: Rate = 0.0


def read_starcoder2(config: Settings) -> dict[str, Any]:
    """Convert StarCoder 2 settings to the data of a `ModelConfig`. All layers have the window, if there is one."""
    made = NAMES.read(config)
    made["mixer"]["num_kv_heads"] = config["num_key_value_heads"]
    made["norm"]["bias"] = True
    position = RopeReader().read(config, config["max_position_embeddings"] or DEFAULT_LENGTH)
    types = [SLIDING] * config["num_hidden_layers"] if config["sliding_window"] else []
    return {**with_windows(made, types, config["sliding_window"]), "position": position, "bias": config["use_bias"]}


def write_starcoder2(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to StarCoder 2 settings."""
    return {
        **NAMES.write(ours),
        **write_plain_rope(ours.model),
        "num_key_value_heads": ours.get("mixer.num_kv_heads", ours.get("mixer.num_heads", 1)),
        "sliding_window": write_windows(ours)[1],
        "use_bias": bool(ours.get("mixer.bias", False)),
    }


STARCODER2 = Family(
    model_type="starcoder2",
    architecture="Starcoder2ForCausalLM",
    about="StarCoder 2",
    rules=(
        *llama_rules(
            PRE_NORMS, (*layer_rules(f"{LAYER}.mlp.c_fc", "ffn.up"), *layer_rules(f"{LAYER}.mlp.c_proj", "ffn.down"))
        ),
        *norm_biases(PRE_NORMS),
    ),
    settings=StarCoder2Settings,
    read=read_starcoder2,
    write=write_starcoder2,
    choices=MLP_CHOICES,
)
