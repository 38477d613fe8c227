"""LoRA adapters of PEFT: a folder with `adapter_config.json` and `adapter_model.safetensors`, and its base model.

The adapter is added to the weights of the base model, as PEFT's `merge_and_unload` does.

Source: tuners/lora/config.py and tuners/lora/layer.py in PEFT.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import PositiveFloat, PositiveInt

from taetpu.core.config import Config
from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError, locate_errors
from taetpu.core.json_files import RESTORE, is_missing, read_object
from taetpu.interop.weights import Tensors, read_safetensors, to_float32

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
FIXED = {"peft_type": ("LORA",), "bias": ("none",), "init_lora_weights": (True, False, "gaussian")}
"""The values of settings that are supported, beside those that say nothing."""
HARMLESS = frozenset(
    """
    auto_mapping inference_mode task_type lora_dropout target_modules exclude_modules layers_to_transform layers_pattern
    revision peft_version megatron_core runtime_config ensure_weight_tying
    """.split()  # noqa: SIM905
)


class AdapterSettings(Config):
    """The settings of an adapter that change the results."""

    base_model_name_or_path: str
    r: PositiveInt = 8
    lora_alpha: PositiveFloat = 8.0
    use_rslora: bool = False
    fan_in_fan_out: bool = False


@dataclass(frozen=True)
class Adapter:
    """An adapter.

    Attributes:
        base: The folder of the base model.
        settings: The settings.
        file: The file with the matrices.
    """

    base: Path
    settings: AdapterSettings
    file: Path

    def merge(self, tensors: Tensors, rename: Callable[[str], str], transposed: bool) -> dict[str, np.ndarray]:
        """Return the tensors of the base model with the adapter.

        Args:
            tensors: The tensors of the base model.
            rename: A function that returns the main name of a tensor.
            transposed: Whether matrices are `(in, out)`, as in GPT-2.

        Raises:
            UserError: If a matrix is missing, or belongs to no tensor of the base model.
        """
        places = {rename(name): name for name in tensors}
        result = dict(tensors)
        left = read_safetensors(self.file)
        scale = self.settings.lora_alpha / (self.settings.r**0.5 if self.settings.use_rslora else self.settings.r)
        for name in sorted(left):
            match = re.fullmatch(r"base_model\.model\.(.+)\.lora_(A|B)\.weight", name)
            place = places.get(rename(f"{match[1]}.weight")) if match else None
            if match is None or place is None:
                problem = f"tensor {name!r} changes no matrix of the base model"
                remedy = "Use the base model of the adapter, and an adapter with matrices lora_A and lora_B alone."
                raise UserError(problem, file=self.file, remedy=remedy)
            if match[2] == "B":
                continue
            other = name.replace("lora_A", "lora_B")
            if other not in left:
                raise UserError(f"tensor {other!r} is missing", file=self.file, remedy=RESTORE)
            down, up = to_float32(name, left[name]), to_float32(other, left[other])
            weight = to_float32(place, tensors[place])
            try:
                change = np.float32(scale) * (up @ down)
                change = change.T if transposed or self.settings.fan_in_fan_out else change
            except ValueError:
                change = np.empty(())
            if down.shape[:1] != (self.settings.r,) or change.shape != weight.shape:
                problem = (
                    f"{name!r} of shape {down.shape} and lora_B of {up.shape} do not fit {place!r}, {weight.shape}"
                )
                raise UserError(problem, file=self.file, remedy="Use the base model of the adapter.")
            result[place] = weight + change
        return result


def read_adapter(folder: Path) -> Adapter | None:
    """Return the adapter in a folder; None if the folder has none.

    Raises:
        UserError: If a setting is not supported, or the base model is not in a folder.
    """
    file = folder / CONFIG
    if is_missing(file):
        return None
    content = read_object(file, RESTORE)
    for name, value in content.items():
        known = name in AdapterSettings.model_fields or name in HARMLESS
        if not known and (value not in FIXED[name] if name in FIXED else bool(value)):
            problem = f"{name}={value!r} is not supported"
            remedy = "Merge the adapter with PEFT in an environment that you trust: "
            remedy += "AutoPeftModelForCausalLM.from_pretrained(FOLDER).merge_and_unload().save_pretrained(NEW)."
            raise UserError(problem, path=(name,), file=file, remedy=remedy)
    given: dict[str, Any] = {name: content[name] for name in AdapterSettings.model_fields if name in content}
    with locate_errors(file=file):
        settings = load_config(AdapterSettings, given)
    named = Path(settings.base_model_name_or_path).expanduser()
    for base in (named, folder / named):
        if base.is_dir():
            return Adapter(base, settings, folder / WEIGHTS)
    problem = f"the base model {settings.base_model_name_or_path!r} is no folder"
    remedy = "Download it, and set base_model_name_or_path to its folder."
    raise UserError(problem, path=("base_model_name_or_path",), file=file, remedy=remedy)
