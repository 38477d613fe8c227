"""The weights of Hugging Face models in safetensors files. No pickle is ever read.

Each tensor has one name and one place. A tensor that is stored twice, or that the index of several files does not list,
is an error.
"""

import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import ml_dtypes
import numpy as np
from pydantic import Field
from safetensors import SafetensorError, deserialize, safe_open
from safetensors.numpy import save_file

from taetpu.core.config import Config
from taetpu.core.config_parsing import load_config
from taetpu.core.errors import DataWarning, UserError
from taetpu.core.json_files import RESTORE, check_regular, explain_unreadable, is_missing, read_object

Tensors = Mapping[str, np.ndarray]

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
"""The endings of files that only unpickling can read, which may execute any code."""
CONVERT = (
    "Convert it in an environment that you trust: AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW)."
)
CONVERT_NANOGPT = (
    'To convert a checkpoint of nanoGPT, run in its folder: python -c "import json, torch; '
    "from safetensors.torch import save_file; c = torch.load('ckpt.pt', map_location='cpu', weights_only=True); "
    "save_file({k: v.clone() for k, v in c['model'].items()}, 'model.safetensors'); "
    "json.dump({'model_type': 'nanogpt', **c['model_args']}, open('config.json', 'w'))\""
)
FLOAT8 = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}
"""The dtypes of 8 bits that are read, by their name in a file. The library of safetensors does not read them."""
DTYPES = {"F16", "F32", "F64", "BF16", *FLOAT8}
"""The dtypes that are read, by their name in a file."""


def read_tensors(folder: Path, ignored: str = "(?!)") -> tuple[Tensors, Path]:
    """Return the tensors in a folder by name, and the file that they are from (the index if there are several).

    Args:
        folder: The folder.
        ignored: The pattern of tensors that no model uses, which are left out.

    Raises:
        UserError: If a file is missing or damaged, a tensor is stored twice or not where the index says, or the weights
            are stored in another format.
    """
    weights, index = folder / WEIGHTS, folder / INDEX
    if is_missing(index):
        return read_safetensors(weights, ignored), weights
    files = read_index(index)
    shards = sorted({*files.values()})
    if not is_missing(weights) and shards != [WEIGHTS]:
        if all(is_missing(folder / shard) for shard in shards):
            return read_safetensors(weights, ignored), weights  # the index is from another version of the model
        problem = f"the weights are stored twice: in {WEIGHTS} and in the files of {INDEX}"
        raise UserError(problem, file=folder, remedy=f"Remove {WEIGHTS} or {INDEX}.")
    tensors: dict[str, np.ndarray] = {}
    for shard in shards:
        if is_missing(folder / shard):
            problem = f"the shard {shard!r} is missing, which the index names"
            raise UserError(problem, file=index, remedy="Copy or download the shard.")
        part = read_safetensors(folder / shard, ignored)
        for name in part:
            _check_place(name, shard, files.get(name), index)
        tensors |= part
    for name, shard in files.items():
        if name not in tensors and not re.search(ignored, name):
            problem = f"tensor {name!r} is not in {shard!r}, which the index names for it"
            raise UserError(problem, file=index, remedy="Use the index and the shards of one version of the model.")
    return tensors, index


def _check_place(name: str, shard: str, listed: str | None, index: Path) -> None:
    """Raise `UserError` if the index names another file for a tensor, or does not list it."""
    if listed == shard:
        return
    which = f"names {listed!r} for it" if listed else "does not list it"
    remedy = "Use the index and the shards of one version of the model."
    raise UserError(f"tensor {name!r} is in {shard!r}, but the index {which}", file=index, remedy=remedy)


class ShardIndex(Config):
    """The index of a model in several safetensors files."""

    weight_map: Annotated[dict[str, str], Field(min_length=1)]
    """The name of the file of each tensor."""


def read_index(index: Path) -> dict[str, str]:
    """Return the name of the file of each tensor, from an index of shards.

    Raises:
        UserError: If the index is damaged or lists a file outside its folder.
    """
    content = read_object(index, RESTORE)
    try:
        files = load_config(ShardIndex, {name: content[name] for name in ShardIndex.model_fields if name in content})
    except UserError as error:
        raise UserError(error.problem, path=error.path, file=index, remedy=RESTORE) from None
    for shard in sorted({*files.weight_map.values()}):
        if Path(shard).name != shard or not shard.endswith(".safetensors") or "\0" in shard:
            remedy = "Use an index whose files are safetensors files in its own folder."
            raise UserError(f"the index names {shard!r}, which is not read", file=index, remedy=remedy)
    return files.weight_map


