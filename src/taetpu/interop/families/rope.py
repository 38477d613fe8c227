"""RoPE in Hugging Face settings: the base, the share of a head and the scaling of frequencies.

Since transformers 5, `rope_parameters` has all of them, for each type of layer if the types differ. Earlier versions
have `rope_theta` and `rope_scaling`.

Source: modeling_rope_utils.py in transformers.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from taetpu.core.errors import UserError, suggest
from taetpu.interop.families.base import Settings

ROPE_SETTINGS: Settings = {
    "rope_parameters": None,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "original_max_position_embeddings": None,
}
REASONS = {
    "dynamic": "its frequencies depend on the length of each sequence, so cached keys would not match new ones",
    "longrope": "taetpu has no kind with separate frequencies for short and long sequences",
    "proportional": "taetpu has no kind that leaves a share of all frequencies at zero",
}
"""The types of scaling that are refused."""


def read_rope(settings: Settings, seq_len: int, fraction: float = 1.0) -> dict[str, Any]:
    """Return the data of position `rope` from Hugging Face settings.

    Args:
        settings: The settings, with `ROPE_SETTINGS`.
        seq_len: The maximum sequence length of the model.
        fraction: The share of a head that is rotated, if the settings do not contain it.

    Raises:
        UserError: If the scaling or one of its settings is not supported.
    """
    where = "rope_parameters" if settings["rope_parameters"] else "rope_scaling"
    found = settings[where] or {}
    original = settings["original_max_position_embeddings"]
    return read_parameters(found, (where,), settings["rope_theta"], seq_len, fraction, original)


def read_parameters(
    parameters: Any, path: tuple[str, ...], base: Any, seq_len: int, fraction: float = 1.0, original: Any = None
) -> dict[str, Any]:
    """Return the data of position `rope` from one entry of `rope_parameters`.

    Args:
        parameters: The entry.
        path: The path of the entry, for errors.
        base: The base, if the entry does not contain it.
        seq_len: The maximum sequence length of the model.
        fraction: The share of a head that is rotated, if the entry does not contain it.
        original: The sequence length of the earlier training; by default that in the entry, or else `seq_len`.

    Raises:
        UserError: If the scaling or one of its settings is not supported.
    """
    if not isinstance(parameters, Mapping):
        raise UserError(f"{parameters!r} is not a mapping of settings", path=path, remedy="Write {rope_type: ...}.")
    left = {name: value for name, value in parameters.items() if value is not None}
    kind = left.pop("rope_type", left.pop("type", "default"))
    left.pop("type", None)
    made = {"kind": "rope", "base": float(_number(left, "rope_theta", path, base))}
    share = _number(left, "partial_rotary_factor", path, fraction)
    made |= {"fraction": float(share)} if share != 1 else {}
    if kind in REASONS:
        remedy = f"Use a model with one of: default, {', '.join(READERS)}."
        raise UserError(
            f"rope_type={kind!r} is not supported: {REASONS[kind]}", path=(*path, "rope_type"), remedy=remedy
        )
    if kind != "default":
        if kind not in READERS:
            remedy = suggest(str(kind), ["default", *READERS])
            raise UserError(f"rope_type={kind!r} is not supported", path=(*path, "rope_type"), remedy=remedy)
        length = original or _number(left, "original_max_position_embeddings", path, seq_len)
        made["scaling"] = READERS[kind](left, path, int(length), seq_len)
    left.pop("original_max_position_embeddings", None)
    for name, value in left.items():
        problem = f"{name}={value!r} is not a setting of rope_type={kind!r}"
        raise UserError(problem, path=(*path, name), remedy="Remove it if transformers ignores it.")
    return made


def _number(left: dict[str, Any], name: str, path: tuple[str, ...], default: Any = None) -> Any:
    """Remove a number from settings and return it.

    Raises:
        UserError: If it is missing and has no default, or is no number.
    """
    value = left.pop(name, default)
    if value is None:
        raise UserError(f"{name!r} is missing", path=(*path, name), remedy=f"Set {name}.")
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise UserError(f"{name} is {value!r}, expected a number", path=(*path, name), remedy=f"Correct {name}.")
    return value


def _linear(left: dict[str, Any], path: tuple[str, ...], original: int, seq_len: int) -> dict[str, Any]:
    return {"kind": "linear", "factor": float(_number(left, "factor", path))}


def _llama3(left: dict[str, Any], path: tuple[str, ...], original: int, seq_len: int) -> dict[str, Any]:
    numbers = {name: float(_number(left, name, path)) for name in ("factor", "low_freq_factor", "high_freq_factor")}
    return {"kind": "llama3", **numbers, "original_seq_len": original}


def _yarn(left: dict[str, Any], path: tuple[str, ...], original: int, seq_len: int) -> dict[str, Any]:
    factor = float(_number(left, "factor", path, seq_len / original))
    made = {
        "kind": "yarn",
        "original_seq_len": original,
        "factor": factor,
        "beta_fast": float(_number(left, "beta_fast", path, 32)),
        "beta_slow": float(_number(left, "beta_slow", path, 1)),
        "truncate": bool(left.pop("truncate", True)),
    }
    scales = [left.pop(name, None) for name in ("mscale", "mscale_all_dim")]
    if "attention_factor" in left:
        made["attention_factor"] = float(_number(left, "attention_factor", path))
    elif all(scales):
        top, bottom = (yarn_attention_factor(factor**scale) for scale in scales)
        made["attention_factor"] = top / bottom
    return made


READERS: Mapping[str, Callable[[dict[str, Any], tuple[str, ...], int, int], dict[str, Any]]] = {
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
"""Functions that remove the settings of a scaling and return the data of slot `rope_scaling`, by type."""


def yarn_attention_factor(factor: float) -> float:
    """Return the default factor of YaRN on cos and sin."""
    return 0.1 * math.log(factor) + 1


def write_rope(ours: Settings) -> dict[str, Any]:
    """Return `rope_parameters` for the position of a layer. A scaling that transformers lacks is left out."""
    made: dict[str, Any] = {"rope_type": "default", "rope_theta": ours.get("position.base", 10000.0)}
    kind = ours.get("position.scaling.kind")
    own: dict[str, Any] = {name: ours.get(f"position.scaling.{name}") for name in SCALINGS.get(kind, ())}
    if kind == "yarn" and math.isclose(own["attention_factor"], yarn_attention_factor(own["factor"]), rel_tol=1e-6):
        own.pop("attention_factor")
    if own:
        original = (
            {"original_max_position_embeddings": own.pop("original_seq_len")} if "original_seq_len" in own else {}
        )
        made |= {"rope_type": kind, **own, **original}
    return made


SCALINGS: Mapping[Any, tuple[str, ...]] = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_seq_len"),
    "yarn": ("factor", "beta_fast", "beta_slow", "truncate", "attention_factor", "original_seq_len"),
}
"""The settings of each scaling, by kind."""


def write_plain_rope(ours: Settings) -> dict[str, Any]:
    """Return the settings of RoPE that all layers share, for current and earlier versions of transformers."""
    parameters = write_rope(ours)
    scaled = {name: value for name, value in parameters.items() if name != "rope_theta"}
    earlier = {"rope_scaling": scaled} if parameters["rope_type"] != "default" else {}
    return {"rope_theta": parameters["rope_theta"], "rope_parameters": parameters, **earlier}
