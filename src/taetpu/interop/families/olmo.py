"""OLMo 1, with layer norms without weights; OLMo 2 and 3, with norms on the outputs of branches.

OLMo 2 and 3 normalise all heads of queries and keys together. In OLMo 3, some layers have a window.

Source: modeling_olmo.py, modeling_olmo2.py, modeling_olmo3.py and their configurations in transformers.
"""

from typing import Any

from pydantic import PositiveFloat

from taetpu.interop.families.base import Count, Exported, Family, Settings, TokenNumbers
from taetpu.interop.families.llama import (
    CHOICES,
    PRE_NORMS,
    QK_NORMS,
    ActivationSettings,
    llama_rules,
    read_common,
    write_biased,
)
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

NORMS = {"mixer_norm": "post_attention_layernorm", "ffn_norm": "post_feedforward_layernorm", **QK_NORMS}
BASES = {FULL: 500_000.0, SLIDING: 500_000.0}


class OlmoSettings(ActivationSettings):
    """The settings of OLMo 1."""

    eos_token_id: TokenNumbers = 50279
    pad_token_id: TokenNumbers = 1
    attention_bias: bool = False


class Olmo2Settings(OlmoSettings):
    """The settings of OLMo 2."""

    rms_norm_eps: PositiveFloat = 1e-5


class Olmo3Settings(Olmo2Settings):
    """The settings of OLMo 3."""

    sliding_window: Count | None = 4096
    layer_types: tuple[str, ...] | None = None


def read_olmo(config: Settings) -> dict[str, Any]:
    """Convert OLMo 1 settings to the data of a `ModelConfig`."""
    return {**read_common(config), "norm": {"kind": "layer", "eps": 1e-5, "affine": False}}


def write_olmo(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to OLMo 1 settings."""
    made = write_biased(ours)
    del made["rms_norm_eps"]
    return made


def read_olmo2(config: Settings) -> dict[str, Any]:
    """Convert OLMo 2 settings to the data of a `ModelConfig`."""
    made = read_common(config)
    made["mixer"]["qk_norm"] = {"kind": "rms", "over": "all", "eps": config["rms_norm_eps"]}
    made["norm"]["placement"] = "output"
    return made


def read_olmo3(config: Settings) -> dict[str, Any]:
    """Convert OLMo 3 settings to the data of a `ModelConfig`. By default, every fourth layer is a full one."""
    made = read_olmo2({**config, "rope_parameters": None, "rope_scaling": None})
    types = read_layer_types(config, every_nth_full(config["num_hidden_layers"], 4))
    positions = read_positions_by_type(config, BASES, {FULL: config["rope_theta"], SLIDING: None})
    return with_positions(with_windows(made, types, config["sliding_window"]), types, positions)


def write_olmo3(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to OLMo 3 settings."""
    types, width = write_windows(ours)
    made = {**write_biased(ours), "sliding_window": width or 4096, "layer_types": types}
    return {**made, **write_positions_by_type(ours, types, BASES)}


OLMO, OLMO2, OLMO3 = (
    Family(
        model_type=name,
        architecture=f"{name.capitalize()}ForCausalLM",
        about=about,
        prefix="model.",
        rules=llama_rules(norms),
        settings=settings,
        read=read,
        write=write,
        fixed=fixed,
        choices=CHOICES,
    )
    for name, about, norms, settings, read, write, fixed in (
        ("olmo", "OLMo 1", PRE_NORMS, OlmoSettings, read_olmo, write_olmo, {"clip_qkv": None}),
        ("olmo2", "OLMo 2", NORMS, Olmo2Settings, read_olmo2, write_biased, {}),
        ("olmo3", "OLMo 3", NORMS, Olmo3Settings, read_olmo3, write_olmo3, {}),
    )
)