def read_safetensors(file: Path, ignored: str = "(?!)") -> dict[str, np.ndarray]:
    """Return the tensors in a file by name, without those that match a pattern.

    Raises:
        UserError: If the file is missing or damaged, or a tensor has a dtype that is not read.
    """
    if is_missing(file):
        raise _missing_weights(file)
    check_regular(file, RESTORE)
    try:
        with explain_unreadable(file), safe_open(file, "np") as opened:
            dtypes = {name: opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118 (no mapping)
            used = [name for name in dtypes if not re.search(ignored, name)]
            for name in used:
                if dtypes[name] not in DTYPES:
                    remedy = "Convert the weights to bfloat16 or float32 with transformers."
                    problem = f"tensor {name!r} has the unsupported dtype {dtypes[name]}"
                    raise UserError(problem, file=file, remedy=remedy)
            if FLOAT8.keys() & dtypes.values():
                return _read_float8(file, used)
            return {name: opened.get_tensor(name) for name in used}
    except SafetensorError as error:
        raise UserError(f"not a complete safetensors file: {error}", file=file, remedy=RESTORE) from None


def _read_float8(file: Path, names: list[str]) -> dict[str, np.ndarray]:
    """Return the tensors of a file in which some have 8 bits."""
    dtypes: dict[str, Any] = {"F64": "f8", "F32": "f4", "F16": "f2", "BF16": ml_dtypes.bfloat16, **FLOAT8}
    parts = dict(deserialize(file.read_bytes()))
    return {
        name: np.frombuffer(part["data"], dtypes[part["dtype"]]).reshape(part["shape"])
        for name in names
        for part in [parts[name]]
    }


def _missing_weights(file: Path) -> UserError:
    """Return the error about a folder without weights that are read."""
    pickles = sorted(path.name for path in file.parent.glob("*") if path.suffix in PICKLES)
    if pickles:
        problem = f"the weights are in {pickles[0]}, a pickle, which could execute any code and is never read"
        return UserError(problem, file=file.parent, remedy=CONVERT)
    remedy = f"Provide {WEIGHTS}, or {INDEX} and its shards. Convert other formats with transformers."
    return UserError("no such file", file=file, remedy=remedy)


def write_tensors(file: Path, tensors: Tensors) -> None:
    """Write tensors to a safetensors file.

    Raises:
        OSError: If the disk is full or not writable.
    """
    try:
        save_file(dict(tensors), file, metadata={"format": "pt"})
    except SafetensorError as error:  # the library states the number of the error of the system in a text
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(file)) from None


def to_float32(name: str, tensor: np.ndarray) -> np.ndarray:
    """Return a tensor in float32.

    Raises:
        UserError: If its dtype is not supported, or a number exceeds those of float32.
    """
    if tensor.dtype.name not in ("float32", "float16", "bfloat16", "float64", "float8_e4m3fn", "float8_e5m2"):
        remedy = "Convert the weights to bfloat16 or float32 with transformers."
        raise UserError(f"tensor {name!r} has the unsupported dtype {tensor.dtype}", remedy=remedy)
    with np.errstate(over="ignore"):
        converted = np.asarray(tensor, np.float32)
    if tensor.dtype == np.float64 and (beyond := np.isinf(converted) & np.isfinite(tensor)).any():
        problem = f"tensor {name!r} holds {tensor[beyond][0]:g}, which float32 cannot represent"
        raise UserError(problem, remedy="Use weights in bfloat16 or float32.")
    return converted


def warn_of_not_finite(tensors: Tensors) -> None:
    """Warn of tensors that hold NaN or infinite numbers, by name."""
    names = [name for name, tensor in tensors.items() if not np.isfinite(tensor).all()]
    if names:
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        problem = f"{len(names)} of {len(tensors)} tensors hold NaN or infinite numbers: {', '.join(names[:5])}{more}"
        warnings.warn(problem, DataWarning, stacklevel=2)
