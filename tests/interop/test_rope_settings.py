"""RoPE settings of all families and styles of config have the frequencies that the class of transformers computes."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from tests.interop.cases import LLAMA, TYPES, UNKNOWN
from tests.suites import by_default

from taetpu.core.errors import UserError
from taetpu.interop.families import FAMILIES
from taetpu.interop.families.rope import RopeFamily
from taetpu.interop.huggingface import import_config
from taetpu.nn.common import Context

SIZES = {**LLAMA, "head_dim": 16, "max_position_embeddings": 64}
NEOX = {
    "vocab_size": 11, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20,
    "max_position_embeddings": 64, **UNKNOWN,
}  # fmt: skip
NESTED_FAMILIES = ("gemma3_text", "olmo3", "modernbert")
FLAT = [name for name, family in FAMILIES.items() if issubclass(family, RopeFamily) and name not in NESTED_FAMILIES]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 4.0, "beta_slow": 0.5}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 0.5, "high_freq_factor": 2.0}
FACTORS = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
ENTRIES = {
    "none": {},
    "default": {"rope_type": "default"},
    "default-unused": {"rope_type": "default", "factor": 4.0, "attention_factor": 2.0, "mrope_section": [2, 2, 4]},
    "linear": {"rope_type": "linear", "factor": 2.0},
    "linear-unused": {"rope_type": "linear", "factor": 2, "original_max_position_embeddings": 16, "beta_fast": 4.0},
    "yarn": YARN,
    "yarn-plain": {"rope_type": "yarn", "factor": 2.0},
    "yarn-zero-beta": {**YARN, "beta_fast": 0, "beta_slow": 0},
    "yarn-untruncated": {**YARN, "truncate": False},
    "yarn-truncate-null": {**YARN, "truncate": None},
    "yarn-attention": {**YARN, "attention_factor": 1.7},
    "yarn-mscale": {**YARN, "mscale": 0.5, "mscale_all_dim": 0.9},
    "yarn-one-mscale": {**YARN, "mscale": 0.5},
    "yarn-no-factor": {key: value for key, value in YARN.items() if key != "factor"},
    "yarn-null-factor": {**YARN, "factor": None},
    "llama3": {**LLAMA3, "original_max_position_embeddings": 16},
    "llama3-plain": LLAMA3,
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "longrope": {"rope_type": "longrope", "factor": 2.0, "original_max_position_embeddings": 16, **FACTORS},
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.5},
    "unknown": {"rope_type": "su", "factor": 2.0},
}
OTHER = {"rope_type": "linear", "factor": 3.0, "rope_theta": 70.0}


def as_type(entry: dict) -> dict:
    """Return an entry with the key `type` of earlier versions."""
    return {"type" if key == "rope_type" else key: value for key, value in entry.items()}


STYLES = {
    "new": lambda entry: {"rope_parameters": {"rope_theta": 50.0, **entry}},
    "new-outer-base": lambda entry: {"rope_parameters": entry, "rope_theta": 50.0},
    "new-both-bases": lambda entry: {"rope_parameters": {"rope_theta": 50.0, **entry}, "rope_theta": 90.0},
    "new-share": lambda entry: {"rope_parameters": {"rope_theta": 50.0, "partial_rotary_factor": 0.5, **entry}},
    "new-outer-share": lambda entry: {"rope_parameters": {"rope_theta": 50, **entry}, "partial_rotary_factor": 0.5},
    "new-outer-length": lambda entry: {"rope_parameters": entry, "original_max_position_embeddings": 8},
    "old": lambda entry: {"rope_theta": 50.0, "rope_scaling": entry or None},
    "old-type": lambda entry: {"rope_theta": 50.0, "rope_scaling": as_type(entry) or None},
    "old-no-base": lambda entry: {"rope_scaling": entry or None},
    "old-inner-base": lambda entry: {"rope_scaling": {**entry, "rope_theta": 50.0}},
    "old-neox": lambda entry: {"rotary_emb_base": 50, "rotary_pct": 0.5, "rope_scaling": entry or None},
    "both": lambda entry: {"rope_parameters": OTHER, "rope_scaling": entry or None},
    "both-base": lambda entry: {"rope_parameters": OTHER, "rope_scaling": as_type(entry) or None, "rope_theta": 90.0},
}
"""The ways in which a config states the settings of RoPE that all layers share."""
NESTED = {
    "full": lambda entry: {"rope_parameters": {"full_attention": {"rope_theta": 50.0, **entry}}},
    "sliding": lambda entry: {"rope_parameters": {"sliding_attention": {"rope_theta": 50.0, **entry}}},
    "full-outer-bases": lambda entry: {
        "rope_parameters": {"full_attention": entry}, "rope_theta": 50.0, "rope_local_base_freq": 20.0},
    "share": lambda entry: {"rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5, **entry}}},
    "outer-share": lambda entry: {"rope_parameters": {"full_attention": entry}, "partial_rotary_factor": 0.5},
    "outer-length": lambda entry: {
        "rope_parameters": {"full_attention": entry}, "original_max_position_embeddings": 8},
    "old": lambda entry: {"rope_theta": 50.0, "rope_local_base_freq": 20.0, "rope_scaling": entry or None},
    "old-type": lambda entry: {"rope_theta": 50.0, "rope_scaling": as_type(entry) or None},
    "both": lambda entry: {
        "rope_parameters": {"full_attention": {"rope_type": "yarn", **OTHER}, "sliding_attention": None},
        "rope_scaling": entry or None},
    "flat": lambda entry: {"rope_parameters": {"rope_theta": 50.0, **entry}},
}  # fmt: skip
"""The ways in which a config of Gemma 3 states the settings of RoPE, which differ between types of layers."""


def settings_of(family: str, rope: dict) -> dict:
    types = {"layer_types": TYPES, "sliding_window": 4}
    more = {"gpt_oss": {"num_local_experts": 2}, "gemma3_text": types, "olmo3": {**types, "num_hidden_layers": 3},
            "modernbert": {"layer_types": TYPES, "num_hidden_layers": 3},
            "qwen3_moe": {"norm_topk_prob": True}}  # fmt: skip
    fields = FAMILIES[family].model_fields
    sizes = SIZES if "head_dim" in fields and family != "phi3" else {**NEOX, "num_key_value_heads": 2}
    known = {name: value for name, value in sizes.items() if name in fields}
    return {"model_type": family, **known, **more.get(family, {}), **rope}


def theirs(family: str, settings: dict) -> list[np.ndarray]:
    """Return cos and sin of the first positions as transformers computes them: one array, or one for each layer."""
    config = transformers.AutoConfig.for_model(**settings)
    name = {"gemma3_text": "gemma3"}.get(family, family)
    module = getattr(transformers.models, name)
    modeling = getattr(module, f"modeling_{name}")
    (rotary,) = [getattr(modeling, key) for key in vars(modeling) if key.endswith("RotaryEmbedding")]
    layers = [{"layer_type": kind} for kind in TYPES] if family in NESTED_FAMILIES else [{}]
    found = [rotary(config)(torch.zeros(1), torch.arange(40)[None], **layer) for layer in layers]
    return [
        torch.cat([cos, sin]).numpy()[..., : cos.shape[-1] if family == "gpt_oss" else cos.shape[-1] // 2]
        for cos, sin in found
    ]


def ours(settings: dict) -> list[np.ndarray] | UserError:
    try:
        layers = import_config(settings).resolve().layers
        for layer in layers:
            layer.position.in_attention(16)
    except UserError as error:
        return error
    context = Context(jnp.zeros((1, 40), jnp.int32), jnp.arange(40))
    tables = []
    for layer in layers if settings["model_type"] in NESTED_FAMILIES else layers[:1]:
        cos, sin = layer.position.in_attention(16).cos_sin(context, jnp.float32)
        tables.append(np.stack([cos, sin])[..., : cos.shape[-1] // 2])
    return tables


def compare(family: str, styles: dict) -> None:
    """Compare all settings of a family. A model is refused, or has the frequencies that transformers computes."""
    read = set()
    for (style, write), (name, entry) in itertools.product(styles.items(), ENTRIES.items()):
        if style == "old-neox" and family != "gpt_neox":
            continue
        settings, case = settings_of(family, write(sized(entry, SHARES.get(family, 1)))), f"{family} {style} {name}"
        if family in ("olmo3", "modernbert"):
            settings.pop("rope_local_base_freq", None)
        tables = ours(settings)
        if isinstance(tables, UserError):
            assert tables.path[0] in ("rope_parameters", "rope_scaling", "position"), case
            continue
        expected = theirs(family, settings)
        for ours_table, theirs_table in zip(tables, expected, strict=True):
            np.testing.assert_allclose(ours_table, theirs_table, atol=3e-5, err_msg=case)
        read.add(name)
    kinds = PHI3 if family == "phi3" else None
    refused = {
        name
        for name, entry in ENTRIES.items()
        if entry.get("rope_type") in REFUSED or (kinds and entry.get("rope_type", "default") not in kinds)
    }
    assert read >= {*ENTRIES} - refused - {"yarn-no-factor"}, family


REFUSED = ("proportional", "su")
PHI3 = ("default", "longrope")
SHARES = {"gpt_neox": 0.25, "phi": 0.5, "stablelm": 0.25}
"""The share of a head that an architecture rotates by default."""


def sized(entry: dict, share: float) -> dict:
    """Return an entry with a number for each rotated pair."""
    return {key: value[: int(8 * share)] if isinstance(value, list) else value for key, value in entry.items()}


@pytest.mark.parametrize("family", by_default(FLAT, "llama"))
def test_settings_that_all_layers_share(family):
    compare(family, STYLES)


@pytest.mark.slow
@pytest.mark.parametrize("family", by_default(NESTED_FAMILIES, "gemma3_text"))
def test_settings_of_each_type_of_layer(family):
    refused = ("both",) if family == "modernbert" else ()  # by the class of transformers
    compare(family, {style: write for style, write in NESTED.items() if style not in refused})
