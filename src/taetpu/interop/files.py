"""The files of Hugging Face models beside their weights: `config.json`, `generation_config.json`, the index of shards.

Files are read with limits on their size and depth, and their content is validated.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError, locate_errors
from taetpu.core.json_files import RESTORE, is_missing, read_object
from taetpu.core.output_files import write_new_folder
from taetpu.data.tokenizers.base import Tokenizer
from taetpu.interop.families import Settings
from taetpu.interop.families.base import SpecialTokens
from taetpu.interop.weights import CONVERT_NANOGPT, WEIGHTS, Tensors, write_tensors

CONFIG, NANOGPT = "config.json", "ckpt.pt"
TOKENIZER, TOKENIZER_CONFIG, GENERATION = "tokenizer.json", "tokenizer_config.json", "generation_config.json"
SPECIAL_TOKENS = tuple(SpecialTokens.model_fields)
"""The settings with the numbers of the tokens that begin, end and fill up texts."""

ENCODER_TOKENS = {"cls_token": ("[CLS]", "<s>"), "sep_token": ("[SEP]", "</s>"), "mask_token": ("[MASK]", "<mask>")}
"""The spellings of the special tokens of masked language models, by their name in `tokenizer_config.json`."""


def find_token(tokenizer: Tokenizer, spellings: tuple[str, ...]) -> str | None:
    """Return the first of some spellings of a token that a tokenizer has; None if it has none."""
    return next((name for name in spellings if tokenizer.number(name) is not None), None)


def read_config(folder: Path) -> Settings:
    """Return the content of a folder's `config.json`.

    Raises:
        UserError: If it is missing or not a JSON object.
    """
    if is_missing(folder / CONFIG) and not is_missing(folder / NANOGPT):
        problem = f"the weights are in {NANOGPT}, a pickle, which could execute any code and is never read"
        raise UserError(problem, file=folder, remedy=CONVERT_NANOGPT)
    return read_object(folder / CONFIG, f"Use a folder with {CONFIG} and {WEIGHTS}.")


def read_generation_tokens(folder: Path) -> dict[str, Any]:
    """Return the `SPECIAL_TOKENS` in a folder's `generation_config.json`; they take precedence over `config.json`.

    Raises:
        UserError: If the file is damaged, or a setting is not the number of a token.
    """
    file = folder / GENERATION
    if is_missing(file):
        return {}
    content = read_object(file, RESTORE)
    with locate_errors(file=file):
        return load_config(SpecialTokens, {name: content[name] for name in SPECIAL_TOKENS if name in content}).numbers()


def write_model(folder: Path, settings: Settings, tensors: Tensors, tokenizer: Tokenizer | None = None) -> None:
    """Write the files of a model to a folder that does not exist or is empty: all of them, or none.

    Raises:
        UserError: If the folder contains other files, or the disk is full or not writable.
    """
    files: dict[str, bytes | Callable[[Path], object]] = {WEIGHTS: lambda path: write_tensors(path, tensors)}
    if tokenizer is not None:
        about = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        for name in SPECIAL_TOKENS:  # e.g. "eos_token": "</s>"
            number = settings.get(name)
            if (number := number[0] if isinstance(number, list) else number) is not None:
                about[name.removesuffix("_id")] = tokenizer.token(number)
        if find_token(tokenizer, ENCODER_TOKENS["mask_token"]) is not None:
            named = {name: find_token(tokenizer, spellings) for name, spellings in ENCODER_TOKENS.items()}
            about |= {name: token for name, token in named.items() if token is not None}
        files |= {TOKENIZER: tokenizer.to_json().encode(), TOKENIZER_CONFIG: _to_json(about)}
    files[CONFIG] = _to_json(settings)
    write_new_folder(folder, files, needed=sum(tensor.nbytes for tensor in tensors.values()))


def _to_json(content: Settings) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()
