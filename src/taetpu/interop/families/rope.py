"""RoPE in Hugging Face settings: the base, the share of a head and the scaling of frequencies.

Since transformers 5, `rope_parameters` has all of them, for each type of layer if the types differ. Earlier versions
have `rope_theta` and `rope_scaling`. Where a config has several of these settings, the results are those of the
architecture's class in transformers 5: `rope_scaling` replaces `rope_parameters` (in Gemma 3, it is added to those of
full layers), and a base in the remaining one takes precedence over `rope_theta`.

Source: modeling_rope_utils.py and the configurations in transformers.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field, PositiveFloat

from taetpu.core.config import Config
from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError, locate_errors, suggest
from taetpu.interop.families.base import Count, Exported, Family, NotNegative, Settings
from taetpu.interop.families.windows import FULL

Share = Annotated[float, Field(gt=0, le=1)]


class RopeParameters(Config):
    """An entry of `rope_parameters`. Each type of scaling uses some of them, and ignores the others."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: PositiveFloat | None = None
    partial_rotary_factor: Share | None = None
    factor: PositiveFloat | None = None
    original_max_position_embeddings: Count | None = None
    low_freq_factor: PositiveFloat | None = None
    high_freq_factor: PositiveFloat | None = None
    beta_fast: NotNegative | None = None
    beta_slow: NotNegative | None = None
    truncate: bool | None = True
    attention_factor: PositiveFloat | None = None
    mscale: NotNegative | None = None
    mscale_all_dim: NotNegative | None = None
    short_factor: tuple[PositiveFloat, ...] | None = None
    long_factor: tuple[PositiveFloat, ...] | None = None
    mrope_section: Any = None
    finetuned: Any = None

    @property
    def kind(self) -> str:
        """The type of scaling. Earlier versions of transformers call it `type`."""
        return self.rope_type or self.type or "default"

    def need(self, name: str) -> Any:
        """Return a setting.

        Raises:
            UserError: If it is missing.
        """
        value = getattr(self, name)
        if value is None:
            raise UserError(f"{name!r} is missing", path=(name,), remedy=f"Set {name}.")
        return value


REASONS = {
    "proportional": "taetpu has no kind that leaves a share of all frequencies at zero",
}
"""The types of scaling that are refused."""


@dataclass(frozen=True)
class RopeReader:
    """The reader of the RoPE settings of an architecture.

    Attributes:
        base: The base, if no setting contains it.
        share: The share of a head that is rotated, if no setting contains it.
        partial: Whether the architecture rotates a share of each head. The others rotate whole heads: they ignore
            `partial_rotary_factor`, and their classes do not compute scaled frequencies of a share.
        kinds: The types of scaling that the architecture has; empty for all that are read.
    """

    base: float = 10000.0
    share: float = 1.0
    partial: bool = False
    kinds: tuple[str, ...] = ()

    def read_entry(
        self,
        entry: Mapping[str, Any],
        path: tuple[str, ...],
        defaults: Settings,
        seq_len: int,
        original: int | None = None,
        truncate: bool = False,
    ) -> dict[str, Any]:
        """Return the data of position `rope` from one entry of `rope_parameters`.

        Args:
            entry: The entry.
            path: The path of the entry, for errors.
            defaults: The base and the share outside the entry; None if they are missing.
            seq_len: The maximum sequence length of the model.
            original: The sequence length of the earlier training, if it is outside the entry.
            truncate: Whether `truncate` is true whatever the entry says, as in the entry of a type of layer.

        Raises:
            UserError: If the scaling or one of its settings is not supported.
        """
        given = load_config(RopeParameters, entry, path)
        given = given.model_copy(update={"truncate": True}) if truncate else given
        share = given.partial_rotary_factor or defaults.get("partial_rotary_factor") or self.share
        made = {"kind": "rope", "base": float(given.rope_theta or defaults.get("rope_theta") or self.base)}
        if self.partial and share != 1:
            made["fraction"] = float(share)
        if given.kind == "default":
            return made
        allowed = ["default", *(self.kinds or READERS)]
        if given.kind not in allowed:
            reason = f": {REASONS[given.kind]}" if given.kind in REASONS else ""
            remedy = f"Use a model with one of: {', '.join(allowed)}." if reason else suggest(given.kind, allowed)
            problem = f"rope_type={given.kind!r} is not supported{reason}"
            raise UserError(problem, path=(*path, "rope_type"), remedy=remedy)
        if not self.partial and share != 1:
            problem = f"partial_rotary_factor={share} is not supported with rope_type={given.kind!r}"
            remedy = "Remove it: transformers does not compute such a model either."
            raise UserError(problem, path=(*path, "partial_rotary_factor"), remedy=remedy)
        length = original or given.original_max_position_embeddings or seq_len
        with locate_errors(*path):
            return {**made, "scaling": READERS[given.kind](given, length, seq_len)}


