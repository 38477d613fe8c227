"""A trained model as files: weights by logical name (safetensors), the architecture, the tokenizer."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from taetpu.core.config import to_data
from taetpu.core.errors import UserError
from taetpu.core.keys import root_key
from taetpu.core.loading import load
from taetpu.data.tokenizers import Tokenizer, from_json
from taetpu.nn.lm import LM, LMConfig, build, named_parameters, with_parameters

WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"


@dataclass(frozen=True)
class SavedModel:
    """A model with what is needed to use it. `tokenizer` is None where the tokens are not text."""

    model: LM
    config: LMConfig
    vocab_size: int
    seq_len: int
    tokenizer: Tokenizer | None


def to_files(
    model: LM, config: LMConfig, *, vocab_size: int, seq_len: int, tokenizer: Tokenizer | None
) -> dict[str, bytes]:
    """File names with their content."""
    weights = {name: np.asarray(array) for name, array in named_parameters(model).items()}
    about = {"format": "taetpu", "model": to_data(config), "vocab_size": vocab_size, "seq_len": seq_len}
    files = {
        WEIGHTS: save_tensors(weights),
        CONFIG: (json.dumps(about, indent=2, sort_keys=True) + "\n").encode(),
    }
    return files if tokenizer is None else {**files, TOKENIZER: tokenizer.to_json().encode()}


def from_files(files: Mapping[str, bytes], where: str = "") -> SavedModel:
    """The model that `to_files` wrote.

    Raises:
        UserError: a file is missing, or the weights are not those of the architecture.
    """
    for name in (CONFIG, WEIGHTS):
        if name not in files:
            raise UserError(f"no {name} is stored here", file=where, remedy="the run is not done, or this is no model")
    about: dict[str, Any] = json.loads(files[CONFIG])
    config = load(LMConfig, about["model"])
    blank = build(config, about["vocab_size"], about["seq_len"], key=root_key(0))
    return SavedModel(
        model=with_parameters(blank, load_tensors(files[WEIGHTS])),
        config=config,
        vocab_size=about["vocab_size"],
        seq_len=about["seq_len"],
        tokenizer=from_json(files[TOKENIZER].decode()) if TOKENIZER in files else None,
    )


def open_run(folder: str | Path) -> SavedModel:
    """The trained model of a run's folder, e.g. `runs/quickstart/runs/baseline/0-1a2b3c4d`."""
    at = Path(folder) / "model"
    return from_files({file.name: file.read_bytes() for file in at.glob("*")}, str(at))
