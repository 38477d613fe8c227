"""The stored model whose parameters a run starts from (`train.start`)."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import model_validator
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors

from taetpu.core.config import Config
from taetpu.core.errors import UserError
from taetpu.store.backend import open_store
from taetpu.store.errors import NotStored

SEED = "{seed}"
KEYS = ("model/model.safetensors", "model.safetensors")
"""The file of the parameters, relative to the folder of a run, and to that of a checkpoint or a model."""
CONSTANT = "constant:"  # name prefix of stored arrays that are not trained


class StartConfig(Config):
    """The stored model that training starts from. Parameters with the same name and shape are loaded."""

    folder: str
    """Folder of a finished run, of a kept checkpoint (`RUN/checkpoints/STEP`) or of a model, relative to the study file
    or in a bucket (`gs://...`).

    `{seed}` is replaced by the seed of the run. A local folder may contain `*`, which must match one folder.
    """

    @model_validator(mode="before")
    @classmethod
    def _text(cls, data: Any) -> Any:
        """Accept a folder in place of a mapping."""
        return {"folder": data} if isinstance(data, str) else data


@dataclass(frozen=True)
class StoredParameters:
    """The parameters of a stored model.

    Attributes:
        where: The file.
        data: The content of the file.
    """

    where: str
    data: bytes

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the file."""
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """The trained arrays by logical name (see `nn.named_arrays.named_parameters`).

        Raises:
            UserError: If the file is damaged.
        """
        try:
            stored = load_tensors(self.data)
        except SafetensorError as error:
            remedy = "Copy the model again, or use another model."
            raise UserError(f"the stored model is damaged: {error}", file=self.where, remedy=remedy) from None
        return {name: array for name, array in stored.items() if not name.startswith(CONSTANT)}

    def fitting(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        """Return the arrays whose name and shape agree with a parameter of a model.

        Args:
            shapes: The shapes of the model's parameters by logical name.

        Raises:
            UserError: If no array agrees.
        """
        found = {name: array for name, array in self.arrays.items() if shapes.get(name) == array.shape}
        if not found:
            problem = f"no parameter of the model has the name and shape of an array in {self.where}"
            remedy = "Use a model with the same sizes, or remove `start`."
            raise UserError(problem, path=("train", "start"), remedy=remedy)
        return found


def read_start(start: StartConfig, seed: int, folder: Path) -> StoredParameters:
    """Read the stored model that the run with a seed starts from.

    Args:
        start: The config.
        seed: The seed of the run.
        folder: The folder that relative paths are relative to.

    Raises:
        UserError: If no model is stored in the folder, or a pattern does not match exactly one folder. The path of the
            error is `folder`.
    """
    written = start.folder.replace(SEED, str(seed))
    place = written
    if not written.startswith("gs://"):
        matches = [folder / written]
        if "*" in written:
            matches = sorted(Path(folder.anchor or ".").glob(str(Path(escape(str(folder))) / written).lstrip("/")))
        if len(matches) != 1:
            count = f"{len(matches)} folders match" if matches else "no folder matches"
            remedy = "Write a path, or a pattern that matches one folder."
            raise UserError(f"{count} {written!r}", path=("folder",), remedy=remedy)
        place = str(matches[0])
    store = open_store(place)
    for key in KEYS:
        try:
            return StoredParameters(store.where(key), store.read(key))
        except NotStored:
            continue
    problem = f"no model is stored in {place}"
    raise UserError(problem, path=("folder",), remedy="Use the folder of a finished run, or of a model.")
