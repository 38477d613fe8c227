"""The Hugging Face architectures that are read and written, a module for each or for relatives."""

from collections.abc import Mapping
from dataclasses import dataclass

from taetpu.core.errors import UserError, suggest
from taetpu.interop.families.base import Family, Settings, SpecialTokens
from taetpu.interop.families.gemma import GEMMA, GEMMA2, GEMMA3, MULTIMODAL, VISION
from taetpu.interop.families.gpt2 import GPT2
from taetpu.interop.families.gpt_oss import GPT_OSS
from taetpu.interop.families.llama import LLAMA, MISTRAL
from taetpu.interop.families.neox import NEOX
from taetpu.interop.families.olmo2 import OLMO2
from taetpu.interop.families.qwen import QWEN2, QWEN3

__all__ = ["FAMILIES", "Family", "Settings", "TextModel", "find_text_model"]

FAMILIES: Mapping[str, Family] = {
    family.model_type: family
    for family in (GPT2, LLAMA, MISTRAL, NEOX, QWEN2, QWEN3, GEMMA, GEMMA2, GEMMA3, OLMO2, GPT_OSS)
}
"""The architectures by `model_type`. An export uses the first one that admits a model."""


@dataclass(frozen=True)
class TextModel:
    """The text model in a `config.json`.

    Attributes:
        family: The architecture.
        settings: The settings of the text model.
        path: The path of these settings; empty if they are not nested.
        ignored: The pattern of tensors that the text model does not use.
    """

    family: Family
    settings: Settings
    path: tuple[str, ...]
    ignored: str


def find_text_model(config: Settings) -> TextModel:
    """Return the text model in a `config.json`: the model, or its part in `text_config` if it is multimodal.

    Raises:
        UserError: If the `model_type` is not supported (the remedy lists the known ones), or `text_config` is missing.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in (*FAMILIES, *MULTIMODAL):
        problem = f"model type {kind!r} is not supported"
        # Names of architectures are short, so only misspelt ones are as similar as 0.75.
        remedy = suggest(str(kind), [*FAMILIES, *MULTIMODAL], cutoff=0.75)
        raise UserError(problem, path=("model_type",), remedy=remedy)
    if kind in FAMILIES:
        return TextModel(FAMILIES[kind], config, (), FAMILIES[kind].ignored)
    inner, family = config.get("text_config"), FAMILIES[MULTIMODAL[kind]]
    if not isinstance(inner, Mapping):
        remedy = f"Use the config.json of a {kind} model, which contains the settings of the text model."
        raise UserError("'text_config' is missing", path=("text_config",), remedy=remedy)
    outer = {name: config[name] for name in ("quantization_config", "tie_word_embeddings") if name in config}
    tokens = {name: config[name] for name in SpecialTokens.model_fields if config.get(name) is not None}
    return TextModel(family, {**outer, **inner, **tokens}, ("text_config",), f"{VISION}|{family.ignored}")