class RopeFamily(Family):
    """An architecture with RoPE.

    Attributes:
        rope: The reader of the settings that all layers share.
    """

    rope: ClassVar[RopeReader] = RopeReader()

    rope_parameters: dict[str, Any] | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_theta: PositiveFloat | None = None
    partial_rotary_factor: Share | None = None
    original_max_position_embeddings: Count | None = None
    hidden_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count

    def read_position(self) -> dict[str, Any]:
        """Return the data of position `rope` of a model whose layers share it.

        Raises:
            UserError: If the scaling or one of its settings is not supported.
        """
        where = "rope_scaling" if self.rope_scaling else "rope_parameters"
        defaults = {"rope_theta": self.rope_theta, "partial_rotary_factor": self.partial_rotary_factor}
        original = self.original_max_position_embeddings
        return self.rope.read_entry(getattr(self, where) or {}, (where,), defaults, self.length, original)


def _linear(given: RopeParameters, original: int, seq_len: int) -> dict[str, Any]:
    return {"kind": "linear", "factor": given.need("factor")}


def _llama3(given: RopeParameters, original: int, seq_len: int) -> dict[str, Any]:
    numbers = {name: given.need(name) for name in ("factor", "low_freq_factor", "high_freq_factor")}
    return {"kind": "llama3", **numbers, "original_seq_len": original}


def _yarn(given: RopeParameters, original: int, seq_len: int) -> dict[str, Any]:
    missing = given.factor is None and "factor" in given.model_fields_set  # transformers computes it for null
    factor = seq_len / original if missing else given.need("factor")
    made = {
        "kind": "yarn",
        "original_seq_len": original,
        "factor": factor,
        "beta_fast": float(given.beta_fast or 32),  # transformers reads 0 as the default too
        "beta_slow": float(given.beta_slow or 1),
        "truncate": bool(given.truncate),
    }
    if given.attention_factor is not None:
        made["attention_factor"] = float(given.attention_factor)
    elif given.mscale and given.mscale_all_dim and factor > 1:
        made["attention_factor"] = (given.mscale * math.log(factor) / 10 + 1) / (
            given.mscale_all_dim * math.log(factor) / 10 + 1
        )
    return made


def _dynamic(given: RopeParameters, original: int, seq_len: int) -> dict[str, Any]:
    return {"kind": "dynamic", "factor": given.need("factor"), "original_seq_len": seq_len}


def _longrope(given: RopeParameters, original: int, seq_len: int) -> dict[str, Any]:
    factor = given.factor or seq_len / original
    default = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return {
        "kind": "longrope",
        **{name: given.need(name) for name in ("short_factor", "long_factor")},
        "original_seq_len": original,
        "attention_factor": given.attention_factor or default,
    }


READERS: Mapping[str, Callable[[RopeParameters, int, int], dict[str, Any]]] = {
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "dynamic": _dynamic,
    "longrope": _longrope,
}
"""Functions that return the data of slot `rope_scaling`, by type. They are given the entry, the sequence length of the
earlier training, and that of the model."""


def yarn_attention_factor(factor: float) -> float:
    """Return the default factor of YaRN on cos and sin."""
    return 0.1 * math.log(factor) + 1


