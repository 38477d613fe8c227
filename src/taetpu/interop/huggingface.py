"""Import and export of Hugging Face GPT-2 and Llama models, as arrays by name or as a folder with safetensors files.

Unsupported settings, missing tensors and unknown tensors raise errors. They are never ignored silently.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from taetpu.core.config import to_data
from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError, suggest
from taetpu.core.keys import root_key
from taetpu.interop.families import FAMILIES, Family, Settings
from taetpu.nn.block import SLOTS
from taetpu.nn.lm import LM, LMConfig, ModelConfig, build_model
from taetpu.nn.named_arrays import named_parameters, with_parameters
from taetpu.store.flat_config import flatten

Tensors = Mapping[str, np.ndarray]

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
LAYER_SLOTS = (*SLOTS, "same_as", "drop")


# --- import ----------------------------------------------------------------------------------------------------------


def from_huggingface(config: Settings, tensors: Tensors) -> tuple[ModelConfig, LM]:
    """Convert a Hugging Face model to a `ModelConfig` and a model with float32 parameters.

    Args:
        config: the content of `config.json`.
        tensors: the state dict. Tensor names may lack the prefix of a model with a head (`transformer.`, `model.`).

    Raises:
        UserError: if the `model_type` or a setting is not supported, or if a tensor is missing, unknown, or has the
            wrong shape.
    """
    family = _family(config)
    ours = load_config(ModelConfig, family.read(config))
    # Only learned positions depend on the sequence length.
    vocab_size, seq_len = config["vocab_size"], config.get("n_positions", 1)
    model = build_model(ours.resolve(), vocab_size, seq_len, key=root_key(0))
    return ours, with_parameters(model, _parameters(family, tensors, model, ours.num_layers))


def _family(config: Settings) -> Family:
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise UserError(
            f"model type {kind!r} is not supported", path=("model_type",), remedy=suggest(str(kind), FAMILIES)
        )
    family = FAMILIES[kind]
    for name in family.required:
        if config.get(name) is None:
            raise UserError(f"{name!r} is missing", path=(name,), remedy=f"Set all of {', '.join(family.required)}.")
    for name, value in family.fixed.items():
        if config.get(name, value) != value:
            raise UserError(
                f"{name}={config[name]!r} is not supported", path=(name,), remedy=f"Use a model with {name}={value!r}."
            )
    return family


def _parameters(family: Family, tensors: Tensors, model: LM, num_layers: int) -> dict[str, np.ndarray]:
    """Return the parameters of `model` by name, taken from the Hugging Face tensors."""
    left = {
        name if name.startswith((family.prefix, "lm_head.")) else family.prefix + name: array
        for name, array in tensors.items()
        if not name.endswith(family.ignored)
    }
    have = named_parameters(model)
    found = {}
    for theirs, ours, transposed in _rules(family, num_layers):
        if ours[0] not in have:
            continue
        if theirs not in left:
            raise UserError(f"tensor {theirs!r} is missing", remedy=suggest(theirs, left))
        array = np.asarray(left.pop(theirs), np.float32)
        parts = np.array_split(array.T if transposed else array, len(ours), axis=-1)
        found.update(zip(ours, parts, strict=True))
    # A file may contain the head even if the head is tied to the embedding.
    head = left.pop("lm_head.weight", None)
    if head is not None and not np.array_equal(np.asarray(head, np.float32), found["embedding.weight"]):
        raise UserError(
            "'lm_head.weight' differs from the embedding",
            path=("tie_word_embeddings",),
            remedy="Set tie_word_embeddings to false.",
        )
    if left:
        problem = f"{len(left)} tensors do not belong to a {family.model_type} model, e.g. {min(left)!r}"
        remedy = "Remove these tensors, or use the `config.json` of the model that contains them."
        raise UserError(problem, remedy=remedy)
    return found


def _rules(family: Family, num_layers: int) -> list[tuple[str, list[str], bool]]:
    """Return the family's conversion rules, expanded for every layer.

    A rule is a tuple of the Hugging Face name, taetpu's names, and whether the array is transposed.
    """
    return [
        (rule.theirs.format(i=i), rule.ours.format(i=i).split(), rule.transposed)
        for rule in family.rules
        for i in range(num_layers if "{i}" in rule.theirs else 1)
    ]


# --- export ----------------------------------------------------------------------------------------------------------


def to_huggingface(config: ModelConfig | LMConfig, model: LM, *, seq_len: int = 2048) -> tuple[dict[str, Any], Tensors]:
    """Convert a model to the content of a Hugging Face `config.json` and a state dict.

    If the model lacks biases that GPT-2 requires, they are written as zeros. Llama has no setting for the dropout rate,
    so the rate is not exported. The rate does not affect the results of a trained model in evaluation.

    Args:
        config: the config of the model.
        model: the model.
        seq_len: the maximum sequence length in a Llama config. For GPT-2, the size of the position table is used.

    Raises:
        UserError: if neither GPT-2 nor Llama supports all settings. The error is about the architecture with fewer
            unsupported settings.
    """
    ours = flatten_model_config(config.resolve() if isinstance(config, ModelConfig) else config)
    family = _closest_family(ours)
    have = named_parameters(model)
    ours |= {
        "vocab_size": have["embedding.weight"].shape[0],
        "seq_len": have["position.weight"].shape[0] if "position.weight" in have else seq_len,
        "ffn.hidden": have["layers.0.ffn.down"].shape[0],
    }
    tensors: dict[str, np.ndarray] = {}
    for theirs, names, transposed in _rules(family, ours["num_layers"]):
        if names[0] in have:
            array = np.concatenate([np.asarray(have[name], np.float32) for name in names], axis=-1)
            tensors[theirs] = np.ascontiguousarray(array.T if transposed else array)
        elif family.zero_biases and theirs.endswith(".bias"):
            # The rule for a weight precedes the rule for its bias.
            tensors[theirs] = np.zeros(tensors[theirs.removesuffix("bias") + "weight"].shape[-1], np.float32)
    head = {"model_type": family.model_type, "architectures": [family.architecture], "dtype": "float32"}
    return head | family.write(ours), tensors


def flatten_model_config(config: LMConfig) -> dict[str, Any]:
    """Return the settings of a model with equal layers by dotted name.

    Raises:
        UserError: if layers differ from each other, or if a layer's position or norm differs from the model's.
    """
    first = config.layers[0]
    for name in config.heads:
        problem = f"Hugging Face's formats have no place for the head {name!r}, which is used in training only"
        raise UserError(problem, path=("heads", name), remedy="Export a model that was trained without heads.")
    for i, layer in enumerate(config.layers):
        for slot in LAYER_SLOTS:
            if getattr(layer, slot) != getattr(first, slot):
                raise UserError(f"layers 0 and {i} have different {slot}", path=("layers", i, slot), remedy=ALIKE)
    for slot in ("position", "norm"):
        if getattr(first, slot) != getattr(config, slot):
            raise UserError(f"layers and model have different {slot}", path=("layers", 0, slot), remedy=ALIKE)
    around = {slot: to_data(getattr(config, slot)) for slot in ("embedding", "stem", "logits")}
    sizes = {"dim": config.dim, "num_layers": len(config.layers), "dropout": config.dropout}
    flat = dict(flatten({**to_data(first), **sizes, **around}))
    for slot in ("mixer", "ffn"):
        if flat.get(f"{slot}.bias") is None:
            flat[f"{slot}.bias"] = config.bias
    return flat


ALIKE = "Use the same setting in all layers, as Hugging Face requires."


def _closest_family(ours: Settings) -> Family:
    """Return the family that supports the given settings.

    Raises:
        UserError: if no family supports the settings. The error is about the family with the fewest unsupported
            settings.
    """
    missed = {
        name: {where: allowed for where, allowed in family.needs.items() if ours.get(where) not in allowed}
        for name, family in FAMILIES.items()
    }
    name = min(missed, key=lambda name: len(missed[name]))
    if missed[name]:
        where = next(iter(missed[name]))
        allowed = " or ".join(str(value) for value in missed[name][where])
        raise UserError(
            f"Hugging Face's {name} does not support {where}={ours.get(where)}",
            path=tuple(where.split(".")),
            remedy=f"Use {where}: {allowed} for {name}. Supported families: {', '.join(FAMILIES)}.",
        )
    return FAMILIES[name]


# --- folders ---------------------------------------------------------------------------------------------------------


def load_folder(path: str | Path) -> tuple[ModelConfig, LM]:
    """Load a Hugging Face model from a folder with `config.json` and `model.safetensors` or indexed shards.

    Args:
        path: the model's folder.

    Raises:
        UserError: if a file is missing or damaged, or the model cannot be converted (see `from_huggingface`). The error
            names the file.
    """
    folder = Path(path)
    config = _json(folder / CONFIG)
    weights = folder / WEIGHTS
    shards = [weights]
    if not weights.exists() and (folder / INDEX).exists():
        shards = [folder / name for name in sorted(set(_json(folder / INDEX).get("weight_map", {}).values()))]
    tensors: dict[str, np.ndarray] = {}
    for shard in shards:
        tensors |= _safetensors(shard)
    try:
        return from_huggingface(config, tensors)
    except UserError as error:
        raise error.within(file=folder / CONFIG if error.path else weights) from None


def save_folder(path: str | Path, config: ModelConfig | LMConfig, model: LM, *, seq_len: int = 2048) -> None:
    """Save a model as a folder that `from_pretrained` in transformers can read.

    Args:
        path: the folder. It is created if it does not exist.
        config: the config of the model.
        model: the model.
        seq_len: the maximum sequence length in a Llama config; see `to_huggingface`.

    Raises:
        UserError: if the folder already contains a model, or the model cannot be converted (see `to_huggingface`).
    """
    folder = Path(path)
    for name in (CONFIG, WEIGHTS):
        if (folder / name).exists():
            raise UserError("a model already exists here", file=folder / name, remedy="Use another folder.")
    theirs, tensors = to_huggingface(config, model, seq_len=seq_len)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors), folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(theirs, indent=2) + "\n")


def _json(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError("no such file", file=file, remedy=f"Use a folder with {CONFIG} and {WEIGHTS}.") from None
    except json.JSONDecodeError as error:
        raise UserError(f"not JSON: {error.msg}", file=file, line=error.lineno) from None


def _safetensors(file: Path) -> dict[str, np.ndarray]:
    try:
        return load_file(file)
    except FileNotFoundError:
        remedy = f"Provide {WEIGHTS}, or {INDEX} and its shards. Convert other formats with transformers."
        raise UserError("no such file", file=file, remedy=remedy) from None
    except SafetensorError as error:
        raise UserError(f"not a safetensors file: {error}", file=file) from None
