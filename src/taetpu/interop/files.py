"""The files of Hugging Face models: `config.json`, safetensors files, and `tokenizer.json`. No pickle is ever read."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from taetpu.core.errors import UserError
from taetpu.data.tokenizers import Tokenizer
from taetpu.interop.families import Settings

Tensors = Mapping[str, np.ndarray]

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TOKENIZER, TOKENIZER_CONFIG, GENERATION = "tokenizer.json", "tokenizer_config.json", "generation_config.json"
SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
"""The settings with the numbers of the tokens that begin, end and fill up texts."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
"""The endings of files that only unpickling can read, which may execute any code."""
CONVERT = (
    "Convert it in an environment that you trust: AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW)."
)
RESTORE = "Copy or download the file again."


def read_config(folder: Path) -> Settings:
    """Return the content of a folder's `config.json`.

    Raises:
        UserError: If it is missing or not a JSON object.
    """
    return read_object(folder / CONFIG, f"Use a folder with {CONFIG} and {WEIGHTS}.")


def read_generation_tokens(folder: Path) -> dict[str, Any]:
    """Return the `SPECIAL_TOKENS` in a folder's `generation_config.json`; they take precedence over `config.json`."""
    found = read_object(folder / GENERATION, RESTORE) if (folder / GENERATION).exists() else {}
    return {name: found[name] for name in SPECIAL_TOKENS if found.get(name) is not None}


def read_tensors(folder: Path) -> tuple[Tensors, Path]:
    """Return the tensors in a folder by name, and the file that they are from (the index if there are several).

    Raises:
        UserError: If a file is missing or damaged, or the weights are stored in another format.
    """
    if (folder / WEIGHTS).exists() or not (folder / INDEX).exists():
        return _read_safetensors(folder / WEIGHTS), folder / WEIGHTS
    tensors: dict[str, np.ndarray] = {}
    for shard in read_shards(folder / INDEX):
        if not (folder / shard).exists():
            problem = f"the shard {shard!r} is missing, which the index names"
            raise UserError(problem, file=folder / INDEX, remedy="Copy or download the shard.")
        tensors |= _read_safetensors(folder / shard)
    return tensors, folder / INDEX


def read_shards(index: Path) -> list[str]:
    """Return the names of the files that an index of shards lists.

    Raises:
        UserError: If the index is damaged or lists a file outside its folder.
    """
    weights = read_object(index, RESTORE).get("weight_map")
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights.values()) or not weights:
        raise UserError("this index has no 'weight_map' from tensors to files", file=index, remedy=RESTORE)
    shards = sorted(set(weights.values()))
    for shard in shards:
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            remedy = "Use an index whose files are safetensors files in its own folder."
            raise UserError(f"the index names {shard!r}, which is not read", file=index, remedy=remedy)
    return shards


def write_model(folder: Path, settings: Settings, tensors: Tensors, tokenizer: Tokenizer | None = None) -> None:
    """Write the files of a model to a folder, which is created if it does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors), folder / WEIGHTS, metadata={"format": "pt"})
    if tokenizer is not None:
        (folder / TOKENIZER).write_text(tokenizer.to_json(), encoding="utf-8")
        about = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        for name in SPECIAL_TOKENS:  # e.g. "eos_token": "</s>"
            number = settings.get(name)
            if (number := number[0] if isinstance(number, list) else number) is not None:
                about[name.removesuffix("_id")] = tokenizer.token(number)
        (folder / TOKENIZER_CONFIG).write_text(json.dumps(about, indent=2) + "\n")
    (folder / CONFIG).write_text(json.dumps(settings, indent=2) + "\n")


def read_object(file: Path, remedy: str) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        UserError: If the file is missing or holds no JSON object.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError("no such file", file=file, remedy=remedy) from None
    except json.JSONDecodeError as error:
        raise UserError(f"not JSON: {error.msg}", file=file, line=error.lineno, remedy=RESTORE) from None
    except UnicodeDecodeError:
        raise UserError("not JSON: the text is not UTF-8", file=file, remedy=RESTORE) from None
    if not isinstance(found, dict):
        raise UserError(f"expected a JSON object, got {type(found).__name__}", file=file, remedy=RESTORE)
    return found


def _read_safetensors(file: Path) -> Tensors:
    try:
        return load_file(file)
    except FileNotFoundError:
        pickles = sorted(one.name for one in file.parent.glob("*") if one.suffix in PICKLES)
        if pickles:
            problem = f"the weights are in {pickles[0]}, a pickle, which could execute any code and is never read"
            raise UserError(problem, file=file.parent, remedy=CONVERT) from None
        remedy = f"Provide {WEIGHTS}, or {INDEX} and its shards. Convert other formats with transformers."
        raise UserError("no such file", file=file, remedy=remedy) from None
    except SafetensorError as error:
        raise UserError(f"not a complete safetensors file: {error}", file=file, remedy=RESTORE) from None
