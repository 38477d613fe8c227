"""The Hugging Face architectures that are read and written, a module for each or for relatives."""

from collections.abc import Mapping
from dataclasses import dataclass

from taetpu.core.errors import UserError, suggest
from taetpu.interop.families.base import Family, Settings, SpecialTokens
from taetpu.interop.families.bloom import BLOOM, FALCON
from taetpu.interop.families.gemma import GEMMA, GEMMA2, GEMMA3, MULTIMODAL, VISION
from taetpu.interop.families.gpt2 import GPT2, NANOGPT
from taetpu.interop.families.gpt_neo import GPT_NEO
from taetpu.interop.families.gpt_oss import GPT_OSS
from taetpu.interop.families.gptj import GPTJ
from taetpu.interop.families.granite import GRANITE
from taetpu.interop.families.llama import LLAMA, MISTRAL
from taetpu.interop.families.mamba2 import MAMBA2
from taetpu.interop.families.mixtral import MIXTRAL, QWEN3_MOE
from taetpu.interop.families.nanochat import NANOCHAT
from taetpu.interop.families.neox import NEOX
from taetpu.interop.families.olmo import OLMO, OLMO2, OLMO3
from taetpu.interop.families.opt import OPT
from taetpu.interop.families.phi import PHI
from taetpu.interop.families.phi3 import PHI3
from taetpu.interop.families.qwen import QWEN2, QWEN3
from taetpu.interop.families.smollm3 import SMOLLM3
from taetpu.interop.families.stablelm import STABLELM
from taetpu.interop.families.starcoder2 import STARCODER2

__all__ = ["FAMILIES", "Family", "Settings", "TextModel", "find_text_model"]

COMMON = (GPT2, LLAMA, MISTRAL, NEOX, QWEN2, QWEN3, GEMMA, GEMMA2, GEMMA3, OLMO2, GPT_OSS)
"""The architectures that an export prefers to the others, because most programs read them."""
OTHERS = (
    *(GPT_NEO, OPT, PHI, PHI3, OLMO, OLMO3, GPTJ, STABLELM, STARCODER2, GRANITE, MIXTRAL, QWEN3_MOE, SMOLLM3, FALCON),
    *(BLOOM, NANOCHAT, MAMBA2),
)
FAMILIES: Mapping[str, Family] = {family.model_type: family for family in (*COMMON, *OTHERS)}
"""The architectures by `model_type`. An export uses the first one that admits a model."""


READ = {**FAMILIES, NANOGPT.model_type: NANOGPT}
"""The architectures that are read."""
REFUSED = {
    "bert": "it predicts masked tokens, with token types and a head of two layers that taetpu does not have",
    "mamba": "its state decays by a number for each element, and taetpu has the kind mamba2 alone",
    "t5": "it has an encoder and a decoder, and taetpu has models with one of them",
}
"""The reasons for which common architectures are not read, by `model_type`."""


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
    if not isinstance(kind, str) or kind not in (*READ, *MULTIMODAL):
        reason = f": {REFUSED[str(kind)]}" if str(kind) in REFUSED else ""
        # Names of architectures are short, so only misspelt ones are as similar as 0.75.
        remedy = suggest(str(kind), [*READ, *MULTIMODAL], cutoff=0.75)
        raise UserError(f"model type {kind!r} is not supported{reason}", path=("model_type",), remedy=remedy)
    if kind in READ:
        return TextModel(READ[kind], config, (), READ[kind].ignored)
    inner, family = config.get("text_config"), FAMILIES[MULTIMODAL[kind]]
    if not isinstance(inner, Mapping):
        remedy = f"Use the config.json of a {kind} model, which contains the settings of the text model."
        raise UserError("'text_config' is missing", path=("text_config",), remedy=remedy)
    outer = {name: config[name] for name in ("quantization_config", "tie_word_embeddings") if name in config}
    tokens = {name: config[name] for name in SpecialTokens.model_fields if config.get(name) is not None}
    return TextModel(family, {**outer, **inner, **tokens}, ("text_config",), f"{VISION}|{family.ignored}")
