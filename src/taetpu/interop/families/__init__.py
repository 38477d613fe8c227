"""The Hugging Face architectures that are read and written, a module for each or for relatives."""

from collections.abc import Mapping
from dataclasses import dataclass

from taetpu.core.errors import UserError, suggest
from taetpu.interop.families.base import Family, Settings, SpecialTokens, last_token_classifier
from taetpu.interop.families.bert import Bert, BertClassifier, Roberta, RobertaClassifier
from taetpu.interop.families.bloom import Bloom, Falcon
from taetpu.interop.families.gemma import MULTIMODAL, VISION, Gemma, Gemma2, Gemma3
from taetpu.interop.families.gpt2 import GPT2, NanoGPT
from taetpu.interop.families.gpt_neo import GPTNeo
from taetpu.interop.families.gpt_oss import GptOss
from taetpu.interop.families.gptj import GPTJ
from taetpu.interop.families.granite import Granite
from taetpu.interop.families.llama import Llama, Mistral
from taetpu.interop.families.mamba2 import Mamba2
from taetpu.interop.families.mixtral import Mixtral, Qwen3MoE
from taetpu.interop.families.modernbert import ModernBert, ModernBertClassifier
from taetpu.interop.families.nanochat import Nanochat
from taetpu.interop.families.neox import NeoX
from taetpu.interop.families.olmo import Olmo, Olmo2, Olmo3
from taetpu.interop.families.opt import OPT
from taetpu.interop.families.phi import Phi
from taetpu.interop.families.phi3 import Phi3
from taetpu.interop.families.qwen import Qwen2, Qwen3
from taetpu.interop.families.smollm3 import SmolLM3
from taetpu.interop.families.stablelm import StableLM
from taetpu.interop.families.starcoder2 import StarCoder2

__all__ = ["CLASSIFIERS", "FAMILIES", "Family", "Settings", "TextModel", "count_classes", "find_text_model"]

COMMON = (GPT2, Llama, Mistral, NeoX, Qwen2, Qwen3, Gemma, Gemma2, Gemma3, Olmo2, GptOss)
"""The architectures that an export prefers to the others, because most programs read them."""
OTHERS = (
    *(GPTNeo, OPT, Phi, Phi3, Olmo, Olmo3, GPTJ, StableLM, StarCoder2, Granite, Mixtral, Qwen3MoE, SmolLM3, Falcon),
    *(Bloom, Nanochat, Mamba2, Roberta, Bert, ModernBert),
)
FAMILIES: Mapping[str, type[Family]] = {family.model_type: family for family in (*COMMON, *OTHERS)}
"""The architectures by `model_type`. An export uses the first one that admits a model."""
ENCODERS = (BertClassifier, RobertaClassifier, ModernBertClassifier)
CLASSIFIERS: Mapping[str, type[Family]] = {
    family.model_type: family
    for family in (*map(last_token_classifier, (GPT2, Llama, Mistral, Qwen2, Qwen3, Gemma)), *ENCODERS)
}
"""The architectures whose outputs are classes of sequences, by `model_type`."""

READ = {**FAMILIES, NanoGPT.model_type: NanoGPT}
"""The architectures that are read."""
REFUSED = {
    "mamba": "its state decays by a number for each element, and taetpu has the kind mamba2 alone",
    "t5": "it has an encoder and a decoder, and taetpu has models with one of them",
}
"""The reasons for which common architectures are not read, by `model_type`."""


SAME_TENSORS = ("BertForPreTraining",)
"""Classes whose files contain a masked language model."""


@dataclass(frozen=True)
class TextModel:
    """The text model in a `config.json`.

    Attributes:
        family: The architecture.
        settings: The settings of the text model.
        path: The path of these settings; empty if they are not nested.
        ignored: The pattern of tensors that the text model does not use.
    """

    family: type[Family]
    settings: Settings
    path: tuple[str, ...]
    ignored: str


def _of_class(family: type[Family], config: Settings) -> type[Family]:
    """Return the architecture of the class that `architectures` names: a language model, or a classifier.

    Raises:
        UserError: If the class of an encoder is not supported.
    """
    classifier = CLASSIFIERS.get(family.model_type)
    named = config.get("architectures")
    name = named[0] if isinstance(named, list | tuple) and named else None
    if classifier is None or not isinstance(name, str) or name in (family.architecture, *SAME_TENSORS):
        return family
    if name != classifier.architecture:
        if classifier not in ENCODERS:
            return family
        problem = f"models of the class {name!r} are not supported"
        remedy = f"Use a {family.architecture} or a {classifier.architecture}."
        raise UserError(problem, path=("architectures",), remedy=remedy)
    return classifier


def count_classes(config: Settings) -> int:
    """Return the number of classes in the `config.json` of a classifier.

    Raises:
        UserError: If it is not a positive number, or has no classes.
    """
    names, number = config.get("id2label"), config.get("num_labels")
    number = len(names) if isinstance(names, Mapping) and names else 2 if number is None else number
    if type(number) is not int or not 1 <= number <= 2**24:
        problem = f"the number of classes is {number!r}, expected a positive integer"
        raise UserError(problem, path=("num_labels",), remedy="Correct num_labels, or set id2label.")
    return number


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
        family = _of_class(READ[kind], config)
        return TextModel(family, config, (), family.ignored)
    inner, family = config.get("text_config"), FAMILIES[MULTIMODAL[kind]]
    if not isinstance(inner, Mapping):
        remedy = f"Use the config.json of a {kind} model, which contains the settings of the text model."
        raise UserError("'text_config' is missing", path=("text_config",), remedy=remedy)
    outer = {name: config[name] for name in ("quantization_config", "tie_word_embeddings") if name in config}
    tokens = {name: config[name] for name in SpecialTokens.model_fields if config.get(name) is not None}
    return TextModel(family, {**outer, **inner, **tokens}, ("text_config",), f"{VISION}|{family.ignored}")
