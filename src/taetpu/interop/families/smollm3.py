"""SmolLM 3: Llama in which some layers have no positions.

Source: modeling_smollm3.py and configuration_smollm3.py in transformers.
"""

from typing import Any

from taetpu.core.errors import UserError
from taetpu.interop.families.base import Count, Exported, Family, Settings, TokenNumbers
from taetpu.interop.families.llama import CHOICES, PRE_NORMS, LlamaSettings, llama_rules, read_common, write_llama
from taetpu.interop.families.rope import RopeReader, write_plain_rope
from taetpu.interop.families.windows import FULL, SLIDING, layer_keys, read_layer_types, with_windows, write_windows


class SmolLM3Settings(LlamaSettings):
    """The settings of SmolLM 3."""

    bos_token_id: TokenNumbers = 128000
    eos_token_id: TokenNumbers = 128001
    pad_token_id: TokenNumbers = 128004
    num_key_value_heads: Count | None = 4
    max_position_embeddings: Count | None = 32768
    tie_word_embeddings: bool = True
    use_sliding_window: bool = False
    sliding_window: Count | None = None
    layer_types: tuple[str, ...] | None = None
    no_rope_layers: tuple[int, ...] | None = None
    no_rope_layer_interval: Count = 4


def read_smollm3(config: Settings) -> dict[str, Any]:
    """Convert SmolLM 3 settings to the data of a `ModelConfig`.

    `no_rope_layers` has a 1 for each layer with RoPE, and a 0 for others. By default, every fourth layer has none.

    Raises:
        UserError: If `no_rope_layers` does not have an entry for each layer.
    """
    number, every = config["num_hidden_layers"], config["no_rope_layer_interval"]
    given = config["no_rope_layers"]
    rotated = [bool((i + 1) % every) for i in range(number)] if given is None else [bool(entry) for entry in given]
    if len(rotated) != number:
        problem = f"no_rope_layers has {len(rotated)} entries, expected one for each of {number} layers"
        raise UserError(problem, path=("no_rope_layers",), remedy="Correct no_rope_layers or num_hidden_layers.")
    width = config["sliding_window"]
    windows = config["use_sliding_window"] and width is not None
    types = read_layer_types(config, [SLIDING if windows and not rope else FULL for rope in rotated])
    made = with_windows(read_common(config, rope=RopeReader(2_000_000.0)), types, width)
    if not any(rotated):
        return {**made, "position": "none"}
    plain = [i for i, rope in enumerate(rotated) if not rope]
    return {**made, "layers": {key: {"position": "none"} for key in layer_keys(plain, number)}} if plain else made


def write_smollm3(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to SmolLM 3 settings."""
    types, width = write_windows(ours)
    rotated = [layer.get("position.kind") != "none" for layer in ours.layers]
    first = next((layer for layer, rope in zip(ours.layers, rotated, strict=True) if rope), ours.model)
    made = write_llama(ours)
    made.pop("rope_scaling", None)
    return {
        **made,
        **write_plain_rope(first),
        "use_sliding_window": width is not None,
        "sliding_window": width,
        "layer_types": types,
        "no_rope_layers": [int(rope) for rope in rotated],
    }


SMOLLM3 = Family(
    model_type="smollm3",
    architecture="SmolLM3ForCausalLM",
    about="SmolLM 3",
    rules=llama_rules(PRE_NORMS),
    settings=SmolLM3Settings,
    read=read_smollm3,
    write=write_smollm3,
    choices=CHOICES,
    harmless=("max_window_layers",),
)
