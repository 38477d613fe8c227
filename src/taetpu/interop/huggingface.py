"""Hugging Face models in and out: GPT-2 and Llama, as arrays by name or as a folder of safetensors.

Nothing is left out in silence: a setting that has no counterpart, a tensor that is missing and one that nobody asked
for are errors.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from taetpu.core.config import to_data
from taetpu.core.errors import UserError, suggest
from taetpu.core.keys import root_key
from taetpu.core.loading import load_config
from taetpu.interop.families import FAMILIES, Family, Settings
from taetpu.nn.lm import LM, LMConfig, ModelConfig, build_model, named_parameters, with_parameters

Tensors = Mapping[str, np.ndarray]

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
LAYER_SLOTS = ("mixer", "position", "norm", "ffn", "residual", "after", "drop")


# --- in --------------------------------------------------------------------------------------------------------------


def from_huggingface(config: Settings, tensors: Tensors) -> tuple[ModelConfig, LM]:
    """Our config and model for theirs, with float32 parameters.

    Args:
        config: the content of `config.json`.
        tensors: the state dict, with or without the prefix of a model with a head (`transformer.`, `model.`).

    Raises:
        UserError: another `model_type`, a setting without a counterpart, a tensor missing, unknown or misshapen.
    """
    family = _family(config)
    ours = load_config(ModelConfig, family.read(config))
    # Rotary positions have no table, so that only a model with one needs to know how far it reaches.
    vocab_size, seq_len = config["vocab_size"], config.get("n_positions", 1)
    model = build_model(ours.resolve(), vocab_size, seq_len, key=root_key(0))
    return ours, with_parameters(model, _parameters(family, tensors, model))


def _family(config: Settings) -> Family:
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise UserError(
            f"cannot read a model of type {kind!r}", path=("model_type",), remedy=suggest(str(kind), FAMILIES)
        )
    family = FAMILIES[kind]
    for name in family.required:
        if config.get(name) is None:
            raise UserError(f"{name!r} is missing", path=(name,), remedy=f"{kind} needs {', '.join(family.required)}")
    for name, value in family.fixed.items():
        if config.get(name, value) != value:
            raise UserError(
                f"{name}={config[name]!r} has no counterpart here", path=(name,), remedy=f"{name}={value!r} only"
            )
    return family


def _parameters(family: Family, tensors: Tensors, model: LM) -> dict[str, np.ndarray]:
    """Our parameters by name, cut out of their tensors."""
    left = {
        name if name.startswith((family.prefix, "lm_head.")) else family.prefix + name: array
        for name, array in tensors.items()
        if not name.endswith(family.ignored)
    }
    have = named_parameters(model)
    found = {}
    for theirs, ours, transposed in _rules(family, _layers(have)):
        if ours[0] not in have:
            continue
        if theirs not in left:
            raise UserError(f"tensor {theirs!r} is missing", remedy=suggest(theirs, left))
        array = np.asarray(left.pop(theirs), np.float32)
        parts = np.array_split(array.T if transposed else array, len(ours), axis=-1)
        found.update(zip(ours, parts, strict=True))
    # A file may hold a tied head all the same.
    head = left.pop("lm_head.weight", None)
    if head is not None and not np.array_equal(np.asarray(head, np.float32), found["embedding.weight"]):
        raise UserError(
            "'lm_head.weight' differs from the embedding", path=("tie_word_embeddings",), remedy="set it to false"
        )
    if left:
        raise UserError(f"tensor {min(left)!r} ({len(left)} in all) is not part of a {family.model_type} model")
    return found


def _rules(family: Family, num_layers: int) -> list[tuple[str, list[str], bool]]:
    """The family's table spelled out for every layer: their name, ours, whether to transpose."""
    return [
        (rule.theirs.format(i=i), rule.ours.format(i=i).split(), rule.transposed)
        for rule in family.rules
        for i in range(num_layers if "{i}" in rule.theirs else 1)
    ]


def _layers(names: Mapping[str, Any]) -> int:
    return 1 + max(int(name.split(".")[1]) for name in names if name.startswith("layers."))


# --- out -------------------------------------------------------------------------------------------------------------