def write_rope(ours: Settings) -> dict[str, Any]:
    """Return `rope_parameters` for the position of a layer. A scaling that transformers lacks is left out."""
    made: dict[str, Any] = {"rope_type": "default", "rope_theta": ours.get("position.base", 10000.0)}
    kind = ours.get("position.scaling.kind")
    scaling: dict[str, Any] = {name: ours.get(f"position.scaling.{name}") for name in SCALINGS.get(kind, ())}
    if kind == "yarn":
        default = yarn_attention_factor(scaling["factor"])
        if math.isclose(scaling["attention_factor"], default, rel_tol=1e-6):
            scaling.pop("attention_factor")
    if scaling:
        made["rope_type"] = kind
        made |= {{"original_seq_len": "original_max_position_embeddings"}.get(k, k): v for k, v in scaling.items()}
    return made


SCALINGS: Mapping[Any, tuple[str, ...]] = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_seq_len"),
    "yarn": ("factor", "beta_fast", "beta_slow", "truncate", "attention_factor", "original_seq_len"),
    "dynamic": ("factor",),
    "longrope": ("short_factor", "long_factor", "attention_factor", "original_seq_len"),
}
"""The settings of each scaling, by kind."""


def write_plain_rope(ours: Settings, partial: bool = False) -> dict[str, Any]:
    """Return the settings of RoPE that all layers share, for current and earlier versions of transformers.

    Args:
        ours: The settings of the model.
        partial: Whether the architecture rotates a share of each head.
    """
    share = {"partial_rotary_factor": ours.get("position.fraction", 1.0)} if partial else {}
    parameters = {**write_rope(ours), **share}
    scaled = {name: value for name, value in parameters.items() if name != "rope_theta"}
    earlier = {"rope_scaling": scaled} if parameters["rope_type"] != "default" else {}
    return {"rope_theta": parameters["rope_theta"], "rope_parameters": parameters, **earlier, **share}


def read_positions_by_type(
    settings: RopeFamily, bases: Mapping[str, float], given: Mapping[str, float | None]
) -> dict[str, dict[str, Any]]:
    """Return the position of each type of layer. `rope_scaling` is added to the parameters of full layers.

    Args:
        settings: The settings.
        bases: The base of each type, if no setting contains it.
        given: The base of each type outside its parameters; None if it is missing.

    Raises:
        UserError: If the settings of a type are not a mapping, or not supported.
    """
    nested = settings.rope_parameters or {}
    for name, entry in nested.items():
        if name not in bases or not isinstance(entry, Mapping | None):
            problem = f"{name!r} is not a type of layer" if name not in bases else f"{entry!r} is not a mapping"
            remedy = f"Write {{{', '.join(f'{kind}: {{...}}' for kind in bases)}}}."
            raise UserError(problem, path=("rope_parameters", name), remedy=remedy)
    entries = {name: nested.get(name) or {"rope_type": "default"} for name in bases}
    entries[FULL] = {**entries[FULL], **(settings.rope_scaling or {})}
    return {
        kind: RopeReader(base).read_entry(
            entries[kind],
            ("rope_scaling",) if kind == FULL and settings.rope_scaling else ("rope_parameters", kind),
            {"rope_theta": given[kind], "partial_rotary_factor": settings.partial_rotary_factor},
            settings.length,
            truncate=True,
        )
        for kind, base in bases.items()
    }


def write_positions_by_type(ours: Exported, types: Sequence[str], bases: Mapping[str, float]) -> dict[str, Any]:
    """Return the settings of RoPE by type of layer, for current and earlier versions of transformers.

    Args:
        ours: The settings of the model.
        types: The type of each layer.
        bases: The base of each type, if no layer has the type.
    """
    by_type = {kind: layer for layer, kind in reversed(list(zip(ours.layers, types, strict=True)))}
    ropes = {kind: write_rope(by_type.get(kind, {"position.base": base})) for kind, base in bases.items()}
    scaled = {name: value for name, value in ropes[FULL].items() if name != "rope_theta"}
    earlier = {"rope_scaling": scaled} if scaled["rope_type"] != "default" else {}
    return {"rope_parameters": ropes, "rope_theta": ropes[FULL]["rope_theta"], **earlier}