def to_huggingface(config: ModelConfig | LMConfig, model: LM, *, seq_len: int = 2048) -> tuple[dict[str, Any], Tensors]:
    """The content of `config.json` and the state dict of `model`.

    A bias that GPT-2 has and ours lacks is written as zeros; Llama has no place for our dropout rate, which does
    not matter once a model is trained.

    Args:
        seq_len: the longest sequence that a Llama config promises; GPT-2's is the size of its table.

    Raises:
        UserError: a setting that neither GPT-2 nor Llama has; it names the one that is nearest.
    """
    ours = settings(config.resolve() if isinstance(config, ModelConfig) else config)
    family = _nearest(ours)
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
            # The rule of the weight stands before the rule of its bias.
            tensors[theirs] = np.zeros(tensors[theirs.removesuffix("bias") + "weight"].shape[-1], np.float32)
    head = {"model_type": family.model_type, "architectures": [family.architecture], "dtype": "float32"}
    return head | family.write(ours), tensors


def settings(config: LMConfig) -> dict[str, Any]:
    """The settings of a model whose layers are all alike, by dotted name; one that only states a default is None.

    Raises:
        UserError: layers differ from each other, or from the model's own position or norm.
    """
    first = config.layers[0]
    for i, layer in enumerate(config.layers):
        for slot in LAYER_SLOTS:
            if getattr(layer, slot) != getattr(first, slot):
                raise UserError(f"layer {i} has another {slot} than layer 0", path=("layers", i, slot), remedy=ALIKE)
    for slot in ("position", "norm"):
        if getattr(first, slot) != getattr(config, slot):
            raise UserError(f"the layers have another {slot} than the model", path=("layers", 0, slot), remedy=ALIKE)
    flat = _flat({**to_data(first), "dim": config.dim, "num_layers": len(config.layers), "dropout": config.dropout,
                  "embedding": to_data(config.embedding)})  # fmt: skip
    for slot in ("mixer", "ffn"):
        if flat.get(f"{slot}.bias") is None:
            flat[f"{slot}.bias"] = config.bias
    if flat["mixer.kind"] == "attention":
        heads = flat["mixer.num_heads"]
        head_dim = flat["mixer.head_dim"] or config.dim // heads
        defaults = {"num_kv_heads": heads, "head_dim": config.dim // heads, "scale": head_dim**-0.5}
        flat |= {f"mixer.{name}": None for name, value in defaults.items() if flat[f"mixer.{name}"] == value}
    return flat


ALIKE = "Hugging Face has one setting for all layers"


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found = {}
    for name, value in data.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return found


def _nearest(ours: Settings) -> Family:
    """The family that our settings fit; else an error about the one that they miss by the least."""
    missed = {
        name: {where: allowed for where, allowed in family.needs.items() if ours.get(where) not in allowed}
        for name, family in FAMILIES.items()
    }
    name = min(missed, key=lambda name: len(missed[name]))
    if missed[name]:
        where = next(iter(missed[name]))
        allowed = " or ".join(str(value) for value in missed[name][where])
        also = ", ".join(list(missed[name])[1:])
        raise UserError(
            f"{where}={ours.get(where)} cannot be said in Hugging Face's {name}"
            + (f" (nor can {also})" if also else ""),
            path=tuple(where.split(".")),
            remedy=f"{name} has {where}: {allowed}; known families: {', '.join(FAMILIES)}",
        )
    return FAMILIES[name]


# --- folders ---------------------------------------------------------------------------------------------------------


def load_folder(path: str | Path) -> tuple[ModelConfig, LM]:
    """`from_huggingface` of a folder with `config.json` and `model.safetensors`, in one file or in indexed shards.

    Raises:
        UserError: as `from_huggingface`, and where a file is missing or broken; it names the file.
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
    """`to_huggingface` as a folder that `from_pretrained` reads.

    Raises:
        UserError: as `to_huggingface`, and where the folder holds a model already.
    """
    folder = Path(path)
    for name in (CONFIG, WEIGHTS):
        if (folder / name).exists():
            raise UserError("there is a model already", file=folder / name, remedy="name another folder")
    theirs, tensors = to_huggingface(config, model, seq_len=seq_len)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors), folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(theirs, indent=2) + "\n")


def _json(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError("no such file", file=file, remedy=f"a model's folder holds {CONFIG} and {WEIGHTS}") from None
    except json.JSONDecodeError as error:
        raise UserError(f"not JSON: {error.msg}", file=file, line=error.lineno) from None
    if not isinstance(data, dict):
        raise UserError("not a JSON object", file=file)
    return data


def _safetensors(file: Path) -> dict[str, np.ndarray]:
    try:
        return load_file(file)
    except FileNotFoundError:
        remedy = f"{WEIGHTS}, or {INDEX} and its shards; other formats: load them with transformers and save_pretrained"
        raise UserError("no such file", file=file, remedy=remedy) from None
    except SafetensorError as error:
        raise UserError(f"not a safetensors file: {error}", file=file) from None
